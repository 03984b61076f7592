#include "cache/tiers/write_queue.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "cache/tiers/tier_workers.h"

namespace deepinfer {

std::shared_ptr<const QueuedPage> copy_page(const KvStoreWrite& page) {
  auto copy = std::make_shared<QueuedPage>();
  copy->bytes.assign(page.page.begin(), page.page.end());
  copy->write = page;
  copy->write.page = copy->bytes;
  return copy;
}

struct WriteQueue::Batch {
  std::vector<std::shared_ptr<const QueuedPage>> pages;
  int64_t bytes = 0;
  std::vector<PrefixKey> touched;
  CacheClass touched_class = CacheClass::kChat;
};

struct WriteQueue::State {
  struct Touch {
    std::vector<PrefixKey> keys;
    CacheClass cache_class;
  };
  const std::shared_ptr<TiersCore> core;
  TierState& tier;
  mutable std::mutex mutex;  ///< of everything below
  std::condition_variable changed;
  std::deque<std::shared_ptr<const QueuedPage>> pages;
  std::deque<Touch> touches;
  int64_t bytes = 0;  ///< also of the batch being written
  bool writing = false;
  int64_t batches_done = 0;
  double may_write_at = 0;

  State(std::shared_ptr<TiersCore> c, size_t index) : core(std::move(c)), tier(*core->tiers[index]) {}
  bool idle() const { return pages.empty() && touches.empty() && !writing; }
};

WriteQueue::WriteQueue(std::shared_ptr<TiersCore> core, size_t tier) : state_(std::make_shared<State>(std::move(core), tier)) {}

bool WriteQueue::push(std::shared_ptr<const QueuedPage> page) {
  return push(std::move(page), state_->core->options.write_queue_bytes);
}

bool WriteQueue::offer(std::shared_ptr<const QueuedPage> page) {
  return push(std::move(page), state_->core->options.write_queue_bytes / 2);
}

bool WriteQueue::push(std::shared_ptr<const QueuedPage> page, int64_t most_bytes) {
  if (!state_->tier.available()) return false;
  const auto bytes = static_cast<int64_t>(page->bytes.size());
  const std::lock_guard lock(state_->mutex);
  if (state_->bytes + bytes > most_bytes) return false;
  state_->pages.push_back(std::move(page));
  state_->bytes += bytes;
  state_->changed.notify_all();
  return true;
}

void WriteQueue::touch(std::vector<PrefixKey> keys, CacheClass cache_class) {
  constexpr size_t kMostTouches = 256;  // prompts; a use that is not noted makes pages go early, no more
  if (keys.empty() || !state_->tier.available()) return;
  const std::lock_guard lock(state_->mutex);
  if (state_->touches.size() >= kMostTouches) return;
  state_->touches.push_back({.keys = std::move(keys), .cache_class = cache_class});
  state_->changed.notify_all();
}

void WriteQueue::wake() {
  const std::lock_guard lock(state_->mutex);
  state_->changed.notify_all();
}

int64_t WriteQueue::queued_pages() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int64_t>(state_->pages.size());
}

void WriteQueue::flush() {
  std::unique_lock lock(state_->mutex);
  // As long as something moves; a store that hangs is given up.
  for (int64_t before = -1; !state_->idle() && state_->batches_done != before;) {
    before = state_->batches_done;
    state_->changed.wait_for(lock, std::chrono::seconds(10), [this] { return state_->idle(); });
  }
}

bool WriteQueue::take(Batch& batch) {
  constexpr size_t kBatch = 32;
  State& s = *state_;
  const std::stop_token stop = s.core->stop.get_token();
  std::unique_lock lock(s.mutex);
  s.changed.wait(lock, [&] { return stop.stop_requested() || !s.pages.empty() || !s.touches.empty(); });
  if (stop.stop_requested()) return false;
  s.writing = true;
  if (!s.touches.empty()) {
    batch.touched = std::move(s.touches.front().keys);
    batch.touched_class = s.touches.front().cache_class;
    s.touches.pop_front();
    return true;
  }
  while (!s.pages.empty() && batch.pages.size() < kBatch) {
    batch.bytes += static_cast<int64_t>(s.pages.front()->bytes.size());
    batch.pages.push_back(std::move(s.pages.front()));
    s.pages.pop_front();
  }
  if (s.tier.in_memory) return true;
  while (!stop.stop_requested() && steady_seconds() < s.may_write_at) {
    s.changed.wait_until(lock, steady_point(std::min(s.may_write_at, steady_seconds() + 0.1)));
  }
  s.may_write_at =
      std::max(s.may_write_at, steady_seconds()) + static_cast<double>(batch.bytes) / s.core->options.write_bytes_per_second;
  return true;
}

void WriteQueue::write(const Batch& batch) {
  TierState& tier = state_->tier;
  const std::stop_token stop = state_->core->stop.get_token();
  Status status;
  if (batch.pages.empty()) {
    status = tier.store->touch(batch.touched, batch.touched_class, wall_seconds(), stop);
  } else {
    std::vector<KvStoreWrite> writes;
    for (const auto& page : batch.pages) writes.push_back(page->write);
    status = tier.store->write(writes, wall_seconds(), stop);
  }
  const std::lock_guard lock(tier.mutex);
  if (!status.ok()) {
    ++tier.stats.write_errors;
    tier.stats.last_error = status.message();
    return;
  }
  tier.stats.pages_written += static_cast<int64_t>(batch.pages.size());
  tier.stats.bytes_written += batch.bytes;
  tier.stats.pages_touched += static_cast<int64_t>(batch.touched.size());
}

void WriteQueue::run() {
  for (Batch batch; take(batch); batch = {}) {
    write(batch);
    const std::lock_guard lock(state_->mutex);
    state_->bytes -= batch.bytes;
    state_->writing = false;
    ++state_->batches_done;
    state_->changed.notify_all();
  }
}

}  // namespace deepinfer
