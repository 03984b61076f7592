#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "telemetry/request_log.h"

namespace deepinfer::telemetry {

/// What a `traceparent` header says (W3C Trace Context, version 00).
struct TraceParent {
  std::string trace_id;  ///< 32 lower-case hex digits, not all zero
  std::string span_id;   ///< 16
  bool sampled = true;
};
/// Nothing if it is not one.
std::optional<TraceParent> parse_trace_parent(std::string_view header);

struct OtlpSource {
  std::string service_name;
  std::string service_version;
  int64_t start = 0;          ///< now_ns of the recorder's start
  int64_t start_unix_ns = 0;  ///< the same moment since 1970
  /// That many random bytes in lower-case hex.
  std::function<std::string(size_t bytes)> random_hex;
};

/// The spans that `otlp_traces` makes of a request: itself and its phases.
int64_t otlp_span_count(const RequestRecord& request);

/// ExportTraceServiceRequest in the JSON encoding of OTLP: a span `llm_request` for each request, with the attributes of vLLM's,
/// below the span of its traceparent if it had one, and one below it for each phase.
std::string otlp_traces(std::span<const RequestRecord> requests, const OtlpSource& source);

}  // namespace deepinfer::telemetry
