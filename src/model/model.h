#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "model/device_weights.h"
#include "model/engram_hash.h"
#include "model/rope_table.h"
#include "model/sequence_state.h"
#include "model/step_observer.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "telemetry/expert_load.h"

namespace deepinfer {

struct StepInputs;
struct StepSpan;

/// New tokens of one sequence in a step; they continue the state.
struct StepSequence {
  SequenceState* state = nullptr;
  int64_t count = 0;
  /// A window snapshot at position `save_at`, even, inside the new tokens or at their end: as if the step had ended there.
  /// nullptr: none.
  WindowSnapshot* save = nullptr;
  int64_t save_at = 0;
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
  /// Rows whose logits are wanted, ascending; none below its sequence's decoder_start.
  std::span<const int32_t> logit_rows;
  /// Logits stay where the backend has them, for `draw` and `fetch_logits`.
  bool logits_stay = false;
  /// Called with the number of a KV source in the page layout, ascending, before the first layer that reads or writes its rows:
  /// who still brings rows of a prefix into the pages waits here. nullptr: they are all there.
  const FunctionRef<void(int64_t source)>* before_source = nullptr;
};

/// What a step leaves; valid until the next step of the same model.
struct StepOutput {
  std::span<const float> logits;  ///< [logit_rows, vocab]; empty if they stay
  /// Rows x layers that really ran, before and from ModelConfig::first_decoder_layer on. A row that only left its global KV in
  /// the first decoder layer doesn't count there.
  int64_t encoder_row_layers = 0;
  int64_t decoder_row_layers = 0;
};

/// Rows of the last forward pass that stay, and whose taps become context of the draft (dspark.md §3.2).
struct DraftContext {
  SequenceState* state = nullptr;
  int64_t row = 0;       ///< in the batch of that pass
  int64_t position = 0;  ///< of that row
  int64_t count = 0;
  WindowSnapshot* save = nullptr;  ///< the snapshot that the pass saved at `save_at`, inside these rows: gets its draft rows
  int64_t save_at = 0;
};

/// A sequence that wants drafts: `anchor` is its last token, to sit at position state->length(), not yet run.
struct DraftSequence {
  const SequenceState* state = nullptr;
  int32_t anchor = 0;
  /// How the backend draws this sequence's drafts, if Model::draws; row, position and `certain` are not read. None: the caller
  /// picks them.
  std::optional<DrawRow> draw = {};
};

/// Chooses the tokens of draft position k = 0, 1, ...: logits [sequences, vocab], which it may change, to tokens [sequences]. The
/// token of k sits at state->length() + 1 + k. Of sequences with DraftSequence::draw there are no logits, and their tokens are
/// not looked at.
using DraftPick = FunctionRef<void(int64_t k, std::span<float> logits, std::span<int32_t> tokens)>;

/// Valid until the next draft of the same model.
struct DraftOutput {
  std::span<const int32_t> tokens;  ///< [sequences, length]
  std::span<const float>
      confidences;  ///< [sequences, length] logits: how sure it is that the token survives if those before it did
};

/// The network of spec/backbone §3-5, written once over `Backend`. One caller at a time.
class Model {
 public:
  struct Options {
    int64_t rollback_slack = 16;                       ///< positions that a sequence can take back: two draft blocks and a bit
    EngramMemory engram_memory = EngramMemory::kAuto;  ///< on a device
    double memory_utilization = 1.0;                   ///< part of a device's memory that may be used, by everybody together
    bool replay = true;                                ///< let a device record and replay steps; off: every step is launched anew
    std::function<void(int64_t done, int64_t total)> progress = {};  ///< of the weights on their way to a device
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
  /// A model computes for one caller at a time. Threads that share it, executors, hold this meanwhile.
  std::mutex& turn() { return turn_; }

  /// Makes room for the largest steps, so that none asks for memory later: steps of `rows` rows of any of `states`, empty and
  /// with borrowed pages, up to `length` positions, `logit_rows` of them with logits; drafts of `draft_length` tokens for all
  /// states. Nothing to do on host memory.
  void reserve(std::span<const std::unique_ptr<SequenceState>> states, int64_t rows, int64_t length, int64_t logit_rows,
               int64_t draft_length);

  /// An empty sequence. `pages` outlives it; nullptr: the model's own heap pages.
  std::unique_ptr<SequenceState> new_sequence(PageAllocator* pages = nullptr);
  /// An empty sequence whose pages the caller owns, appends and drops.
  std::unique_ptr<SequenceState> new_borrowing_sequence();

