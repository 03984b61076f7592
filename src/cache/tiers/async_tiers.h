#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "cache/kv_tiers.h"

namespace deepinfer {

struct AsyncTiersOptions {
  double match_seconds = 0.05;                        ///< limit of a match as a whole
  double pull_seconds = 5;                            ///< limit of a pull, of whatever size
  double write_seconds = 10;                          ///< limit of writing a batch
  int64_t read_threads = 4;                           ///< for each tier
  int64_t write_queue_bytes = int64_t{256} << 20;     ///< for each tier
  double write_bytes_per_second = 512.0 * (1 << 20);  ///< for each tier but the host's memory
  std::array<bool, kCacheClassCount> writes_class = {true, true, true};
  std::function<double()> clock;  ///< that times to live are of, seconds since 1970, called by any thread; null: the wall clock

  /// Names the first field that is out of its range.
  Status validate() const;
};

/// `stores`: the fastest first. Each tier has threads for reads, one for lookups and one for writes, so that a store which hangs
/// holds up nobody else. A tier that misses a time limit is set aside, for a second at first and for up to a minute; one that
/// hangs in a write, until that is over.
Result<std::unique_ptr<KvTiers>> make_async_tiers(const KvPageShape& shape, std::vector<std::shared_ptr<KvStore>> stores,
                                                  const AsyncTiersOptions& options);

}  // namespace deepinfer
