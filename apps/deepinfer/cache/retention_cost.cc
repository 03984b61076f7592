#include "retention_cost.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::cache {
namespace {

constexpr double kFirstTtl = 0.1;
constexpr int kPointsPerDecade = 64;

}  // namespace

Status PageCosts::validate() const {
  // Written so that a NaN is refused.
  if (!(prefill > 0 && std::isfinite(prefill)))
    return Status::OutOfRange("cost of computing a page: {}, must be above 0", prefill);
  if (!(hit >= 0 && hit < prefill)) {
    return Status::OutOfRange("cost of bringing a page back: {:.3g}, must be from 0 to less than the {:.3g} of computing it", hit,
                              prefill);
  }
  if (!(storage_per_second >= 0 && std::isfinite(storage_per_second)))
    return Status::OutOfRange("cost of storage: {}, must be at least 0", storage_per_second);
  return Status::Ok();
}

std::vector<RetentionPoint> retention_curve(const FollowedWithin& followed_within, const PageCosts& costs,
                                            double max_ttl_seconds) {
  std::vector<RetentionPoint> curve = {{.ttl_seconds = 0, .hit_rate = 0, .held_seconds = 0, .cost = costs.prefill}};
  double waiting_before = 1;
  for (int step = 0;; ++step) {
    RetentionPoint point;
    point.ttl_seconds = std::min(kFirstTtl * std::pow(10.0, static_cast<double>(step) / kPointsPerDecade), max_ttl_seconds);
    point.hit_rate = followed_within(point.ttl_seconds);
    const double waiting = 1 - point.hit_rate;
    const RetentionPoint& before = curve.back();
    point.held_seconds = before.held_seconds + (point.ttl_seconds - before.ttl_seconds) * (waiting_before + waiting) / 2;
    point.cost = waiting * costs.prefill + point.hit_rate * costs.hit + point.held_seconds * costs.storage_per_second;
    waiting_before = waiting;
    curve.push_back(point);
    if (point.ttl_seconds >= max_ttl_seconds) return curve;
  }
}

const RetentionPoint& cheapest(const std::vector<RetentionPoint>& curve) {
  return *std::min_element(curve.begin(), curve.end(),
                           [](const RetentionPoint& a, const RetentionPoint& b) { return a.cost < b.cost; });
}

}  // namespace deepinfer::cache
