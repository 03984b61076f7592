#include "bench_result.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "base/build_info.h"
#include "base/thread_pool.h"

namespace deepinfer::bench {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double ratio(double a, double b) { return b > 0 ? a / b : 0; }
double ratio(int64_t a, int64_t b) { return ratio(static_cast<double>(a), static_cast<double>(b)); }

double mean_us(const StepTimes& before, const StepTimes& after) {
  return ratio((after.total - before.total) * 1e6, static_cast<double>(after.count - before.count));
}

void summarize_requests(const RunRecord& run, BenchResult& out) {
  std::vector<double> ttft, tpot, e2el;
  for (const RequestRecord& r : run.requests) {
    out.total_output_tokens += r.output_tokens;
    out.preemptions += r.usage.preemptions;
    if (r.output_tokens > 0) {
      out.total_input_tokens += r.prompt_tokens;
      out.cached_tokens += r.usage.cached_tokens;
      out.replayed_tokens += r.usage.replayed_tokens;
    }
    switch (r.outcome) {
      case Outcome::kFailed:
        ++out.failed;
        if (out.first_error.empty()) out.first_error = r.error.empty() ? "no reason given" : r.error;
        break;
      case Outcome::kCancelled:
        ++out.cancelled;
        break;
      case Outcome::kCompleted:
        ++out.completed;
        ttft.push_back(r.ttft() * 1e3);
        tpot.push_back(r.tpot * 1e3);
        e2el.push_back(r.latency() * 1e3);
        break;
    }
  }
  out.ttft = distribution(std::move(ttft));
  out.tpot = distribution(std::move(tpot));
  out.e2el = distribution(std::move(e2el));
  std::vector<double> itl(run.inter_token_times.begin(), run.inter_token_times.end());
  for (double& seconds : itl) seconds *= 1e3;
  out.itl = distribution(std::move(itl));
}

void summarize_engine(const EngineStats& before, const EngineStats& after, BenchResult& out) {
  out.steps = after.steps - before.steps;
  const int64_t tokens = after.prompt_tokens - before.prompt_tokens + after.generation_tokens - before.generation_tokens -
                         (after.cached_tokens - before.cached_tokens) + after.replayed_tokens - before.replayed_tokens;
  out.tokens_per_step = ratio(tokens, out.steps);
  out.drafts = after.drafts - before.drafts;
  out.drafted_tokens = after.drafted_tokens - before.drafted_tokens;
  out.accepted_tokens = after.accepted_tokens - before.accepted_tokens;
  out.row_layers = after.row_layers - before.row_layers;
  out.full_row_layers = after.full_row_layers - before.full_row_layers;
  out.work_saved = out.full_row_layers > 0 ? 1 - ratio(out.row_layers, out.full_row_layers) : 0;
  out.device_idle_share = ratio(after.device_idle_seconds - before.device_idle_seconds, out.duration);
  out.plan_mean_us = mean_us(before.plan, after.plan);
  out.plan_max_us = after.plan.max * 1e6;
  out.publish_mean_us = mean_us(before.publish, after.publish);
  out.publish_max_us = after.publish.max * 1e6;
  out.step_mean_us = mean_us(before.step, after.step);
  out.pages_total = after.pages_total;
  out.pages_cached = after.pages_cached;
  out.evicted_pages = after.evicted_pages - before.evicted_pages;
  out.snapshot_hits = after.snapshot_hits - before.snapshot_hits;
  out.snapshot_misses = after.snapshot_misses - before.snapshot_misses;
}

}  // namespace

double percentile(const std::vector<double>& sorted, double fraction) {
  if (sorted.empty()) return kNan;
  const double at = fraction * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

Distribution distribution(std::vector<double> sample) {
  std::erase_if(sample, [](double x) { return std::isnan(x); });
  if (sample.empty()) return {0, kNan, kNan, kNan, kNan, kNan};
  std::sort(sample.begin(), sample.end());
  double sum = 0;
  for (const double x : sample) sum += x;
  return {static_cast<int64_t>(sample.size()),
          sum / static_cast<double>(sample.size()),
          percentile(sample, 0.5),
          percentile(sample, 0.95),
          percentile(sample, 0.99),
          sample.back()};
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

void describe_machine(BenchConditions& conditions) {
  conditions.cpu = cpu_name();
  conditions.commit = build_commit();
  conditions.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  conditions.threads = conditions.engine.threads > 0 ? conditions.engine.threads : available_threads();
}

BenchResult summarize(BenchConditions conditions, const RunRecord& run) {
  BenchResult out;
  out.conditions = std::move(conditions);
  out.interrupted = run.stopped;
  out.timed_out = run.timed_out;
  out.not_submitted = run.not_submitted;
  out.duration = run.seconds;
  out.peak_in_flight = run.peak_in_flight;
  out.max_submit_delay = run.max_submit_delay;
  out.peak_running = run.peak_running;
  out.peak_waiting = run.peak_waiting;
  summarize_requests(run, out);
  out.request_throughput = ratio(static_cast<double>(out.completed), out.duration);
  out.output_throughput = ratio(static_cast<double>(out.total_output_tokens), out.duration);
  out.total_token_throughput = ratio(static_cast<double>(out.total_input_tokens + out.total_output_tokens), out.duration);
  out.cache_hit_rate = ratio(out.cached_tokens, out.total_input_tokens);
  summarize_engine(run.before, run.after, out);
  out.peak_pages_used = run.after.pages_total - run.min_pages_free;
  return out;
}

}  // namespace deepinfer::bench
