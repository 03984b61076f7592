#include "cache/tiers/tier_writer.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace deepinfer {
namespace {

/// A page that waits to be written; the tiers share the copy.
struct QueuedPage {
  KvStoreWrite write;
  std::vector<uint8_t> bytes;
};

}  // namespace

/// The mutex of its tier guards it, as what is counted and what is queued change together.
struct TierWriter::Queue {
  struct Touch {
    std::vector<PrefixKey> keys;
    CacheClass cache_class = CacheClass::kChat;
  };
  std::condition_variable changed;
  std::deque<std::shared_ptr<const QueuedPage>> pages;
  int64_t bytes = 0;  ///< also of the batch being written
  std::vector<Touch> touches;
  size_t touched_keys = 0;  ///< in `touches`
  bool writing = false;
  double may_write_at = 0;

  /// Forgets the pages that wait; says how many.
  int64_t drop() {
    for (const auto& page : pages) bytes -= static_cast<int64_t>(page->bytes.size());
    const auto dropped = static_cast<int64_t>(pages.size());
    pages.clear();
    return dropped;
  }
};

/// What one turn of the thread does.
struct TierWriter::Batch {
  std::vector<Queue::Touch> touches;
  std::vector<std::shared_ptr<const QueuedPage>> pages;
  std::vector<KvStoreWrite> writes;
  int64_t bytes = 0;
};

TierWriter::TierWriter(std::shared_ptr<TiersCore> core) : core_(std::move(core)) {
  for (size_t i = 0; i < core_->tiers.size(); ++i) {
    queues_.push_back(std::make_shared<Queue>());
    threads_.push_back(std::make_unique<TierWorkers>(1));
  }
}

void TierWriter::push(const KvStoreWrite& page) {
  {
    const std::lock_guard lock(core_->mutex);
    if (!core_->options.writes_class[static_cast<size_t>(page.cache_class)]) {
      ++core_->stats.pages_filtered;
      return;
    }
    ++core_->stats.pages_retained;
  }
  auto copy = std::make_shared<QueuedPage>();
  copy->bytes.assign(page.page.begin(), page.page.end());
  copy->write = page;
  copy->write.page = copy->bytes;
  const auto bytes = static_cast<int64_t>(copy->bytes.size());
  for (size_t i = 0; i < core_->tiers.size(); ++i) {
    TierState& tier = *core_->tiers[i];
    Queue& queue = *queues_[i];
    const std::lock_guard lock(tier.mutex);
    const bool usable = tier.usable(core_->options.write_seconds);
    // What waits behind a write that hangs may wait for ever.
    if (tier.write_hangs) tier.stats.pages_dropped += queue.drop();
    if (!usable || queue.bytes + bytes > core_->options.write_queue_bytes) {
      ++tier.stats.pages_dropped;
      continue;
    }
    queue.pages.push_back(copy);
    queue.bytes += bytes;
    wake(i);
  }
}

void TierWriter::touch(size_t tier, std::vector<PrefixKey> keys, CacheClass cache_class) {
  constexpr size_t kMaxKeys = 65536;
  Queue& queue = *queues_[tier];
  const std::lock_guard lock(core_->tiers[tier]->mutex);
  if (queue.touched_keys + keys.size() > kMaxKeys) return;
  queue.touched_keys += keys.size();
  queue.touches.push_back({std::move(keys), cache_class});
  wake(tier);
}

void TierWriter::touch_all(std::span<const PrefixKey> keys, CacheClass cache_class) {
  constexpr double kInterval = 10;
  constexpr size_t kMaxRemembered = 16384;
  if (keys.empty()) return;
  {
    const double now = core_->now();
    const std::lock_guard lock(mutex_);
    if (touched_.size() >= kMaxRemembered) touched_.clear();
    const auto [last, added] = touched_.try_emplace(keys.back(), now);
    if (!added && std::abs(now - last->second) < kInterval) return;  // or a clock that was set back would stop it
    last->second = now;
  }
  for (size_t tier = 0; tier < queues_.size(); ++tier) touch(tier, {keys.begin(), keys.end()}, cache_class);
}

