#pragma once

#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "cache/tiers/async_tiers.h"

namespace deepinfer {

/// One store, and what is known of it.
struct TierState {
  std::shared_ptr<KvStore> store;
  bool in_memory = false;
  std::mutex mutex;  ///< of everything below
  KvTierStats stats;
  double aside_until = 0;  ///< on the steady clock, seconds
  double backoff = 1;      ///< how long the next outage sets it aside

  bool available();
  /// It hung: nobody asks it for a while, which gets longer each time.
  void missed_limit();
  void answered();
};

/// What lookups, pulls and writes share. Threads that hang in a store own it too, so it outlives the facade while they do.
struct TiersCore {
  KvPageShape shape;
  AsyncTiersOptions options;
  std::vector<std::unique_ptr<TierState>> tiers;  ///< the fastest first
  std::stop_source stop;                          ///< of writes: the facade is gone
  std::mutex mutex;
  KvTiersStats stats;  ///< without its tiers

  /// How long computing `pages` takes; 0: unknown.
  double recompute_seconds(int64_t pages) const;
};

}  // namespace deepinfer
