#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "human_units.h"
#include "retention_plan.h"
#include "svg_plot.h"

namespace deepinfer::cache {
namespace {

using Json = nlohmann::ordered_json;

/// Times to live that tables show, in seconds.
constexpr double kShownTtls[] = {0, 60, 600, 3600, 6 * 3600.0, 86400, 3 * 86400.0, 7 * 86400.0, 30 * 86400.0};

const RetentionPoint& point_at(const std::vector<RetentionPoint>& curve, double ttl) {
  const auto at = std::lower_bound(curve.begin(), curve.end(), ttl,
                                   [](const RetentionPoint& p, double seconds) { return p.ttl_seconds < seconds; });
  return at == curve.end() ? curve.back() : *at;
}

/// The curve at a shown time, or nothing if it does not reach so far.
std::vector<RetentionPoint> shown_points(const RetentionPlan& plan, const ClassPlan& c) {
  std::vector<RetentionPoint> points;
  for (const double ttl : kShownTtls) {
    if (ttl > plan.max_ttl_seconds) break;
    RetentionPoint point = point_at(c.curve, ttl);
    point.ttl_seconds = ttl;
    points.push_back(point);
  }
  return points;
}

double budget_at(const RetentionPlan& plan, const ClassPlan& c, const RetentionPoint& point) {
  return c.intervals.uses_per_second() * plan.load * point.held_seconds * static_cast<double>(plan.prices.page_bytes);
}

std::string point_row(const RetentionPlan& plan, const ClassPlan& c, const RetentionPoint& point, std::string_view mark) {
  return fmt::format("  {:>12} {:>9.1f}% {:>12} {:>13.1f}% {:>14}{}\n",
                     point.ttl_seconds > 0 ? cli::human_seconds(point.ttl_seconds) : "not kept", point.hit_rate * 100,
                     cli::human_seconds(point.held_seconds), point.cost / plan.costs.prefill * 100,
                     cli::human_bytes(static_cast<int64_t>(budget_at(plan, c, point))), mark);
}

std::string format_class(const RetentionPlan& plan, const ClassPlan& c) {
  const RevisitIntervals& i = c.intervals;
  const std::string_view name = cache_class_name(c.cache_class);
  std::string out = fmt::format("\nClass {}: {} requests, {} uses of pages in {}; {:.1f} % of them were seen to be used again\n",
                                name, i.requests, i.uses, cli::human_seconds(i.span_seconds),
                                100 * static_cast<double>(i.revisits()) / static_cast<double>(i.uses));
  if (c.fits.empty()) {
    out += fmt::format("  fewer than {} intervals ended: nothing was fitted, the recording stands for itself\n", kLeastRevisits);
  } else {
    out += fmt::format("  {:<16} {:>9} {:>7} {:>12}  {}\n", "intervals", "revisited", "KS", "BIC", "parameters (s)");
  }
  for (const IntervalFit& fit : c.fits) {
    std::string parameters;
    const auto names = parameter_names(fit.family);
    for (size_t p = 0; p < names.size(); ++p)
      parameters += fmt::format("{}{} {:.3g}", p > 0 ? ", " : "", names[p], fit.parameters[p]);
    out += fmt::format("  {:<16} {:>8.1f}% {:>7.4f} {:>12.0f}  {}\n", interval_family_name(fit.family), fit.revisited * 100,
                       fit.ks_distance, fit.bic, parameters);
  }
  out += fmt::format("  {:>12} {:>10} {:>12} {:>14} {:>14}\n", "time to live", "hit rate", "page held", "cost", "space");
  for (const RetentionPoint& point : shown_points(plan, c))
    out += point_row(plan, c, point, point.ttl_seconds > i.span_seconds ? "  by the fit alone" : "");
  out += point_row(plan, c, c.best, "  <- cheapest");
  if (c.best.ttl_seconds > 0) {
    out += fmt::format("  Recommended: --kv-ttl-{} {:.0f}{}\n", name, c.best.ttl_seconds,
                       c.best.ttl_seconds >= plan.max_ttl_seconds ? " (the longest that was looked at)"
                       : c.beyond_recording                       ? " (longer than what was recorded: by the fit alone)"
                                                                  : "");
  } else {
    out += fmt::format("  Recommended: --kv-ttl-{} 0: keeping pages costs more than computing them\n", name);
  }
  return out;
}

Json point_json(const RetentionPlan& plan, const ClassPlan& c, const RetentionPoint& point) {
  return {{"ttl_seconds", point.ttl_seconds},
          {"hit_rate", point.hit_rate},
          {"held_seconds", point.held_seconds},
          {"cost_per_page", point.cost},
          {"cost_per_request", point.cost * c.pages_per_request},
          {"cost_relative", point.cost / plan.costs.prefill},
          {"bytes", budget_at(plan, c, point)}};
}

Json class_json(const RetentionPlan& plan, const ClassPlan& c) {
  Json fits = Json::array();
  for (const IntervalFit& fit : c.fits) {
    Json parameters = Json::object();
    const auto names = parameter_names(fit.family);
    for (size_t p = 0; p < names.size(); ++p) parameters[std::string(names[p])] = fit.parameters[p];
    fits.push_back({{"family", interval_family_name(fit.family)},
                    {"revisited", fit.revisited},
                    {"parameters", std::move(parameters)},
                    {"ks_distance", fit.ks_distance},
                    {"log_likelihood", fit.log_likelihood},
                    {"bic", fit.bic}});
  }
  Json curve = Json::array();
  for (const RetentionPoint& point : shown_points(plan, c)) curve.push_back(point_json(plan, c, point));
  return {{"class", cache_class_name(c.cache_class)},
          {"requests", c.intervals.requests},
          {"uses", c.intervals.uses},
          {"revisits", c.intervals.revisits()},
          {"span_seconds", c.intervals.span_seconds},
          {"fits", std::move(fits)},
          {"curve", std::move(curve)},
          {"recommended", point_json(plan, c, c.best)},
          {"beyond_recording", c.beyond_recording}};
}

Json replay_json(const RetentionPlan& plan, const PlanReplay& r) {
  const ReplayCounts all = r.result.total();
  Json classes = Json::object();
  for (const ClassPlan& c : plan.classes) {
    const ReplayCounts& counts = r.result.by_class[static_cast<size_t>(c.cache_class)];
    classes[std::string(cache_class_name(c.cache_class))] = {{"pages", counts.pages},
                                                             {"hit_pages", counts.hit_pages},
                                                             {"hit_rate", counts.hit_rate()},
                                                             {"expired", counts.expired},
                                                             {"evicted", counts.evicted}};
  }
  return {{"limits", r.limits},
          {"hit_rate", all.hit_rate()},
          {"requests", all.requests},
          {"requests_hit", all.requests_hit},
          {"most_bytes", r.result.most_pages * plan.prices.page_bytes},
          {"classes", std::move(classes)}};
}

bench::PlotLine hit_line(const ClassPlan& c, int color, bool fitted) {
  const std::string name(cache_class_name(c.cache_class));
  bench::PlotLine line{
      .label = name + (fitted ? ", fitted" : ", recorded"), .points = {}, .color = color, .dashed = fitted, .markers = false};
  if (fitted) {
    for (const RetentionPoint& point : c.curve) {
      if (point.ttl_seconds > 0) line.points.push_back({point.ttl_seconds, point.hit_rate});
    }
    return line;
  }
  const std::vector<double> followed = c.intervals.followed_within();
  for (size_t bin = 0; bin < followed.size() && RevisitIntervals::edge(bin) <= c.intervals.span_seconds; ++bin)
    line.points.push_back({RevisitIntervals::edge(bin), followed[bin]});
  return line;
}

}  // namespace

std::string format_plan(const RetentionPlan& plan) {
  const PlanPrices& p = plan.prices;
  const PageCosts& costs = plan.costs;
  std::string out = fmt::format(
      "A page: {} tokens, {}. Computing it costs {:.3g}, bringing it back {:.3g} ({:.2g} % of that), keeping it for a day "
      "{:.3g}.\n",
      p.page_positions, cli::human_bytes(p.page_bytes), costs.prefill, costs.hit, costs.hit / costs.prefill * 100,
      costs.storage_per_second * 86400);
  if (costs.storage_per_second > 0)
    out += fmt::format("It is worth keeping for {} per use that it will have.\n",
                       cli::human_seconds((costs.prefill - costs.hit) / costs.storage_per_second));
  out += fmt::format("Prices: device {:g} an hour, {:g} tokens/s, {}/s from the tier; {:g} per GiB and month. Load x {:g}.\n",
                     p.device_per_hour, p.prefill_tokens_per_second,
                     cli::human_bytes(static_cast<int64_t>(p.pull_bytes_per_second)), p.storage_per_gib_month, plan.load);
  for (const ClassPlan& c : plan.classes) out += format_class(plan, c);
  if (!plan.replays.empty())
    out += fmt::format("\n  {:<54} {:>9} {:>12}\n", "Replay, from an empty cache", "hit rate", "most space");
  for (const PlanReplay& r : plan.replays)
    out += fmt::format("  {:<54} {:>8.1f}% {:>12}\n", r.limits, r.result.total().hit_rate() * 100,
                       cli::human_bytes(r.result.most_pages * p.page_bytes));
  return out;
}

std::string plan_json(const RetentionPlan& plan) {
  const PlanPrices& p = plan.prices;
  Json classes = Json::array(), replays = Json::array();
  for (const ClassPlan& c : plan.classes) classes.push_back(class_json(plan, c));
  for (const PlanReplay& r : plan.replays) replays.push_back(replay_json(plan, r));
  return Json{{"page_bytes", p.page_bytes},
              {"page_positions", p.page_positions},
              {"prefill_tokens_per_second", p.prefill_tokens_per_second},
              {"pull_bytes_per_second", p.pull_bytes_per_second},
              {"device_per_hour", p.device_per_hour},
              {"storage_per_gib_month", p.storage_per_gib_month},
              {"costs_per_page",
               {{"prefill", plan.costs.prefill}, {"hit", plan.costs.hit}, {"storage_per_second", plan.costs.storage_per_second}}},
              {"load", plan.load},
              {"max_ttl_seconds", plan.max_ttl_seconds},
              {"classes", std::move(classes)},
              {"replays", std::move(replays)}}
             .dump() +
         "\n";
}

std::string plan_svg(const RetentionPlan& plan) {
  bench::Plot hits{.title = "Hit rate over time to live",
                   .description = "The part of page uses that find the page, as recorded and as fitted.",
                   .x_label = "time to live (s)",
                   .y_label = "hit rate",
                   .lines = {},
                   .log_x = true};
  bench::Plot cost{.title = "Cost of a page over time to live",
                   .description = "Computing, bringing back and keeping a page, relative to computing it every time.",
                   .x_label = "time to live (s)",
                   .y_label = "cost / cost without a cache",
                   .lines = {},
                   .log_x = true};
  int color = 0;
  for (const ClassPlan& c : plan.classes) {
    hits.lines.push_back(hit_line(c, color, false));
    if (!c.fits.empty()) hits.lines.push_back(hit_line(c, color, true));
    const std::string name(cache_class_name(c.cache_class));
    bench::PlotLine line{.label = name, .points = {}, .color = color, .markers = false};
    for (const RetentionPoint& point : c.curve) {
      if (point.ttl_seconds > 0) line.points.push_back({point.ttl_seconds, point.cost / plan.costs.prefill});
    }
    cost.lines.push_back(std::move(line));
    if (c.best.ttl_seconds > 0) {
      cost.lines.push_back({.label = name + ", cheapest: " + cli::human_seconds(c.best.ttl_seconds),
                            .points = {{c.best.ttl_seconds, c.best.cost / plan.costs.prefill}},
                            .color = color});
    }
    ++color;
  }
  return bench::render_svg({hits, cost}, "cache-plan");
}

}  // namespace deepinfer::cache
