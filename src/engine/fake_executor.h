#pragma once

#include <functional>
#include <unordered_map>

#include "engine/step.h"

namespace deepinfer {

/// A device without a model: every step takes a set time and draws set tokens. For measuring what the host costs, and for tests
/// and servers that need no weights.
class FakeExecutor final : public Executor {
 public:
  struct Options {
    double seconds_per_step = 0;
    /// The token that a sequence draws, from its number among the sequences of the engine and the position of the token. Not
    /// given: always token 10.
    std::function<int32_t(uint64_t sequence, int64_t position)> token;
    /// How many drafts are accepted, of those that are offered behind the row before `position`. Not given: none.
    std::function<int64_t(uint64_t sequence, int64_t position)> accepted;
    /// The step with this number fails; -1: none does.
    int64_t failing_step = -1;
  };
  explicit FakeExecutor(Options options) : options_(std::move(options)) {}
  FakeExecutor() : FakeExecutor(Options{}) {}

  void submit(const StepCommand& command, StepResult& result) override;
  void wait() override;

 private:
  struct Job {
    const StepCommand* command = nullptr;
    StepResult* result = nullptr;
  };

  Options options_;
  Job queue_[2];
  int queued_ = 0;
  std::unordered_map<uint64_t, int64_t> ends_;  ///< positions that each sequence has run
  double free_at_ = 0;                          ///< when the device has done what was submitted
};

}  // namespace deepinfer
