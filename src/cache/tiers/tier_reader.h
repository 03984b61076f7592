#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cache/tiers/tier_workers.h"
#include "cache/tiers/tier_writer.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {

struct PullState;

/// Pulls: reads groups of pages from the tiers, several at once, into memory that stays the caller's even when a store hangs.
/// Learns from each how fast its tiers are.
class TierReader {
 public:
  /// `writer`: gets what was read, to touch it. Pages go up into the host's memory without it.
  TierReader(std::shared_ptr<TiersCore> core, std::weak_ptr<TierWriter> writer);

  /// As KvTiers::pull, pull_seconds and probe.
  std::unique_ptr<KvPull> start(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                                const KvPullTerms& terms);
  double estimate(const KvTierMatch& match) const;
  void probe(const KvTierMatch& match, std::span<const PrefixKey> keys);

 private:
  struct Probe {
    std::shared_ptr<PullState> last;  ///< nothing: none yet
    double next_at = 0;               ///< on the steady clock, seconds
  };

  void begin(const std::shared_ptr<PullState>& state);

  std::shared_ptr<TiersCore> core_;
  std::weak_ptr<TierWriter> writer_;
  std::vector<std::unique_ptr<TierWorkers>> threads_;  ///< of each tier
  std::mutex mutex_;
  std::vector<Probe> probes_;  ///< of each tier
};

}  // namespace deepinfer
