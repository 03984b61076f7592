#include "cache/tiers/tier_workers.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace deepinfer {

using SteadyClock = std::chrono::steady_clock;

double steady_seconds() { return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count(); }
double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }
SteadyClock::time_point steady_point(double seconds) {
  return SteadyClock::time_point(std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds)));
}

struct TierWorkers::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  int64_t alive = 0;
  bool stopped = false;
};

TierWorkers::TierWorkers(int64_t threads) : state_(std::make_shared<State>()) {
  state_->alive = threads;
  for (int64_t i = 0; i < threads; ++i) std::thread(&TierWorkers::run, state_).detach();
}

TierWorkers::~TierWorkers() {
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  state_->jobs.clear();
  state_->changed.notify_all();
  state_->changed.wait_for(lock, std::chrono::seconds(2), [this] { return state_->alive == 0; });
}

void TierWorkers::post(std::function<void()> job) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopped) return;
  state_->jobs.push_back(std::move(job));
  state_->changed.notify_one();
}

void TierWorkers::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->stopped || !state->jobs.empty(); });
    if (state->stopped) break;
    std::function<void()> job = std::move(state->jobs.front());
    state->jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
  --state->alive;
  state->changed.notify_all();
}

}  // namespace deepinfer
