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
  double aside_until = 0;    ///< on the steady clock, seconds
  double backoff = 1;        ///< how long the next outage sets it aside
  double write_began = 0;    ///< of the batch that is being written; 0: none is
  bool write_hangs = false;  ///< it has missed its limit and is not over yet

  /// Whether anybody should ask it. Nobody does while a write hangs.
  bool available(double write_limit);
  /// The same with the mutex held.
  bool usable(double write_limit);
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

  /// On the clock that times to live are of.
  double now() const;
  bool available(size_t tier) const { return tiers[tier]->available(options.write_seconds); }
};

}  // namespace deepinfer
