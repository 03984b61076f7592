#include "cache/tiers/tiers_core.h"

#include <algorithm>

#include "cache/tiers/tier_workers.h"

namespace deepinfer {

bool TierState::available() {
  const std::lock_guard lock(mutex);
  return steady_seconds() >= aside_until;
}

void TierState::missed_limit() {
  const std::lock_guard lock(mutex);
  const double now = steady_seconds();
  if (now < aside_until) return;
  ++stats.outages;
  aside_until = now + backoff;
  backoff = std::min(backoff * 2, 60.0);
}

void TierState::answered() {
  const std::lock_guard lock(mutex);
  aside_until = 0;
  backoff = 1;
}

double TiersCore::recompute_seconds(int64_t pages) const {
  return static_cast<double>(pages * options.page_positions) * options.prefill_seconds_per_token;
}

}  // namespace deepinfer
