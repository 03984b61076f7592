#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench_result.h"
#include "load_client.h"
#include "svg_plot.h"

namespace deepinfer::bench {

/// Limits that a request has to keep to be a good one, in milliseconds.
struct Goodput {
  std::optional<double> ttft, tpot, e2el;

  /// "ttft:500 tpot:50 e2el:5000", any of them, as in vllm bench serve; errors name `flag`.
  static Result<Goodput> Parse(const char* flag, const std::vector<std::string>& limits);
  bool any() const { return ttft.has_value() || tpot.has_value() || e2el.has_value(); }
  bool met(const LoadRecord& record) const;
};

/// One run against a server.
struct ServeConditions {
  std::string date, commit, cpu;
  std::string url, path, model;
  WorkloadOptions workload;
  std::string trace;
  int64_t max_concurrency = 0;  ///< 0: any number
  Goodput goodput;
};

struct ServeResult {
  ServeConditions conditions;
  bool interrupted = false;
  int64_t completed = 0, failed = 0;
  std::map<std::string, int64_t> errors;
  double duration = 0;
  int64_t total_input_tokens = 0, total_output_tokens = 0, cached_tokens = 0;
  int64_t counted_by_client = 0;  ///< requests whose server gave no usage: chunks stand for tokens
  double request_throughput = 0, output_throughput = 0, total_token_throughput = 0;
  double offered_rate = 0;  ///< requests a second that the plan has; 0: all at once
  double sent_rate = 0;     ///< that went out
  double request_goodput = 0;
  int64_t peak_in_flight = 0;
  Distribution ttft, tpot, itl, e2el;  ///< milliseconds
  Distribution delay;  ///< milliseconds from a request's planned time to its sending; with a limit on concurrency its waiting
  Distribution lag;    ///< milliseconds by which the client's event loop was late
  double served_share =
      1;  ///< answers over requests in the second half of the time in which requests came; below 1 a queue grows
  double client_cpu_share = 0;           ///< of one core
  std::map<std::string, double> server;  ///< what counters of the server's /metrics rose by
};

ServeResult summarize(ServeConditions conditions, const LoadRun& run);

/// Samples of a Prometheus text, summed over labels.
std::map<std::string, double> read_counters(std::string_view metrics);

/// The table of vllm bench serve, with its labels, and what it doesn't have.
std::string format_table(const ServeResult& result);
/// Keys as in vllm's result files.
nlohmann::ordered_json to_json(const ServeResult& result);

/// One row for each run of a sweep.
std::string rates_heading();
std::string rates_row(const ServeResult& result);
/// The first run that did not keep up, with a served_share below 0.9 (chance alone makes some percent); -1: all kept up.
int64_t knee(const std::vector<ServeResult>& results);

/// What a plot needs of a run, read back from its JSON.
struct ServePoint {
  std::string label;  ///< of the series
  double rate = 0, concurrency = 0;
  double output_throughput = 0, user_throughput = 0;  ///< tokens a second, of all and of one user (1 / mean TPOT)
  double median_ttft = 0, p99_ttft = 0, median_tpot = 0, p99_tpot = 0, goodput = 0;
};
Result<ServePoint> read_point(const nlohmann::ordered_json& result, const std::string& label);
std::vector<Plot> serve_plots(const std::vector<ServePoint>& points);
/// A page with plots and a table of all runs, which loads nothing.
std::string serve_html(const std::vector<ServePoint>& points);

}  // namespace deepinfer::bench
