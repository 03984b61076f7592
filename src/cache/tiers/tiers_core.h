#pragma once

#include <atomic>
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
  double probe_at = 0;     ///< when a pull that seems not to be worth it is let through, to measure anew

  bool available();
  /// It hung: nobody asks it for a while, which gets longer each time.
  void missed_limit();
  void answered();
  /// A pull got `bytes` from it in `seconds`, the first ones after `latency`.
  void measured(int64_t bytes, double seconds, double latency);
  /// A pull was given up when it had got `bytes` in `seconds`.
  void measured_at_most(int64_t bytes, double seconds);
  /// How long a pull of `bytes` would take; 0: not known yet.
  double pull_seconds(int64_t bytes);
  /// Now and then true.
  bool may_probe();
};

/// What lookups, pulls and writes share. Threads that hang in a store own it too, so it outlives the facade while they do.
struct TiersCore {
  KvPageShape shape;
  AsyncTiersOptions options;
  std::vector<std::unique_ptr<TierState>> tiers;  ///< the fastest first
  std::stop_source stop;                          ///< of writes: the facade is gone
  std::mutex mutex;
  KvTiersStats stats;  ///< without its tiers

  std::atomic<double> prefill_seconds_per_token{0};

  /// How long computing `pages` takes; 0: unknown.
  double recompute_seconds(int64_t pages) const;
};

}  // namespace deepinfer
