#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "engine/mask_threads.h"
#include "engine/step.h"
#include "model/model.h"

namespace deepinfer {

/// Runs commands on a model, in a thread of its own: one state per place, made when it is first used and kept.
class ModelExecutor final : public Executor {
 public:
  /// Both outlive the executor and are used by its thread alone. `pool` is the backend's: draws use it between the operators.
  ModelExecutor(Model* model, ThreadPool* pool, int64_t places);
  ~ModelExecutor() override;

  void submit(const StepCommand& command, StepResult& result) override;
  void wait() override;

 private:
  struct Job {
    const StepCommand* command = nullptr;
    StepResult* result = nullptr;
  };

  void work();
  void run(const StepCommand& command, StepResult& result);
  Status begin(const StepCommand& command, const StepRows& rows);
  Status run_forks(const StepCommand& command, const StepRows& rows);
  Result<StepOutput> forward(const StepCommand& command, const StepResult& result);
  void start_masks(const StepCommand& command);
  void finish_masks(StepResult& result);
  void draw(const StepCommand& command, const StepOutput& output, StepResult& result);
  void prompt_logprobs(const StepCommand& command, const StepOutput& output, StepResult& result);
  SequenceState& state(int32_t place);

  Model* model_;
  ThreadPool* pool_;
  std::vector<std::unique_ptr<SequenceState>> states_;
  // Of the step that runs.
  std::vector<int32_t> tokens_, logit_rows_;
  std::vector<StepSequence> sequences_;
  std::vector<int64_t> draw_logits_;    ///< per draw: which row of the logits
  std::vector<int64_t> prompt_logits_;  ///< per StepRows: where its rows of logits begin
  std::vector<uint32_t> masks_;         ///< of the constrained draws, one after the other
  std::vector<MaskRow> mask_rows_;      ///< one per constrained draw
  std::vector<int64_t> draw_order_;     ///< draws without a mask first
  std::vector<int64_t> draw_mask_;      ///< per draw: its entry of mask_rows_, or -1
  MaskThreads mask_threads_;
  std::vector<std::vector<float>> scratch_;  ///< per thread: logits that a sampler may change

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
