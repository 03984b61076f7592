#include "cache/tiers/tier_writer.h"

#include <algorithm>
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
  std::condition_variable changed;
  std::deque<std::shared_ptr<const QueuedPage>> pages;
  int64_t bytes = 0;  ///< also of the batch being written
  bool writing = false;
  double may_write_at = 0;
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
    if (queue.bytes + bytes > core_->options.write_queue_bytes || steady_seconds() < tier.aside_until) {
      ++tier.stats.pages_dropped;
      continue;
    }
    queue.pages.push_back(copy);
    queue.bytes += bytes;
    if (!std::exchange(queue.writing, true)) {
      threads_[i]->post([core = core_, i, q = queues_[i]] { drain(*core, *core->tiers[i], *q); });
    }
  }
}

void TierWriter::flush() {
  for (size_t i = 0; i < core_->tiers.size(); ++i) {
    TierState& tier = *core_->tiers[i];
    Queue& queue = *queues_[i];
    std::unique_lock lock(tier.mutex);
    int64_t before = -1;
    // As long as something moves; a store that hangs is given up.
    while (queue.writing && tier.stats.pages_written + tier.stats.write_errors != before) {
      before = tier.stats.pages_written + tier.stats.write_errors;
      queue.changed.wait_for(lock, std::chrono::seconds(10), [&] { return !queue.writing; });
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

void TierWriter::drain(TiersCore& core, TierState& tier, Queue& queue) {
  constexpr size_t kBatch = 32;
  const std::stop_token stop = core.stop.get_token();
  for (;;) {
    std::vector<std::shared_ptr<const QueuedPage>> batch;
    std::vector<KvStoreWrite> writes;
    int64_t bytes = 0;
    {
      std::unique_lock lock(tier.mutex);
      if (stop.stop_requested() || queue.pages.empty()) {
        queue.writing = false;
        queue.changed.notify_all();
        return;
      }
      while (!queue.pages.empty() && batch.size() < kBatch) {
        batch.push_back(std::move(queue.pages.front()));
        queue.pages.pop_front();
      }
      for (const auto& page : batch) {
        writes.push_back(page->write);
        bytes += static_cast<int64_t>(page->bytes.size());
      }
      if (!tier.in_memory) {
        while (!stop.stop_requested() && steady_seconds() < queue.may_write_at) {
          queue.changed.wait_until(lock, steady_point(std::min(queue.may_write_at, steady_seconds() + 0.1)));
        }
        queue.may_write_at =
            std::max(queue.may_write_at, steady_seconds()) + static_cast<double>(bytes) / core.options.write_bytes_per_second;
      }
    }
    const Status status = tier.store->write(writes, wall_seconds(), stop);
    const std::lock_guard lock(tier.mutex);
    queue.bytes -= bytes;
    if (status.ok()) {
      tier.stats.pages_written += static_cast<int64_t>(batch.size());
      tier.stats.bytes_written += bytes;
    } else {
      ++tier.stats.write_errors;
      tier.stats.last_error = status.message();
    }
  }
}

}  // namespace deepinfer
