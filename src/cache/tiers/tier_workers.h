#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace deepinfer {

/// Seconds of the steady clock, which limits are of, and of the wall clock, which times to live are of.
double steady_seconds();
double wall_seconds();
std::chrono::steady_clock::time_point steady_point(double seconds);

/// Threads that may hang in a store for good. They own what they use, so whoever made them need not wait for them.
class TierWorkers {
 public:
  explicit TierWorkers(int64_t threads);
  /// Drops what has not begun, and waits for the threads, for two seconds at most.
  ~TierWorkers();
  TierWorkers(const TierWorkers&) = delete;
  TierWorkers& operator=(const TierWorkers&) = delete;

  void post(std::function<void()> job);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace deepinfer
