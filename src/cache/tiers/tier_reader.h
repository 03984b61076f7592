#pragma once

#include <memory>
#include <vector>

#include "cache/tiers/tier_workers.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {

/// Pulls: reads groups of pages from the tiers, several at once, into memory that stays the caller's even when a store hangs.
class TierReader {
 public:
  explicit TierReader(std::shared_ptr<TiersCore> core);

  /// As KvTiers::pull.
  std::unique_ptr<KvPull> start(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages);

 private:
  std::shared_ptr<TiersCore> core_;
  std::vector<std::unique_ptr<TierWorkers>> threads_;  ///< of each tier
};

}  // namespace deepinfer
