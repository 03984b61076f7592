#include "cache/tiers/eviction_plan.h"

#include <algorithm>
#include <numeric>

namespace deepinfer {
namespace {

constexpr double kFill = 0.9;  ///< of a size that was exceeded

int64_t sum(const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

/// How much has to go of `used` bytes.
int64_t excess(int64_t used, double limit) {
  return static_cast<double>(used) <= limit ? 0 : used - static_cast<int64_t>(limit * kFill);
}

}  // namespace

EvictionPlan::EvictionPlan(int64_t capacity_bytes, const KvRetention& retention, double now)
    : capacity_(capacity_bytes), retention_(retention), now_(now) {
  for (Buckets* buckets : {&held_, &going_}) {
    for (std::vector<int64_t>& bytes : *buckets) bytes.assign(kBuckets, 0);
  }
}

size_t EvictionPlan::bucket(double expiry) const {
  const double longest = retention_.longest_ttl();
  if (!(longest > 0)) return 0;
  const double place = (expiry - now_) / longest * static_cast<double>(kBuckets);
  return static_cast<size_t>(std::clamp(place, 0.0, static_cast<double>(kBuckets - 1)));
}

void EvictionPlan::add(CacheClass cache_class, double expiry, int64_t bytes) {
  held_[static_cast<size_t>(cache_class)][bucket(expiry)] += bytes;
}

bool EvictionPlan::decide() {
  if (capacity_ <= 0) return false;
  const auto capacity = static_cast<double>(capacity_);
  int64_t held = 0, going = 0;
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    const int64_t of_class = sum(held_[c]);
    held += of_class;
    int64_t left = excess(of_class, capacity * retention_.max_fraction[c]);
    for (size_t b = 0; b < kBuckets && left > 0; ++b) {
      going_[c][b] = std::min(held_[c][b], left);
      left -= going_[c][b];
      going += going_[c][b];
    }
  }
  int64_t left = excess(held - going, capacity);
  for (size_t b = 0; b < kBuckets && left > 0; ++b) {
    for (size_t c = 0; c < kCacheClassCount && left > 0; ++c) {
      const int64_t more = std::min(held_[c][b] - going_[c][b], left);
      going_[c][b] += more;
      left -= more;
      going += more;
    }
  }
  return going > 0;
}

bool EvictionPlan::evicts(CacheClass cache_class, double expiry, int64_t bytes) {
  int64_t& going = going_[static_cast<size_t>(cache_class)][bucket(expiry)];
  if (going <= 0) return false;
  going -= bytes;
  return true;
}

}  // namespace deepinfer
