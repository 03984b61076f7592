#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cache/tiers/tier_workers.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {

/// Write-back: a bounded queue and a thread for each tier, which writes in batches and, but to memory, at a limited rate. While a
/// write hangs nothing more is queued.
class TierWriter {
 public:
  explicit TierWriter(std::shared_ptr<TiersCore> core);

  /// As KvTiers::write_back and KvTiers::flush.
  void push(const KvStoreWrite& page);
  void flush();
  /// These pages of the tier were used. Dropped when too much waits.
  void touch(size_t tier, std::vector<PrefixKey> keys, CacheClass cache_class);
  /// As KvTiers::touch.
  void touch_all(std::span<const PrefixKey> keys, CacheClass cache_class);

  int64_t queued_pages() const;

 private:
  struct Queue;

  struct Batch;

  static Batch take(TierState& tier, Queue& queue, std::unique_lock<std::mutex>& lock, const TiersCore& core);
  static void drain(TiersCore& core, TierState& tier, Queue& queue);
  /// With the tier's mutex held: its thread has something to do.
  void wake(size_t tier);

  std::shared_ptr<TiersCore> core_;
  std::vector<std::shared_ptr<Queue>> queues_;         ///< of each tier
  std::vector<std::unique_ptr<TierWorkers>> threads_;  ///< of each tier
  std::mutex mutex_;
  boost::unordered_flat_map<PrefixKey, double, PrefixKeyHash> touched_;  ///< when, by the last page; TiersCore::now
};

}  // namespace deepinfer
