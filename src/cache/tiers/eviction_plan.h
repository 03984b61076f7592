#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cache/tiers/kv_retention.h"

namespace deepinfer {

/// Which pages go so that a store and each of its classes are within their sizes: those that would expire first. Pages are told
/// twice, first to `add`, then to `evicts`; what they need in between doesn't grow with their number, as times to live are
/// counted by 1024ths of the longest.
class EvictionPlan {
 public:
  /// `capacity_bytes` 0: no limit.
  EvictionPlan(int64_t capacity_bytes, const KvRetention& retention, double now);

  void add(CacheClass cache_class, double expiry, int64_t bytes);
  /// After the last `add`. False: everything is within its size. What is beyond it is brought somewhat below, or the next pages
  /// would be too many again at once.
  bool decide();
  /// Whether this page goes; the answer is counted.
  bool evicts(CacheClass cache_class, double expiry, int64_t bytes);

 private:
  static constexpr size_t kBuckets = 1024;
  using Buckets = std::array<std::vector<int64_t>, kCacheClassCount>;  ///< bytes

  size_t bucket(double expiry) const;

  const int64_t capacity_;
  const KvRetention retention_;
  const double now_;
  Buckets held_, going_;
};

}  // namespace deepinfer
