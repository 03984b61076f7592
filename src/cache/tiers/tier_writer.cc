#include "cache/tiers/tier_writer.h"

namespace deepinfer {

TierWriter::TierWriter(std::shared_ptr<TiersCore> core) : core_(std::move(core)) {
  for (size_t i = 0; i < core_->tiers.size(); ++i) {
    queues_.push_back(std::make_shared<WriteQueue>(core_, i));
    threads_.push_back(std::make_unique<TierWorkers>(1));
    threads_.back()->post([queue = queues_.back()] { queue->run(); });
  }
}

TierWriter::~TierWriter() {
  core_->stop.request_stop();
  for (const auto& queue : queues_) queue->wake();
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
  const std::shared_ptr<const QueuedPage> copy = copy_page(page);
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i]->push(copy)) continue;
    TierState& tier = *core_->tiers[i];
    const std::lock_guard lock(tier.mutex);
    ++tier.stats.pages_dropped;
  }
}

void TierWriter::touch(const std::vector<PrefixKey>& keys, CacheClass cache_class) {
  for (const auto& queue : queues_) queue->touch(keys, cache_class);
}

void TierWriter::flush() {
  for (const auto& queue : queues_) queue->flush();
}

int64_t TierWriter::queued_pages() const {
  int64_t pages = 0;
  for (const auto& queue : queues_) pages += queue->queued_pages();
  return pages;
}

}  // namespace deepinfer
