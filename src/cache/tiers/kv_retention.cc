#include "cache/tiers/kv_retention.h"

#include <algorithm>

namespace deepinfer {

double KvRetention::longest_ttl() const { return *std::max_element(ttl_seconds.begin(), ttl_seconds.end()); }

Status KvRetention::validate() const {
  for (size_t i = 0; i < kCacheClassCount; ++i) {
    const std::string_view name = cache_class_name(static_cast<CacheClass>(i));
    // Written so that a NaN is refused.
    if (!(ttl_seconds[i] >= 0 && ttl_seconds[i] <= kMaxKvTtlSeconds)) {
      return Status::OutOfRange("ttl_seconds of {}: {}, must be from 0 to {}", name, ttl_seconds[i], kMaxKvTtlSeconds);
    }
    if (!(max_fraction[i] >= 0 && max_fraction[i] <= 1)) {
      return Status::OutOfRange("max_fraction of {}: {}, must be from 0 to 1", name, max_fraction[i]);
    }
  }
  return Status::Ok();
}

double kv_expiry(const KvRetention& retention, CacheClass cache_class, double now, double expiry_before) {
  return std::max(now + retention.ttl(cache_class), std::min(expiry_before, now + retention.longest_ttl()));
}

bool kv_expiry_is_stale(double expiry_before, double expiry, double ttl_seconds) {
  constexpr double kPrecision = 1.0 / 16;
  const double change = expiry > expiry_before ? expiry - expiry_before : expiry_before - expiry;
  return change > ttl_seconds * kPrecision;
}

}  // namespace deepinfer
