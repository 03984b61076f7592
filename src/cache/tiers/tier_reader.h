#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cache/tiers/tier_workers.h"
#include "cache/tiers/tier_writer.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {

/// Pulls: reads groups of pages from the tiers, several at once, into memory that stays the caller's even when a store hangs.
class TierReader {
 public:
  /// `queues`: of each tier. Pages that a slower tier gave are offered to the faster ones.
  TierReader(std::shared_ptr<TiersCore> core, std::vector<std::shared_ptr<WriteQueue>> queues);

  /// As KvTiers::pull.
  std::unique_ptr<KvPull> start(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages);

 private:
  std::function<void()> promotion_of(const KvTierMatch& match, const std::vector<PrefixKey>& keys) const;

  std::shared_ptr<TiersCore> core_;
  std::shared_ptr<const std::vector<std::shared_ptr<WriteQueue>>> queues_;
  // Of each tier:
  std::vector<std::shared_ptr<TierWorkers>> threads_;
  std::vector<std::shared_ptr<TierWorkers>> promoters_;
};

}  // namespace deepinfer