  /// Makes an empty sequence, whose pages hold the global rows of `tokens`, go on at `replay_from`: the next tokens it is given
  /// must be tokens[replay_from..], image embeddings included, which rebuilds windows and the open pair and writes no row of the
  /// prefix (spec §8.2). The windows it rebuilds are exact from position
  /// replay_from + (sliding_window - 1) * num_hidden_layers on, or everywhere if replay_from is 0. `image_mask`: as in StepBatch.
  /// On error the sequence has not changed.
  Status adopt_prefix(SequenceState& state, std::span<const int32_t> tokens, std::span<const uint8_t> image_mask,
                      int64_t replay_from);
  /// The same, but goes on behind `tokens` with the windows of `snapshot`, which was taken there: nothing is replayed, and what
  /// follows is bitwise what followed there. The sequence's decoder_start is the caller's to set again.
  Status adopt_prefix(SequenceState& state, std::span<const int32_t> tokens, std::span<const uint8_t> image_mask,
                      const WindowSnapshot& snapshot);

  /// Runs the batch and advances its sequences. On error no sequence has changed.
  Result<StepOutput> forward(const StepBatch& batch, StepObserver* observer = nullptr);

  /// Logits of the last forward pass [logit_rows, vocab], of which the host has those that were fetched: all of them, unless they
  /// stayed.
  std::span<const float> logits() const;
  /// Brings the logits of some rows (numbers in logit_rows, ascending) to the host.
  void fetch_logits(std::span<const int32_t> rows);
  /// Whether `draw` is there: the backend draws where the logits are.
  bool draws() const { return backend_->draws(); }
  /// Draws from rows of the last forward pass' logits: what sampling/sampler.h draws there, or kUndrawnToken. Valid until the
  /// next draw.
  std::span<const int32_t> draw(std::span<const DrawRow> rows);

  /// [rows, targets * hidden] of the last forward pass, copied from the backend's memory: DSpark taps (dspark.md §3.1); zero for
  /// rows below their sequence's decoder_start.
  std::vector<bf16> main_hidden() const;

  // The draft module, dspark.md §3: draft.cc. Nothing of it changes what `forward` computes.
  bool has_draft() const { return !weights_.draft.stages.empty(); }
  /// Fills the draft rings from the taps of the last forward pass. Rows may have been taken back since; what is given here must
  /// be part of its sequence. Rows below a decoder_start have no taps and are left out.
  Status extend_draft(std::span<const DraftContext> contexts, StepObserver* observer = nullptr);
  /// `length` drafts, at most a block, for each sequence, in one pass over all of them; sequences with DraftSequence::draw come
  /// first. If all have it, the host waits once, for all tokens and confidences together; else once more for each position. Where
  /// the rings lag behind, the block sees no context: poor drafts, never wrong answers.
  Result<DraftOutput> draft(std::span<const DraftSequence> sequences, int64_t length, DraftPick pick,
                            StepObserver* observer = nullptr);

  /// Layers, then draft stages. Any thread may look. A device counts by itself: up to the last collect_expert_load.
  const telemetry::ExpertLoad& expert_load() const { return expert_load_; }
  /// Asks the device what it has counted, which waits for it. Nothing to do on host memory.
  void collect_expert_load();

  /// Bytes of weights that a token at batch 1 reads: all dense weights and the active experts, `layers` only.
  int64_t active_weight_bytes() const;

 private:
  struct Step;
  struct Buffers;
  struct DraftRound;

  Model(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> compressed_ids, Backend* backend,
        const Options& options);

