#pragma once

#include <memory>
#include <vector>

#include "cache/tiers/tier_workers.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {

/// Write-back: a bounded queue and a thread for each tier, which writes in batches and, but to memory, at a limited rate.
class TierWriter {
 public:
  explicit TierWriter(std::shared_ptr<TiersCore> core);

  /// As KvTiers::write_back and KvTiers::flush.
  void push(const KvStoreWrite& page);
  void flush();

  int64_t queued_pages() const;

 private:
  struct Queue;

  static void drain(TiersCore& core, TierState& tier, Queue& queue);

  std::shared_ptr<TiersCore> core_;
  std::vector<std::shared_ptr<Queue>> queues_;         ///< of each tier
  std::vector<std::unique_ptr<TierWorkers>> threads_;  ///< of each tier
};

}  // namespace deepinfer
