#include "telemetry/otlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/json_line.h"

namespace deepinfer::telemetry {
namespace {

using Buffer = fmt::memory_buffer;

constexpr int kInternal = 1, kServer = 2;  ///< SpanKind
constexpr int kError = 2;                  ///< StatusCode

bool is_id(std::string_view text) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return std::all_of(text.begin(), text.end(), hex) && text.find_first_not_of('0') != std::string_view::npos;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

/// One span as JSON.
class SpanWriter {
 public:
  SpanWriter(Buffer& out, const OtlpSource& source) : out_(out), source_(source) {}

  void begin(std::string_view trace, std::string_view id, std::string_view parent, std::string_view name, int kind, int64_t from,
             int64_t to) {
    put(R"({{"traceId":"{}","spanId":"{}",)", trace, id);
    if (!parent.empty()) put(R"("parentSpanId":"{}",)", parent);
    put(R"("name":"{}","kind":{},"startTimeUnixNano":"{}","endTimeUnixNano":"{}","attributes":[)", name, kind, unix_ns(from),
        unix_ns(std::max(from, to)));
    first_ = true;
  }
  void number(std::string_view key, int64_t value) {
    put(R"({}{{"key":"{}","value":{{"intValue":"{}"}}}})", comma(), key, value);
  }
  void real(std::string_view key, double value) { put(R"({}{{"key":"{}","value":{{"doubleValue":{}}}}})", comma(), key, value); }
  void text(std::string_view key, std::string_view value) {
    put(R"({}{{"key":"{}","value":{{"stringValue":{}}}}})", comma(), key, json_quote(value));
  }
  void end(bool error) {
    put("]");
    if (error) put(R"(,"status":{{"code":{}}})", kError);
    put("}}");
  }

 private:
  template <typename... T>
  void put(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<T>(values)...);
  }
  int64_t unix_ns(int64_t when) const { return source_.start_unix_ns + (when - source_.start); }
  const char* comma() {
    const char* c = first_ ? "" : ",";
    first_ = false;
    return c;
  }

  Buffer& out_;
  const OtlpSource& source_;
  bool first_ = true;
};

void append_request(Buffer& out, const RequestRecord& r, const OtlpSource& source) {
  const auto parent = parse_trace_parent(r.names.trace_parent);
  const std::string trace = parent.has_value() ? parent->trace_id : source.random_hex(16);
  const std::string root = source.random_hex(8);
  SpanWriter span(out, source);
  span.begin(trace, root, parent.has_value() ? parent->span_id : "", "llm_request", kServer, r.arrival, r.end);
  span.text("gen_ai.response.model", r.names.model);
  span.text("gen_ai.request.id", r.names.id);
  span.text("http.request.header.x-request-id", r.names.x_request_id);
  span.text("gen_ai.response.finish_reason", r.finish);
  span.number("gen_ai.usage.prompt_tokens", r.counts.prompt_tokens);
  span.number("gen_ai.usage.completion_tokens", r.counts.completion_tokens);
  span.number("deepinfer.cached_tokens", r.counts.cached_tokens);
  span.number("deepinfer.replayed_tokens", r.counts.replayed_tokens);
  span.number("deepinfer.preemptions", r.counts.preemptions);
  const Interval &queue = r.phase(Phase::kQueue), &prefill = r.phase(Phase::kPrefill), &decode = r.phase(Phase::kDecode);
  if (queue.known()) span.real("gen_ai.latency.time_in_queue", seconds(queue.length()));
  if (r.first_token >= 0) span.real("gen_ai.latency.time_to_first_token", seconds(r.first_token - r.arrival));
  if (prefill.known()) span.real("gen_ai.latency.time_in_model_prefill", seconds(prefill.length()));
  if (decode.known()) span.real("gen_ai.latency.time_in_model_decode", seconds(decode.length()));
  if (prefill.known() && decode.known())
    span.real("gen_ai.latency.time_in_model_inference", seconds(std::max(prefill.end, decode.end) - prefill.begin));
  span.real("gen_ai.latency.e2e", seconds(r.end - r.arrival));
  span.end(r.finish == "error");
  for (size_t i = 0; i < kPhases; ++i) {
    const Interval& phase = r.phases[i];
    if (!phase.known()) continue;
    out.push_back(',');
    span.begin(trace, source.random_hex(8), root, phase_name(static_cast<Phase>(i)), kInternal, phase.begin, phase.end);
    span.end(false);
  }
}

}  // namespace

std::optional<TraceParent> parse_trace_parent(std::string_view header) {
  // 00-TRACE-SPAN-FLAGS; what later versions put behind it is theirs.
  constexpr size_t kLength = 55;
  if (header.size() < kLength || header.substr(0, 2) == "ff") return std::nullopt;
  if (header.size() > kLength && (header.substr(0, 2) == "00" || header[kLength] != '-')) return std::nullopt;
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32), span = header.substr(36, 16),
                         flags = header.substr(53, 2);
  const auto hex = [](std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; };
  if (!hex(version) || !hex(flags) || !is_id(trace) || !is_id(span)) return std::nullopt;
  const char low = flags[1];
  const int digit = low <= '9' ? low - '0' : low - 'a' + 10;
  return TraceParent{std::string(trace), std::string(span), (digit & 1) != 0};
}

int64_t otlp_span_count(const RequestRecord& request) {
  return 1 + std::count_if(request.phases.begin(), request.phases.end(), [](const Interval& i) { return i.known(); });
}

std::string otlp_traces(std::span<const RequestRecord> requests, const OtlpSource& source) {
  Buffer out;
  fmt::format_to(
      std::back_inserter(out),
      R"({{"resourceSpans":[{{"resource":{{"attributes":[{{"key":"service.name","value":{{"stringValue":{}}}}},)"
      R"({{"key":"service.version","value":{{"stringValue":{}}}}}]}},"scopeSpans":[{{"scope":{{"name":"deepinfer"}},"spans":[)",
      json_quote(source.service_name), json_quote(source.service_version));
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_request(out, requests[i], source);
  }
  out.append(std::string_view("]}]}]}"));
  return fmt::to_string(out);
}

}  // namespace deepinfer::telemetry