  Status check(const StepBatch& batch) const;
  int32_t compressed_id(int32_t token, bool image) const {
    return image ? EngramHash::kDead : compressed_ids_[static_cast<size_t>(token)];
  }
  /// Pages for the new positions of all sequences, or of none.
  Status reserve_pages(const StepBatch& batch) const;
  void prepare(const StepBatch& batch, Step& step);
  void upload_inputs(const Step& step);
  void run_layers(const StepBatch& batch, Step& step, StepOutput& output);
  void reserve_buffers(const Step& step);
  void reserve_logits(const Step& step);
  void reserve_inputs(StepInputs& in, int64_t rows) const;
  void begin_pre(Step& step);
  void compute_logits(const StepBatch& batch, const Step& step);
  void run_block(Step& step, int64_t layer);
  void collapse_and_norm(Step& step, const bf16* norm);
  void mix_streams(Step& step, const HyperMixWeights& w);
  /// From the output of the attention on; its expansion coefficients are in place. `next_norm`: that of the sublayer behind the
  /// block, if its input is made here too.
  void finish_block(Step& step, int64_t layer, const BlockWeights& w, int64_t experts_per_token, const bf16* next_norm);
  void tap_streams(Step& step, int64_t layer);
  // engram.cc
  void run_engram(Step& step, int64_t layer);
  int64_t engram_slots() const { return static_cast<int64_t>(config_.engram_layer_ids.size()); }
  bool gathers_ahead(const Step& step) const;
  void gather_ahead(Step& step);
  void gather_engram(const Step& step, const StepInputs& in, int64_t layer);
  bf16* engram_inputs(const Step& step, int64_t layer) const;
  // padding.cc
  bool can_replay(const StepBatch& batch, const StepObserver* observer) const;
  /// Whether calls that go over so many rows, and neither wait nor read back, are worth recording.
  bool replays(int64_t rows, const StepObserver* observer) const;
  /// Inputs of the rows behind the batch's own.
  void pad_inputs(const Step& step, StepInputs& in) const;
  /// Fills the list of copies up to `count`, the most that a step of its rows can have.
  static void pad_copies(const Step& step, int64_t count);
  /// Whether a snapshot is taken from the rings when the step is over, on a device, instead of layer by layer.
  bool saves_behind(const SequenceState& state, int64_t position, int64_t end) const;
  // narrow.cc
  Status check_logit_rows(const StepBatch& batch) const;
  /// Decides whether the step narrows, and makes the inputs of the rows that go on.
  void prepare_narrowing(Step& step);
  void narrow(Step& step);
  static void swap_kept(Buffers& b);
  // prefix.cc
  Status check_prefix(std::span<const int32_t> tokens, std::span<const uint8_t> image_mask) const;
  std::span<const int32_t> prefix_history(std::span<const int32_t> tokens, std::span<const uint8_t> image_mask, int64_t count);
  // attention.cc
  int64_t source_of(int64_t layer) const;  ///< number of its KV source in the page layout, -1 without
  void run_attention(Step& step, int64_t layer);
  void attention_inputs(Step& step, int64_t layer, const BlockWeights& w, const RopeRows& rotation);
  void rotated_attention(Step& step, const float* sinks, const RopeRows& rotation);
  void attention_output(Step& step, const BlockWeights& w);
  void run_compressor(Step& step, int64_t layer, int64_t source);
  void run_indexer(Step& step, int64_t layer, int64_t source);
  void attend(Step& step, int64_t layer, int64_t source, const RopeRows& rotation);
  void commit_window(Step& step, int64_t layer);
  /// Packed keys of the step's rows for a layer.
  uint8_t* fresh_window(const Step& step, int64_t layer) const;
  void run_experts(Step& step, int64_t layer, const BlockWeights& w, int64_t experts_per_token);
  // draft.cc
  void run_context(Step& step);
  static void begin_save_context(const StepSpan& span);
  Status check_draft(std::span<const DraftSequence> sequences, int64_t length) const;
  void reserve_draft(const DraftRound& round);
  void prepare_draft(Step& step, const DraftRound& round);
  /// The block pass and the heads of the positions that are asked for.
  void run_draft(Step& step, const DraftRound& round);
  void draft_block(Step& step);
  void draft_attention(Step& step, int64_t stage);
  /// Logits of one position, and the tokens that the backend draws.
  void draft_position(const DraftRound& round, int64_t k);
  void pick_position(const Step& step, const DraftRound& round, int64_t k, DraftPick pick);
  void draft_confidences(const DraftRound& round);

  std::shared_ptr<const Checkpoint> checkpoint_;
  ModelConfig config_;
  std::vector<int32_t> compressed_ids_;
  Backend* backend_;
  Options options_;
  ModelWeights weights_;
  DeviceWeights device_weights_;
  PageLayout layout_;
  RopeTable plain_rope_;
  RopeTable compressed_rope_;
  EngramHash hash_;
  telemetry::ExpertLoad expert_load_;
  std::vector<int64_t> expert_places_;  ///< [layers + 1] where a layer's experts begin among all
  std::unique_ptr<PageAllocator> heap_pages_;
  std::unique_ptr<Buffers> buffers_;
  std::mutex turn_;
};

}  // namespace deepinfer
