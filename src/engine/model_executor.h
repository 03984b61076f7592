#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "engine/draft_policy.h"
#include "engine/mask_threads.h"
#include "engine/step.h"
#include "model/model.h"
#include "ops/page_copies.h"

namespace deepinfer {

/// Runs commands on a model, in a thread of its own: one state per place, made when it is first used and kept.
class ModelExecutor final : public Executor {
 public:
  /// Both outlive the executor and are used by its thread alone. `pool` is the backend's: draws use it between the operators.
  /// `states`: of the first places, made before; the others are made when they are needed.
  ModelExecutor(Model* model, ThreadPool* pool, int64_t places, const DraftPolicy::Options& drafts,
                std::vector<std::unique_ptr<SequenceState>> states = {});
  ModelExecutor(Model* model, ThreadPool* pool, int64_t places) : ModelExecutor(model, pool, places, DraftPolicy::Options{}) {}
  ~ModelExecutor() override;

  /// For tests and measurements: may replace the drafts of a sequence, of which the first is for `position`, and their
  /// confidences. Before the first command.
  using ReplaceDrafts =
      std::function<void(uint64_t sequence, int64_t position, std::span<int32_t> drafts, std::span<float> confidences)>;
  void replace_drafts(ReplaceDrafts replace) { replace_drafts_ = std::move(replace); }
  /// For measurements: what became of the drafts of a sequence. Before the first command; called by the executor's thread.
  struct DraftTrace {
    uint64_t sequence = 0;
    int64_t position = 0;  ///< of the first draft
    std::span<const int32_t> tokens;
    std::span<const float> confidences;
    int64_t verified = 0, accepted = 0;
  };
  void trace_drafts(std::function<void(const DraftTrace&)> trace) { trace_drafts_ = std::move(trace); }

  /// Sets a fence behind each command, for copies of its pages. Before the first command.
  void set_page_copies(PageCopies* copies) { copies_ = copies; }

  void submit(const StepCommand& command, StepResult& result) override;
  void wait() override;

 private:
  struct Job {
    const StepCommand* command = nullptr;
    StepResult* result = nullptr;
  };

  /// One StepRows of the command that runs, with what only the device knows.
  struct LiveRows {
    int64_t first = 0;        ///< position
    int64_t count = 0;        ///< 0: the answer has ended
    int64_t drafts = 0;       ///< verified behind them
    int64_t row = 0;          ///< in the batch
    int64_t logits = 0;       ///< first row of its logits,
    int64_t draw_logits = 0;  ///< and the one that its first draw reads
    int64_t offer = -1;       ///< in offers_
  };

  void work();
  void run(const StepCommand& command, StepResult& result);
  Status begin(const StepCommand& command, const StepRows& rows);
  Status run_forks(const StepCommand& command, const StepRows& rows);
  static void forget(LiveRows& live);
  void find_rows(const StepCommand& command);
  Status draft(const StepCommand& command);
  void offer_drafts(const StepRows& rows, size_t at, bool drawn);
  void pick_drafts(const StepCommand& command, int64_t k, std::span<float> logits, std::span<int32_t> tokens);
  Result<StepOutput> forward(const StepCommand& command, StepResult& result);
  void start_masks(const StepCommand& command);
  void finish_masks(StepResult& result);
  void draw(const StepCommand& command, StepResult& result);
  void draw_tokens(const StepDraw& draw, const LiveRows& rows, std::span<const uint32_t> masks, std::vector<float>& scratch,
                   DrawResult& drawn, StepResult& result);
  bool device_draws(const DeviceSequence& device) const;
  static DrawRow draw_row(const SamplingParams& params);
  bool draw_on_device(const StepCommand& command, const StepResult& result);
  Status settle_drafts(const StepCommand& command, DraftPolicy::Kind kind, StepResult& result);
  void prompt_logprobs(const StepCommand& command, StepResult& result);
  SequenceState& state(int32_t place);

  Model* model_;
  ThreadPool* pool_;
  PageCopies* copies_ = nullptr;
  std::vector<std::unique_ptr<SequenceState>> states_;
  // Of the step that runs.
  std::vector<int32_t> tokens_, logit_rows_;
  std::vector<StepSequence> sequences_;
  std::vector<LiveRows> live_;          ///< per StepRows
  std::vector<size_t> draw_rows_;       ///< per draw: its StepRows
  std::vector<uint32_t> masks_;         ///< of the constrained draws, one after the other
  std::vector<MaskRow> mask_rows_;      ///< one per constrained draw
  std::vector<int64_t> draw_order_;     ///< draws without a mask first
  std::vector<int64_t> draw_mask_;      ///< per draw: its entry of mask_rows_, or -1
  std::vector<DrawRow> device_rows_;    ///< draws that the device makes,
  std::vector<int64_t> device_places_;  ///< the token in StepResult::tokens that each is for,
  std::vector<int32_t> device_tokens_;  ///< and per such token what was drawn, or kUndrawnToken
  std::vector<int32_t> fetched_;        ///< rows of logits that the host needs
  MaskThreads mask_threads_;
  std::vector<std::vector<float>> scratch_;  ///< per thread: logits that a sampler may change
  // Speculative decoding.
  DraftPolicy policy_;
  ReplaceDrafts replace_drafts_;
  std::function<void(const DraftTrace&)> trace_drafts_;
  std::vector<size_t> drafting_;  ///< per offer: its StepRows
  std::vector<DraftSequence> draft_sequences_;
  std::vector<DraftOffer> offers_;
  std::vector<int64_t> drafts_in_form_;  ///< per offer: drafts that its form has taken
  std::vector<uint32_t> draft_masks_;    ///< [threads, words]
  std::vector<int32_t> draft_tokens_;    ///< [offers, draft_width_]
  std::vector<float> draft_confidences_;
  std::vector<DraftContext> contexts_;
  int64_t draft_width_ = 0;
  size_t drafts_drawn_ = 0;  ///< offers, the first ones, whose drafts the device draws
  int64_t uncollected_ = 0;  ///< steps since the device was asked for its expert counts

  std::mutex mutex_;
  std::condition_variable queued_, finished_;
  std::deque<Job> queue_;
  int64_t submitted_ = 0, done_ = 0, waited_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

/// Seconds on the clock of steps.
double step_clock();

}  // namespace deepinfer
