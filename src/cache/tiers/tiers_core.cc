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

namespace {
void blend(double& estimate, double measured) {
  constexpr double kNew = 0.25;
  estimate = estimate == 0 ? measured : (1 - kNew) * estimate + kNew * measured;
}
}  // namespace

void TierState::measured(int64_t bytes, double seconds, double latency) {
  const std::lock_guard lock(mutex);
  if (bytes <= 0 || !(seconds > 0)) return;
  blend(stats.bytes_per_second, static_cast<double>(bytes) / seconds);
  blend(stats.latency_seconds, latency);
}

void TierState::measured_at_most(int64_t bytes, double seconds) {
  const std::lock_guard lock(mutex);
  if (!(seconds > 0)) return;
  const double rate = static_cast<double>(std::max<int64_t>(bytes, 1)) / seconds;
  if (stats.bytes_per_second == 0 || rate < stats.bytes_per_second) blend(stats.bytes_per_second, rate);
}

double TierState::pull_seconds(int64_t bytes) {
  const std::lock_guard lock(mutex);
  // Whatever it took until the first bytes came is in the rate as well; of a few bytes it is all there is.
  if (stats.bytes_per_second == 0) return 0;
  return std::max(stats.latency_seconds, static_cast<double>(bytes) / stats.bytes_per_second);
}

bool TierState::may_probe() {
  constexpr double kProbeSeconds = 30;
  const std::lock_guard lock(mutex);
  const double now = steady_seconds();
  if (probe_at == 0) probe_at = now + kProbeSeconds;
  if (now < probe_at) return false;
  probe_at = now + kProbeSeconds;
  return true;
}

double TiersCore::recompute_seconds(int64_t pages) const {
  return static_cast<double>(pages * options.page_positions) * prefill_seconds_per_token;
}

}  // namespace deepinfer