void TierWriter::wake(size_t i) {
  if (std::exchange(queues_[i]->writing, true)) return;
  threads_[i]->post([core = core_, i, queue = queues_[i]] { drain(*core, *core->tiers[i], *queue); });
}

void TierWriter::flush() {
  for (size_t i = 0; i < core_->tiers.size(); ++i) {
    TierState& tier = *core_->tiers[i];
    Queue& queue = *queues_[i];
    std::unique_lock lock(tier.mutex);
    int64_t before = -1;
    // As long as something moves; a store that hangs is given up.
    while (queue.writing && tier.usable(core_->options.write_seconds) &&
           tier.stats.pages_written + tier.stats.write_errors != before) {
      before = tier.stats.pages_written + tier.stats.write_errors;
      queue.changed.wait_for(lock, std::chrono::duration<double>(core_->options.write_seconds), [&] { return !queue.writing; });
    }
  }
}

int64_t TierWriter::queued_pages() const {
  int64_t pages = 0;
  for (size_t i = 0; i < core_->tiers.size(); ++i) {
    const std::lock_guard lock(core_->tiers[i]->mutex);
    pages += static_cast<int64_t>(queues_[i]->pages.size());
  }
  return pages;
}

TierWriter::Batch TierWriter::take(TierState& tier, Queue& queue, std::unique_lock<std::mutex>& lock, const TiersCore& core) {
  constexpr size_t kPages = 32;
  const std::stop_token stop = core.stop.get_token();
  Batch batch;
  batch.touches = std::exchange(queue.touches, {});
  queue.touched_keys = 0;
  while (!queue.pages.empty() && batch.pages.size() < kPages) {
    batch.pages.push_back(std::move(queue.pages.front()));
    queue.pages.pop_front();
  }
  for (const auto& page : batch.pages) {
    batch.writes.push_back(page->write);
    batch.bytes += static_cast<int64_t>(page->bytes.size());
  }
  if (!tier.in_memory && !batch.pages.empty()) {
    while (!stop.stop_requested() && steady_seconds() < queue.may_write_at)
      queue.changed.wait_until(lock, steady_point(std::min(queue.may_write_at, steady_seconds() + 0.1)));
    queue.may_write_at =
        std::max(queue.may_write_at, steady_seconds()) + static_cast<double>(batch.bytes) / core.options.write_bytes_per_second;
  }
  return batch;
}

void TierWriter::drain(TiersCore& core, TierState& tier, Queue& queue) {
  const std::stop_token stop = core.stop.get_token();
  std::unique_lock lock(tier.mutex);
  while (!stop.stop_requested() && (!queue.pages.empty() || !queue.touches.empty())) {
    const Batch batch = take(tier, queue, lock, core);
    tier.write_began = steady_seconds();
    lock.unlock();
    int64_t touched = 0;
    for (const Queue::Touch& touch : batch.touches) {
      if (tier.store->touch(touch.keys, touch.cache_class, core.now(), stop).ok())
        touched += static_cast<int64_t>(touch.keys.size());
    }
    const Status status = batch.writes.empty() ? Status::Ok() : tier.store->write(batch.writes, core.now(), stop);
    lock.lock();
    tier.write_began = 0;
    tier.write_hangs = false;
    tier.stats.pages_touched += touched;
    queue.bytes -= batch.bytes;
    if (!status.ok()) {
      ++tier.stats.write_errors;
      tier.stats.last_error = status.message();
    } else {
      tier.stats.pages_written += static_cast<int64_t>(batch.pages.size());
      tier.stats.bytes_written += batch.bytes;
    }
  }
  queue.writing = false;
  queue.changed.notify_all();
}

}  // namespace deepinfer
