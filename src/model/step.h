#pragma once

// What one forward pass hands from function to function; private to the model.

#include <algorithm>
#include <vector>

#include "base/aligned_buffer.h"
#include "model/model.h"

namespace deepinfer {

/// New rows of one sequence in a step. When a step narrows, its spans do (spec §8.3).
struct StepSpan {
  SequenceState* state = nullptr;
  int64_t start = 0;  ///< position of the first row
  int64_t count = 0;
  int64_t first_row = 0;           ///< in the step's buffers
  int64_t input_row = 0;           ///< in the batch
  WindowSnapshot* save = nullptr;  ///< takes the window as it is before position save_at
  int64_t save_at = 0;

  int64_t end() const { return start + count; }
  /// Groups of the compressor that end in the span and are the sequence's own to write: by their last token (spec §8.2).
  int64_t first_group(int64_t ratio) const { return std::max(start, state->write_floor()) / ratio; }
  int64_t group_count(int64_t ratio) const { return std::max<int64_t>(0, end() / ratio - first_group(ratio)); }
};

/// Step buffers. They grow to the largest step seen and stay, so that steps don't allocate.
struct Model::Buffers {
  AlignedBuffer<bf16> x;     ///< [rows, n, hidden] residual streams
  AlignedBuffer<float> pre;  ///< [rows, n] collapses the stream for the next sublayer
  AlignedBuffer<float> next_pre, post, comb;
  AlignedBuffer<bf16> u;                    ///< [rows, hidden] normalised input of a sublayer
  AlignedBuffer<bf16> out;                  ///< [rows, hidden] output of a sublayer
  AlignedBuffer<bf16> q_low;                ///< [rows, q_lora]
  AlignedBuffer<bf16> q, o;                 ///< [rows, heads, head_dim]
  AlignedBuffer<bf16> o_low;                ///< [rows, groups * lora]
  AlignedBuffer<bf16> kv;                   ///< [rows, head_dim]
  AlignedBuffer<uint8_t> window_kv;         ///< [rows, window_row_bytes] packed
  AlignedBuffer<float> comp_kv, comp_gate;  ///< [rows, head_dim]
  AlignedBuffer<bf16> latent;               ///< [groups, head_dim]
  AlignedBuffer<bf16> index_k;              ///< [groups, index_head_dim]
  AlignedBuffer<bf16> index_q;              ///< [rows, index_heads, index_head_dim]
  AlignedBuffer<bf16> index_weights;        ///< [rows, index_heads]
  AlignedBuffer<int32_t> chosen;            ///< [rows, index_topk]
  AlignedBuffer<int64_t> chosen_count;
  AlignedBuffer<uint64_t> candidates;
  AlignedBuffer<int32_t> experts;
  AlignedBuffer<float> expert_weights;
  AlignedBuffer<int64_t> engram_rows;  ///< [slots, rows, columns]
  AlignedBuffer<bf16> engram_e, engram_kv;
  AlignedBuffer<bf16> tap, main_hidden;
  AlignedBuffer<bf16> head_x, head_u;
  AlignedBuffer<float> head_pre, logits;
  AlignedBuffer<bf16> draft_taps;  ///< [rows, targets * hidden]
  AlignedBuffer<float> draft_base, draft_logits, confidences;
  AlignedBuffer<int32_t> draft_tokens, draft_previous;
  std::vector<int32_t> draft_ids, draft_chosen;
  // Rotations of the step's rows, and of the groups that complete in it.
  AlignedBuffer<float> plain_cos, plain_sin, compressed_cos, compressed_sin, pair_cos, pair_sin;
  std::vector<AttentionQuery> queries;
  std::vector<IndexQuery> index_queries;
  std::vector<const float*> pool_kv, pool_gate;
  std::vector<int64_t> positions;  ///< [rows]
  std::vector<StepSpan> spans;
  std::vector<int64_t> page_counts;  ///< [sequences] before the step
  std::vector<int32_t> kept_row;     ///< [rows of the batch] where the row is now, -1 if left behind; only if narrowed
  AlignedBuffer<uint8_t> image;      ///< [rows] of a narrowed step
  std::vector<int32_t> prefix_history;
};

struct Model::Step {
  StepObserver* observer = nullptr;
  Buffers* b = nullptr;
  int64_t rows = 0;
  bool narrowed = false;           ///< some rows of the batch were left behind
  const uint8_t* image = nullptr;  ///< [rows] or nullptr
  int64_t pairs = 0;               ///< groups of ratio 2 that this step writes, all sequences
  int64_t candidate_words = 0;

  RopeRows plain_rope() const;
  RopeRows compressed_rope() const;
  RopeRows pair_rope() const;
  int64_t rope_pairs = 0;

  template <typename T>
  void observe(std::string_view name, int64_t layer, const T* data, int64_t count) const {
    if (observer != nullptr) observer->value(name, layer, std::span<const T>(data, static_cast<size_t>(count)));
  }
  bool replace(std::string_view name, int64_t layer, bf16* data, int64_t count) const {
    return observer != nullptr && observer->replace(name, layer, std::span<bf16>(data, static_cast<size_t>(count)));
  }
};

inline RopeRows Model::Step::plain_rope() const { return {b->plain_cos.data(), b->plain_sin.data(), rope_pairs}; }
inline RopeRows Model::Step::compressed_rope() const { return {b->compressed_cos.data(), b->compressed_sin.data(), rope_pairs}; }
inline RopeRows Model::Step::pair_rope() const { return {b->pair_cos.data(), b->pair_sin.data(), rope_pairs}; }

}  // namespace deepinfer
