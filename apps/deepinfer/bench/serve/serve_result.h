#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench_result.h"
#include "serve/load_client.h"

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
  int64_t max_concurrency = 0;  ///< requests in flight; 0: any number
  int64_t num_clients = 0;      ///< sessions at a time; 0: any number
  bool ignore_eos = true;       ///< was asked for and not refused
  Goodput goodput;
};

/// All requests that stand at the same place of their sessions.
struct TurnResult {
  int64_t completed = 0;
  int64_t input_tokens = 0, cached_tokens = 0;
  double median_ttft = 0;  ///< milliseconds
};

struct ServeResult {
  ServeConditions conditions;
  bool interrupted = false;
  int64_t completed = 0, failed = 0;
  int64_t not_sent = 0;  ///< turns behind one that failed
  std::map<std::string, int64_t> errors;
  double duration = 0;
  int64_t total_input_tokens = 0, total_output_tokens = 0, cached_tokens = 0;
  int64_t counted_by_client = 0;  ///< requests whose server gave no usage: chunks stand for tokens
  double request_throughput = 0, output_throughput = 0, total_token_throughput = 0;
  double offered_rate = 0;  ///< requests a second that the plan has, if no answer took any time; 0: all at once
  double sent_rate = 0;     ///< that went out, by the first turns
  double request_goodput = 0;
  double good_share = 0;  ///< of the requests sent: answers that came whole, within all limits
  int64_t peak_in_flight = 0;
  Distribution ttft, tpot, itl, e2el;  ///< milliseconds
  std::vector<TurnResult> turns;       ///< of sessions; empty if each has but one
  Distribution delay;  ///< milliseconds from a request's planned time to its sending; with a limit on concurrency its waiting
  Distribution lag;    ///< milliseconds by which the client's event loop was late
  double served_share =
      1;  ///< answers over requests in the second half of the time in which sessions came; below 1 a queue grows
  double client_cpu_share = 0;           ///< of one core
  std::map<std::string, double> server;  ///< what counters of the server's /metrics rose by

  /// Nine answers for ten requests, so that no queue grows, and nine of ten good.
  bool kept_up() const;
};

ServeResult summarize(ServeConditions conditions, const LoadRun& run);

/// The table of vllm bench serve, with its labels, and what it doesn't have.
std::string format_table(const ServeResult& result);
/// Keys as in vllm's result files.
nlohmann::ordered_json to_json(const ServeResult& result);

/// One row for each run of a sweep.
std::string rates_heading();
std::string rates_row(const ServeResult& result);

}  // namespace deepinfer::bench
