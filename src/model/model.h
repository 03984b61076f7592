#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "model/engram_hash.h"
#include "model/rope_table.h"
#include "model/sequence_state.h"
#include "model/step_observer.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace deepinfer {

/// New tokens of one sequence in a step; they continue the state.
struct StepSequence {
  SequenceState* state = nullptr;
  int64_t count = 0;
};

/// One forward pass: rows of all sequences one after the other, in the order of `sequences`.
struct StepBatch {
  std::span<const int32_t> tokens;  ///< [rows]
  std::span<const StepSequence> sequences;
  /// [rows] 1 inside an image span: `bias_vl` in the routers, no Engram (spec §4, §5.3). Empty: all text.
  std::span<const uint8_t> image_mask;
  /// Input embeddings that replace the table's: row embedding_rows[i] takes embeddings[i, hidden].
  std::span<const int32_t> embedding_rows;
  std::span<const bf16> embeddings;
  /// Rows whose logits are wanted, ascending.
  std::span<const int32_t> logit_rows;
};

/// What a step leaves; valid until the next step of the same model.
struct StepOutput {
  std::span<const float> logits;      ///< [logit_rows, vocab]
  std::span<const bf16> main_hidden;  ///< [rows, targets * hidden]: DSpark taps (dspark.md §3.1)
};

/// The network of spec/backbone §3-5, written once over `Backend`. One caller at a time.
class Model {
 public:
  struct Options {
    int64_t rollback_slack = 16;  ///< positions that a sequence can take back: two draft blocks and a bit
  };

  /// `compressed_ids`: the Engram token map (spec §5.1), one entry per id that can occur. An error names what does not fit.
  static Result<std::unique_ptr<Model>> Create(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> compressed_ids,
                                               Backend* backend, const Options& options);
  static Result<std::unique_ptr<Model>> Create(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> compressed_ids,
                                               Backend* backend) {
    return Create(std::move(checkpoint), std::move(compressed_ids), backend, Options{});
  }

  ~Model();

  const ModelConfig& config() const { return config_; }
  const PageLayout& page_layout() const { return layout_; }
  Backend& backend() { return *backend_; }

  /// An empty sequence. `pages` outlives it; nullptr: the model's own heap pages.
  std::unique_ptr<SequenceState> new_sequence(PageAllocator* pages = nullptr);

  /// Runs the batch and advances its sequences. On error no sequence has changed.
  Result<StepOutput> forward(const StepBatch& batch, StepObserver* observer = nullptr);

  /// Bytes of weights that a token at batch 1 reads: all dense weights and the active experts, `layers` only.
  int64_t active_weight_bytes() const;

 private:
  struct Step;
  struct Buffers;

  Model(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> compressed_ids, Backend* backend,
        const Options& options);

  Status check(const StepBatch& batch) const;
  /// Pages for the new positions of all sequences, or of none.
  Status reserve_pages(const StepBatch& batch) const;
  void prepare(const StepBatch& batch, Step& step);
  void run_block(Step& step, int64_t layer);
  void run_engram(Step& step, int64_t layer);
  // attention.cc
  void run_attention(Step& step, int64_t layer);
  void run_compressor(Step& step, int64_t layer, int64_t source);
  void run_indexer(Step& step, int64_t layer, int64_t source);
  void attend(Step& step, int64_t layer, int64_t source);
  void commit_window(Step& step, int64_t layer);
  // moe.cc
  void run_experts(Step& step, int64_t layer);

  std::shared_ptr<const Checkpoint> checkpoint_;
  ModelConfig config_;
  std::vector<int32_t> compressed_ids_;
  Backend* backend_;
  Options options_;
  ModelWeights weights_;
  PageLayout layout_;
  RopeTable plain_rope_;
  RopeTable compressed_rope_;
  EngramHash hash_;
  std::unique_ptr<PageAllocator> heap_pages_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace deepinfer
