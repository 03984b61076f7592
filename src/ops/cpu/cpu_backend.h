#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ops.h"
#include "ops/ops.h"

namespace deepinfer {

/// Backend for processors: order of work, threads and buffers around the kernels of cpu/kernels.h.
///
/// Loops are cut by sizes of the model and of the step alone, and every output belongs to one chunk, so results don't depend on
/// the number of threads.
class CpuBackend final : public Backend {
 public:
  CpuBackend(ThreadPool* pool, const cpu::CpuKernels& kernels);

  std::string name() const override { return std::string("cpu/") + kernels_.name; }
  std::string numerics() const override;
  std::vector<KernelChoice> kernels() const override {
    return {{"linear_fp8, linear_bf16, output_lora, experts (FP4), markov_logits", kernels_.name},
            {"index_select, sparse_attention", kernels_.name},
            {"row by row: norms, rotation, streams, packing, router, Engram", rows_.target}};
  }

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override;
  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override;
  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override;
  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override;
  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override;
  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override;
  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override;
  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override;
  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override;
  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override;
  void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) override;
  void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) override;
  void pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override;
  void pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override;
  void round_index_queries(bf16* x, int64_t rows, int64_t dim) override;
  void scale(bf16* x, int64_t count, float factor) override;
  void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) override;
  void index_select(const IndexSelectArgs& args) override;
  void sparse_attention(const SparseAttentionArgs& args) override;
  void route(const RouteArgs& args, int64_t rows) override;
  void experts(const ExpertsArgs& args, int64_t rows) override;
  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override;
  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override;
  void markov_logits(const MarkovArgs& args) override;
  void draft_confidence(const ConfidenceArgs& args) override;

 private:
  /// Inputs of a product in the kernels' layout.
  struct Packed {
    AlignedBuffer<char> data;
    cpu::PackKind kind = cpu::PackKind::kBf16;
    int64_t rows = 0;
    int64_t k = 0;
    int64_t group_bytes = 0;  ///< one group of columns after the other, where the input has several
  };
  /// Scratch of one thread.
  struct Local {
    AlignedBuffer<float> y, y2;
    AlignedBuffer<bf16> row;
    AlignedBuffer<char> scratch, query, keys;
    AlignedBuffer<float> scores, weights;
    std::vector<uint64_t> rank_keys;
    std::vector<float> block_scores;
    std::vector<int32_t> blocks;
  };
  /// A run of (token, expert) pairs that share an expert; the last group is the shared expert.
  struct ExpertGroup {
    int64_t expert = 0;
    int64_t first = 0;  ///< into the sorted pairs
    int64_t count = 0;
  };

  /// Calls fn(r, thread) for every row; in parallel when the rows are worth it (`row_work` in elements touched).
  void for_rows(int64_t rows, int64_t row_work, FunctionRef<void(int64_t, int)> fn);
  /// Calls fn(begin, end, thread) over output rows of a product whose row costs `row_bytes` of weights.
  void for_outputs(int64_t out, int64_t row_bytes, FunctionRef<void(int64_t, int64_t, int)> fn);
  /// Columns of an input: [groups, k] a row. quantize: to FP8 first.
  struct Columns {
    int64_t groups = 1;
    int64_t k = 0;
    bool quantize = false;
  };
  void pack_rows(Packed& packed, cpu::PackKind kind, const bf16* x, int64_t rows, const Columns& columns);
  char* scratch(int thread) { return local_[static_cast<size_t>(thread)].scratch.data(); }
  char* tile_of(Packed& packed, int64_t group, int64_t row, int64_t* rows, int64_t* at) const;

  void sort_pairs(const ExpertsArgs& args, int64_t rows);
  void pack_expert_inputs(const ExpertsArgs& args, int64_t rows);
  void expert_hidden(const ExpertsArgs& args);
  void expert_output(const ExpertsArgs& args);

  void attend_alone(const SparseAttentionArgs& args, int64_t row);
  void attend_shared(const SparseAttentionArgs& args, int64_t row);

  ThreadPool* pool_;
  const cpu::CpuKernels& kernels_;
  const cpu::RowOps& rows_;
  std::vector<Local> local_;
  Packed packed_, packed2_;
  AlignedBuffer<float> dots_, logits_;
  AlignedBuffer<bf16> draft_inputs_;
  // experts
  std::vector<int64_t> pair_token_;  ///< token of each sorted pair
  std::vector<float> pair_weight_;
  std::vector<int64_t> pair_of_;   ///< [rows, topk] sorted pair of a token's slot, slots in ascending expert order
  std::vector<int64_t> group_at_;  ///< scratch of the counting sort
  std::vector<ExpertGroup> groups_;
  AlignedBuffer<bf16> quantized_, pair_hidden_, pair_output_;
  AlignedBuffer<char> pair_inputs_, pair_inner_;
  // attention and indexer of a single row, shared between threads
  AlignedBuffer<char> query_, keys_;
  AlignedBuffer<float> scores_, index_weights_;
};

}  // namespace deepinfer
