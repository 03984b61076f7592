#include "cache/tiers/tiers_core.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/tiers/tier_workers.h"

namespace deepinfer {

double TiersCore::now() const { return options.clock != nullptr ? options.clock() : wall_seconds(); }

bool TierState::available(double write_limit) {
  const std::lock_guard lock(mutex);
  return usable(write_limit);
}

bool TierState::usable(double write_limit) {
  const double now = steady_seconds();
  if (write_began > 0 && !write_hangs && now - write_began > write_limit) {
    write_hangs = true;
    ++stats.outages;
    stats.last_error = fmt::format("a write has taken more than {} s", write_limit);
  }
  return !write_hangs && now >= aside_until;
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

}  // namespace deepinfer
