#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "workload.h"

namespace deepinfer::bench {

enum class Outcome : uint8_t { kCompleted, kFailed, kCancelled };
std::string_view outcome_name(Outcome outcome);

/// What happened to one request. Times are seconds from the start of the run; NaN: never.
struct RequestRecord {
  int64_t index = 0;
  double planned = 0;  ///< arrival time
  double submitted = std::numeric_limits<double>::quiet_NaN();
  double first_token = std::numeric_limits<double>::quiet_NaN();
  double finished = std::numeric_limits<double>::quiet_NaN();
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  ///< received, all choices together
  double tpot = std::numeric_limits<double>::quiet_NaN();
  Usage usage;
  std::optional<FinishReason> finish;  ///< the worst of its choices
  std::string cache_class;
  std::string error;
  Outcome outcome = Outcome::kCancelled;

  double ttft() const { return first_token - submitted; }
  double latency() const { return finished - submitted; }
};

/// Takes the outputs of one request as they come. Inter-token times: an output with k tokens that comes t seconds after the one
/// before it counts as k times t / k. Tokens that come together with the first one have no time of their own.
class RequestMeter {
 public:
  RequestMeter(RequestRecord* record, int64_t choices, std::vector<float>* inter_token_times);

  void add(const Output& output, double now);
  bool done() const { return open_choices_ == 0; }

 private:
  struct Choice {
    double first = 0, last = 0;
    int64_t tokens = 0;        ///< so far
    int64_t timed_tokens = 0;  ///< of them after the first output
    bool ended = false;
  };
  void settle();

  RequestRecord* record_;
  std::vector<float>* inter_token_times_;
  std::vector<Choice> choices_;
  int64_t open_choices_;
};

/// What all requests of a run have in common.
struct RequestSettings {
  SamplingParams sampling;
  int64_t n = 1;
  bool ignore_eos = true;
  int64_t priority = 0;
};

struct RunProgress {
  int64_t done = 0, total = 0, in_flight = 0;
  int64_t output_tokens = 0;
  double seconds = 0;
  double tokens_per_second = 0;  ///< of about the last second
};

struct DriverOptions {
  int64_t max_in_flight = 0;                                  ///< 0: any number
  double duration = std::numeric_limits<double>::infinity();  ///< after it nothing is submitted, and what runs is cancelled
  std::function<bool()> stop;                                 ///< asked about ten times a second; then the same
  std::function<void(const RunProgress&)> progress;           ///< about ten times a second
};

struct RunRecord {
  std::vector<RequestRecord> requests;  ///< those that were submitted, or refused
  std::vector<float> inter_token_times;
  int64_t not_submitted = 0;
  double seconds = 0;      ///< from the first submission to the last output, or to the end of `duration`
  bool stopped = false;    ///< by `stop`
  bool timed_out = false;  ///< by `duration`
  EngineStats before, after;
  int64_t peak_in_flight = 0;
  int64_t peak_running = 0, peak_waiting = 0, min_pages_free = 0;  ///< sampled
  double max_submit_delay = 0;                                     ///< submission after the planned time, open loop
};

/// Runs requests, which are in order of arrival, in the calling thread; outputs are collected by it alone.
RunRecord run_workload(Engine& engine, const std::vector<PlannedRequest>& requests, const RequestSettings& settings,
                       const DriverOptions& options);

}  // namespace deepinfer::bench
