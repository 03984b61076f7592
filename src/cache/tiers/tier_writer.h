#pragma once

#include <memory>
#include <vector>

#include "cache/tiers/tier_workers.h"
#include "cache/tiers/tiers_core.h"
#include "cache/tiers/write_queue.h"

namespace deepinfer {

/// Write-back: a queue and a thread for each tier.
class TierWriter {
 public:
  explicit TierWriter(std::shared_ptr<TiersCore> core);
  ~TierWriter();
  TierWriter(const TierWriter&) = delete;
  TierWriter& operator=(const TierWriter&) = delete;

  /// As KvTiers::write_back, touch and flush.
  void push(const KvStoreWrite& page);
  void touch(const std::vector<PrefixKey>& keys, CacheClass cache_class);
  void flush();

  int64_t queued_pages() const;
  /// One for each tier.
  const std::vector<std::shared_ptr<WriteQueue>>& queues() const { return queues_; }

 private:
  std::shared_ptr<TiersCore> core_;
  std::vector<std::shared_ptr<WriteQueue>> queues_;
  std::vector<std::unique_ptr<TierWorkers>> threads_;
};

}  // namespace deepinfer
