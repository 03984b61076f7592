#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interval_fit.h"
#include "page_replay.h"
#include "retention_cost.h"

namespace deepinfer::cache {

/// What computing, moving and keeping pages costs here. Money is of any unit, the same everywhere.
struct PlanPrices {
  int64_t page_bytes = 0;
  int64_t page_positions = 0;  ///< tokens
  double prefill_tokens_per_second = 0;
  double pull_bytes_per_second = 0;
  double device_per_hour = 0;        ///< of whatever computes, while it computes or waits for pages
  double storage_per_gib_month = 0;  ///< a month of 30 days

  PageCosts page_costs() const;
};

struct ClassPlan {
  CacheClass cache_class = CacheClass::kChat;
  RevisitIntervals intervals;
  std::vector<IntervalFit> fits;  ///< the best first; empty: too little was recorded, and the recording itself is the curve
  std::vector<RetentionPoint> curve;
  RetentionPoint best;
  double pages_per_request = 0;
  double budget_bytes = 0;        ///< that its pages take with the best time to live, on average
  bool beyond_recording = false;  ///< the best time to live is longer than anything that was recorded
};

/// What a replay of the traces under limits gave.
struct PlanReplay {
  std::string limits;  ///< in words
  ReplayResult result;
};

struct RetentionPlan {
  PlanPrices prices;
  PageCosts costs;
  double load = 1;                 ///< requests, as a multiple of what was recorded
  double max_ttl_seconds = 0;      ///< that was looked at
  std::vector<ClassPlan> classes;  ///< those that were recorded
  std::vector<PlanReplay> replays;
};

/// Errors: prices that make no page worth keeping.
Result<RetentionPlan> make_plan(const IntervalsByClass& intervals, const PlanPrices& prices, double load, double max_ttl_seconds);
/// Adds replays: with the plan's times to live and no limit of space, and, if `capacity_bytes` is not 0, with both, and with that
/// space alone.
void add_replays(RetentionPlan& plan, const PageTrace& trace, int64_t capacity_bytes);

std::string format_plan(const RetentionPlan& plan);
std::string plan_json(const RetentionPlan& plan);
/// Hit rate and cost over the time to live.
std::string plan_svg(const RetentionPlan& plan);

}  // namespace deepinfer::cache
