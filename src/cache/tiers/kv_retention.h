#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "cache/kv_cache_options.h"

namespace deepinfer {

/// How long, and in how much of a store, pages of a class are kept. Indexed by CacheClass.
struct KvRetention {
  /// Since the last use. 0: pages of the class are not stored at all.
  std::array<double, kCacheClassCount> ttl_seconds = {86400, 3 * 86400.0, 30 * 86400.0};
  /// Of the store's size. What is beyond it goes, the page that would expire first before the others.
  std::array<double, kCacheClassCount> max_fraction = {1, 1, 1};

  double ttl(CacheClass cache_class) const { return ttl_seconds[static_cast<size_t>(cache_class)]; }
  double longest_ttl() const;
  bool keeps(CacheClass cache_class) const { return ttl(cache_class) > 0; }
  /// Names the first field that is out of its range.
  Status validate() const;
};

/// A time to live is longer than that by mistake.
inline constexpr double kMaxKvTtlSeconds = 10 * 365 * 86400.0;

/// When a page used now expires; one that expires later already keeps its time, unless a clock that ran ahead gave it that.
double kv_expiry(const KvRetention& retention, CacheClass cache_class, double now, double expiry_before);
/// Whether a page needs a new expiry: writing one for each use would cost more than a little precision is worth.
bool kv_expiry_is_stale(double expiry_before, double expiry, double ttl_seconds);

}  // namespace deepinfer
