#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "driver.h"
#include "workload.h"

namespace deepinfer::bench {

/// What a sample of times says, in the unit of the sample. NaN where there is no sample.
struct Distribution {
  int64_t count = 0;
  double mean, median, p95, p99, max;
};

/// Members mean_NAME_ms, median_NAME_ms, ... as serving benchmarks call them.
void add_distribution(nlohmann::ordered_json& json, const std::string& name, const Distribution& d);

/// Value at `fraction` of the sorted sample, interpolated between neighbours as NumPy does. NaN of an empty one.
double percentile(const std::vector<double>& sorted, double fraction);
/// NaN in the sample is left out.
Distribution distribution(std::vector<double> sample);

/// Everything a run depends on.
struct BenchConditions {
  WorkloadOptions workload;  ///< the trace's rows aside
  std::string trace;         ///< its file
  RequestSettings settings;
  int64_t concurrency = 0;  ///< requests in flight at most; 0: any number
  double duration = 0;      ///< 0: no limit
  EngineOptions engine;     ///< with every default filled in
  ModelInfo model;
  int threads = 0;  ///< that the engine uses
  bool reused_engine = false;
  std::string cpu;
  std::string commit;
  std::string date;  ///< UTC, ISO 8601
};

/// Fills in cpu, commit, date and threads.
void describe_machine(BenchConditions& conditions);
/// "model name" of /proc/cpuinfo, or "unknown".
std::string cpu_name();

struct BenchResult {
  BenchConditions conditions;
  bool interrupted = false;
  bool timed_out = false;
  int64_t completed = 0, failed = 0, cancelled = 0, not_submitted = 0;
  std::string first_error;

  double duration = 0;              ///< seconds
  int64_t total_input_tokens = 0;   ///< of requests that gave a token
  int64_t total_output_tokens = 0;  ///< every token that came, of cancelled requests too
  double request_throughput = 0;    ///< completed requests a second
  double output_throughput = 0;     ///< tokens a second
  double total_token_throughput = 0;
  Distribution ttft, tpot, itl, e2el;  ///< milliseconds; the first, second and last of completed requests

  int64_t cached_tokens = 0, replayed_tokens = 0;
  double cache_hit_rate = 0;  ///< cached / input tokens
  int64_t preemptions = 0;
  int64_t peak_in_flight = 0;
  double max_submit_delay = 0;

  // Of the engine, over the run.
  int64_t steps = 0;
  double tokens_per_step = 0;  ///< prompt tokens that ran and tokens that were made
  int64_t row_layers = 0, full_row_layers = 0;
  double work_saved = 0;                                                              ///< 1 - row_layers / full_row_layers
  int64_t drafts = 0, drafted_tokens = 0, accepted_tokens = 0;                        ///< of speculative decoding
  double device_idle_share = 0;                                                       ///< of the duration
  double plan_mean_us = 0, plan_max_us = 0, publish_mean_us = 0, publish_max_us = 0;  ///< the largest since the engine's start
  double step_mean_us = 0;
  int64_t pages_total = 0, peak_pages_used = 0, pages_cached = 0;
  int64_t peak_running = 0, peak_waiting = 0;
  int64_t evicted_pages = 0, snapshot_hits = 0, snapshot_misses = 0;
};

BenchResult summarize(BenchConditions conditions, const RunRecord& run);

/// One object, one line; numbers that JSON cannot carry are null.
nlohmann::ordered_json to_json(const BenchResult& result);
nlohmann::ordered_json to_json(const BenchConditions& conditions);

/// The table for people, as serving benchmarks have it.
std::string format_table(const BenchResult& result);

/// One line per request, with a heading.
std::string requests_csv(const RunRecord& run);
/// A field of CSV: quoted where it has to be.
std::string csv_field(std::string_view text);
/// Empty for what is not finite.
std::string csv_number(double value);

}  // namespace deepinfer::bench
