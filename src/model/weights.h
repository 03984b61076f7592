#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/aligned_buffer.h"
#include "checkpoint/checkpoint.h"
#include "ops/ops.h"

namespace deepinfer {

/// Weights of one block, as views into the mapped checkpoint (spec/backbone §2.3, §2.4). Optional groups are empty.
struct BlockWeights {
  const bf16* attn_norm = nullptr;
  const bf16* ffn_norm = nullptr;
  // attention
  Fp8Weight wq_a, wq_b, wkv, wo_a, wo_b;
  const bf16* q_norm = nullptr;
  const bf16* kv_norm = nullptr;
  const float* attn_sink = nullptr;
  // compressor, KV sources
  Bf16Weight compressor_wkv, compressor_wgate;
  const bf16* compressor_norm = nullptr;
  // indexer: keys in KV sources, queries in index sources
  Bf16Weight index_wk;
  const bf16* index_k_norm = nullptr;
  Fp8Weight index_wq_b;
  Bf16Weight index_weights_proj;
  // hyper-connections
  HyperMixWeights hc_attn, hc_ffn;
  // experts
  Bf16Weight gate;
  const float* gate_bias = nullptr;
  const float* gate_bias_vl = nullptr;
  std::vector<ExpertWeights> experts;
  Fp8Weight shared_w1, shared_w2, shared_w3;
  // Engram
  EngramTable engram_table;
  Fp8Weight engram_wkv;
  const bf16* engram_q_weight = nullptr;
  const bf16* engram_k_weight = nullptr;
};

/// Weights of the draft module (dspark.md §2).
struct DraftWeights {
  Fp8Weight main_proj;
  const bf16* main_norm = nullptr;
  std::vector<BlockWeights> stages;  ///< empty: the model has no draft module
  const bf16* norm = nullptr;
  Bf16Weight markov_embed, markov_head, confidence;
};

struct ModelWeights {
  Bf16Weight embed, head;
  const bf16* norm = nullptr;
  std::vector<BlockWeights> blocks;
  DraftWeights draft;

  /// Small tensors that do not lie on a multiple of their element size in the file, and had to be copied.
  std::vector<AlignedBuffer<uint8_t>> realigned;
};

/// Views of all tensors but the vision tower's; the checkpoint has been checked against its catalogue, so each of them exists.
ModelWeights bind_weights(const Checkpoint& checkpoint);

}  // namespace deepinfer
