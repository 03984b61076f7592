#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/output.h"
#include "server/metrics.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer::server {

/// What the log tells about a generation.
struct GenerationSummary {
  std::string model;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t foreign_markers = 0;  ///< doubled-bar tool markers in the answers (spec/protocol §17.18)
  std::string finish;           ///< of the choice that ended last; empty: it was cut short
};

/// Watches the outputs of one generation: what it used and when its tokens came. One thread at a time.
///
///   arrival -> submission -> queue -> first token of any choice -> last token -> end
///              |<------- queue + prefill ------->|<--- decode --->|
class GenerationObserver {
 public:
  using Clock = std::chrono::steady_clock;

  /// `requests`: the engine's, one for each prompt, all submitted now. `trace` null: nothing is recorded.
  GenerationObserver(Metrics* metrics, telemetry::TraceRecorder* trace, Clock::time_point arrival,
                     const std::vector<RequestId>& requests);

  void take(const Output& output, size_t prompt);
  /// Nothing more will come: tells the metrics and the recorder, once for each prompt.
  void end();

  GenerationSummary& summary() { return summary_; }
  const GenerationSummary& summary() const { return summary_; }

 private:
  struct Prompt {
    RequestId request = 0;
    std::optional<FinishReason> finish;
    Usage usage;
    std::optional<Clock::time_point> first, last;                ///< tokens of any choice
    std::vector<std::optional<Clock::time_point>> last_of_each;  ///< by choice
  };

  void close_trace(const Prompt& prompt);

  Metrics* metrics_;
  telemetry::TraceRecorder* trace_;
  Clock::time_point arrival_, submission_;
  std::vector<Prompt> prompts_;
  GenerationSummary summary_;
};

}  // namespace deepinfer::server
