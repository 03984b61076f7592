#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer::server {

/// A histogram of Prometheus. Thread-safe.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value, int64_t times = 1);
  /// Lines `name_bucket`, `name_sum` and `name_count` with these labels.
  void write(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  const std::vector<double> bounds_;
  mutable std::mutex mutex_;
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_ = 0;
};

struct LayerLoad {
  int64_t tokens = 0;    ///< choices: rows times active experts
  double imbalance = 0;  ///< the most chosen expert's count over the mean; 1: even, 0: nothing has run
};
/// One for each layer, draft stages behind them.
std::vector<LayerLoad> layer_loads(const ExpertCounts& counts);

/// The same exposition with '_' for the ':' of every metric's name: colons are vLLM's, and by the rules of Prometheus those of
/// recording rules.
std::string without_colons(std::string_view exposition);

/// What the recorder and the exporter say of themselves.
struct TelemetryCounts {
  int64_t spans = 0, dropped_spans = 0;
  int64_t exported_spans = 0, dropped_exports = 0, failed_exports = 0;
};

/// What the server counts itself; the rest of /metrics comes from the engine's counters.
class Metrics {
 public:
  Metrics();

  Histogram time_to_first_token, inter_token_latency, request_latency, queue_time, prefill_time, decode_time, inference_time,
      time_per_output_token, prompt_tokens, generation_tokens;
  std::atomic<int64_t> connections{0}, connections_total{0}, connections_refused{0};
  std::atomic<int64_t> generations{0};  ///< in progress
  std::atomic<int64_t> disconnects{0};  ///< clients that left before their answer was complete
  std::atomic<int64_t> bytes_sent{0};
  std::atomic<int64_t> foreign_markers{0};

  void count_request(std::string_view route, int status);
  /// Text exposition format, version 0.0.4.
  std::string render(const EngineStats& stats, const ExpertCounts& experts, const IntervalsByClass& revisits,
                     const TelemetryCounts& telemetry, std::string_view model) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  ///< by route pattern and status
};

}  // namespace deepinfer::server
