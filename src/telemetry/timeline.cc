#include "telemetry/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/json_line.h"

namespace deepinfer::telemetry {
namespace {

using Buffer = fmt::memory_buffer;

/// Seconds since the recorder's start, with nine digits behind the point.
class Clock {
 public:
  explicit Clock(int64_t start) : start_(start) {}
  void append(Buffer& out, int64_t when) const { append_length(out, when - start_); }
  /// null where it is not known.
  void append_known(Buffer& out, int64_t when) const {
    if (when < 0) {
      fmt::format_to(std::back_inserter(out), "null");
    } else {
      append(out, when);
    }
  }
  static void append_length(Buffer& out, int64_t ns) {
    const auto size = static_cast<uint64_t>(ns < 0 ? -ns : ns);
    fmt::format_to(std::back_inserter(out), "{}{}.{:09}", ns < 0 ? "-" : "", size / 1'000'000'000, size % 1'000'000'000);
  }

 private:
  int64_t start_;
};

const char* state_of(const RequestRecord& r) {
  if (!r.finish.empty()) return "finished";
  return r.phase(Phase::kQueue).known() || r.first_token >= 0 ? "running" : "waiting";
}

void append_request(Buffer& out, const Clock& clock, const RequestRecord& r) {
  const auto put = [&]<typename... T>(fmt::format_string<T...> text, T&&... values) {
    fmt::format_to(std::back_inserter(out), text, std::forward<T>(values)...);
  };
  put(R"({{"request":{},"id":{},"x_request_id":{},"state":"{}","finish":{},"arrival":)", r.request, json_quote(r.names.id),
      json_quote(r.names.x_request_id), state_of(r), r.finish.empty() ? "null" : json_quote(r.finish));
  clock.append_known(out, r.arrival);
  put(R"(,"first_token":)");
  clock.append_known(out, r.first_token);
  put(R"(,"end":)");
  clock.append_known(out, r.finish.empty() ? -1 : r.end);
  put(R"(,"ttft":)");
  if (r.first_token >= 0 && r.arrival >= 0) {
    Clock::append_length(out, r.first_token - r.arrival);
  } else {
    put("null");
  }
  const RequestCounts& c = r.counts;
  put(R"(,"prompt_tokens":{},"cached_tokens":{},"replayed_tokens":{},"completion_tokens":{},"preemptions":{},"phases":[)",
      c.prompt_tokens, c.cached_tokens, c.replayed_tokens, c.completion_tokens, c.preemptions);
  bool first = true;
  for (size_t i = 0; i < kPhases; ++i) {
    const Interval& phase = r.phases[i];
    if (!phase.known()) continue;
    put(R"({}{{"name":"{}","begin":)", first ? "" : ",", phase_name(static_cast<Phase>(i)));
    clock.append(out, phase.begin);
    put(R"(,"end":)");
    clock.append(out, phase.end);
    put("}}");
    first = false;
  }
  put("]}}");
}

void append_span(Buffer& out, const Clock& clock, const Span& span) {
  const auto put = [&]<typename... T>(fmt::format_string<T...> text, T&&... values) {
    fmt::format_to(std::back_inserter(out), text, std::forward<T>(values)...);
  };
  const std::string_view category = category_name(span.category);
  put(R"({{"name":"{}","category":"{}","track":"{}",)", span.name, category, track_name(span.category));
  if (span.request != 0) put(R"("request":{},)", span.request);
  if (span.step >= 0) put(R"("step":{},)", span.step);
  put(R"("begin":)");
  clock.append(out, span.begin);
  put(R"(,"end":)");
  clock.append(out, span.end);
  put(R"(,"args":{{)");
  for (size_t i = 0; i < span.args.size() && span.args[i].name != nullptr; ++i)
    put(R"({}"{}":{})", i == 0 ? "" : ",", span.args[i].name, span.args[i].value);
  put("}}}}");
}

struct Found {
  std::vector<Span> spans;
  bool truncated = false;
};

/// What these requests did, and what the engine did in their lives.
Found spans_of(const TraceRecorder& recorder, const std::vector<RequestRecord>& requests, size_t max_spans) {
  Found found;
  int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
  for (const RequestRecord& r : requests) {
    begin = std::min(begin, r.arrival);
    end = std::max(end, r.finish.empty() ? now_ns() : r.end);
  }
  const auto asked = [&](uint64_t request) {
    return std::any_of(requests.begin(), requests.end(), [&](const RequestRecord& r) { return r.request == request; });
  };
  std::array<int64_t, kCategories> oldest;
  oldest.fill(std::numeric_limits<int64_t>::max());
  for (const Span& span : recorder.snapshot()) {
    int64_t& o = oldest[static_cast<size_t>(span.category)];
    o = std::min(o, span.begin);
    const bool own = span.request != 0 && asked(span.request);
    const bool around = span.request == 0 && span.begin <= end && span.end >= begin;
    if (own || around) found.spans.push_back(span);
  }
  for (size_t i = 0; i < kCategories; ++i)
    found.truncated = found.truncated || (recorder.wrapped(static_cast<Category>(i)) && oldest[i] > begin);
  std::sort(found.spans.begin(), found.spans.end(), [](const Span& a, const Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;  // the outer one first
  });
  if (found.spans.size() > max_spans) {
    found.truncated = true;
    found.spans.erase(found.spans.begin(), found.spans.end() - static_cast<std::ptrdiff_t>(max_spans));
  }
  return found;
}

}  // namespace

std::string timeline_json(const TraceRecorder* recorder, const std::vector<RequestRecord>& requests, bool spans,
                          size_t max_spans) {
  if (recorder == nullptr) {
    return R"({"enabled":false,"start_unix":0,"now":0,"dropped":0,"truncated":false,"requests":[],"spans":[]})";
  }
  const Clock clock(recorder->start());
  Buffer out;
  const auto put = [&](std::string_view text) { out.append(text); };
  put(R"({"enabled":true,"start_unix":)");
  Clock::append_length(out, recorder->start_unix_ns());
  put(R"(,"now":)");
  clock.append(out, now_ns());
  Found found;
  if (spans && !requests.empty()) found = spans_of(*recorder, requests, max_spans);
  fmt::format_to(std::back_inserter(out), R"(,"dropped":{},"truncated":{},"requests":[)", recorder->dropped(), found.truncated);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i > 0) put(",");
    append_request(out, clock, requests[i]);
  }
  put(R"(],"spans":[)");
  for (size_t i = 0; i < found.spans.size(); ++i) {
    if (i > 0) put(",");
    append_span(out, clock, found.spans[i]);
  }
  put("]}");
  return fmt::to_string(out);
}

}  // namespace deepinfer::telemetry
