#include "retention_plan.h"

#include <algorithm>
#include <cmath>

#include "human_units.h"

namespace deepinfer::cache {
namespace {

constexpr double kSecondsPerMonth = 30 * 86400.0;
constexpr double kGiB = 1 << 30;

/// The recording as a function: a step for each bin.
FollowedWithin recorded(const RevisitIntervals& intervals) {
  return [followed = intervals.followed_within()](double seconds) {
    const size_t bin = RevisitIntervals::bin_of(seconds);
    return seconds <= 0 || bin == 0 ? 0.0 : followed[bin - 1];
  };
}

/// The cheapest point, at the end of its bin: the recording tells no times apart within one, and half of a bin that everything
/// lies in may be none of it.
RetentionPoint cheapest_edge(const std::vector<RetentionPoint>& curve) {
  const RetentionPoint& best = cheapest(curve);
  if (best.ttl_seconds == 0) return best;
  constexpr double kRounding = 1e-9;
  const double end = RevisitIntervals::edge(RevisitIntervals::bin_of(best.ttl_seconds * (1 - kRounding))) * (1 - kRounding);
  const auto at = std::find_if(curve.begin(), curve.end(), [&](const RetentionPoint& p) { return p.ttl_seconds >= end; });
  return at == curve.end() ? curve.back() : *at;
}

ClassPlan plan_class(CacheClass cache_class, const RevisitIntervals& intervals, const RetentionPlan& plan) {
  ClassPlan out{.cache_class = cache_class, .intervals = intervals, .fits = fit_intervals(intervals), .curve = {}, .best = {}};
  const FollowedWithin followed =
      out.fits.empty() ? recorded(intervals) : [fit = out.fits.front()](double seconds) { return fit.followed_within(seconds); };
  out.curve = retention_curve(followed, plan.costs, plan.max_ttl_seconds);
  out.best = cheapest_edge(out.curve);
  out.beyond_recording = out.best.ttl_seconds > intervals.span_seconds;
  if (intervals.requests > 0)
    out.pages_per_request = static_cast<double>(intervals.uses) / static_cast<double>(intervals.requests);
  // As many pages are held as begin to be, times how long each is.
  out.budget_bytes =
      intervals.uses_per_second() * plan.load * out.best.held_seconds * static_cast<double>(plan.prices.page_bytes);
  return out;
}

}  // namespace

PageCosts PlanPrices::page_costs() const {
  const double device_per_second = device_per_hour / 3600;
  const auto bytes = static_cast<double>(page_bytes);
  return {.prefill = static_cast<double>(page_positions) / prefill_tokens_per_second * device_per_second,
          .hit = bytes / pull_bytes_per_second * device_per_second,
          .storage_per_second = bytes / kGiB * storage_per_gib_month / kSecondsPerMonth};
}

Result<RetentionPlan> make_plan(const IntervalsByClass& intervals, const PlanPrices& prices, double load,
                                double max_ttl_seconds) {
  RetentionPlan plan{.prices = prices,
                     .costs = prices.page_costs(),
                     .load = load,
                     .max_ttl_seconds = max_ttl_seconds,
                     .classes = {},
                     .replays = {}};
  DI_RETURN_IF_ERROR(plan.costs.validate());
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    if (intervals[c].uses > 0) plan.classes.push_back(plan_class(static_cast<CacheClass>(c), intervals[c], plan));
  }
  if (plan.classes.empty()) return Err(Status::InvalidArgument("no full page was used: there is nothing to plan with"));
  return plan;
}

void add_replays(RetentionPlan& plan, const PageTrace& trace, int64_t capacity_bytes) {
  ReplayOptions options;
  for (const ClassPlan& c : plan.classes) options.ttl_seconds[static_cast<size_t>(c.cache_class)] = c.best.ttl_seconds;
  plan.replays.push_back({"times to live as recommended", replay(trace, options)});
  if (capacity_bytes <= 0) return;
  options.capacity_pages = std::max<int64_t>(capacity_bytes / plan.prices.page_bytes, 1);
  const std::string space = cli::human_bytes(capacity_bytes);
  plan.replays.push_back({"the same in " + space, replay(trace, options)});
  options.ttl_seconds.fill(HUGE_VAL);
  plan.replays.push_back({"least recently used goes first, in " + space, replay(trace, options)});
}

}  // namespace deepinfer::cache
