#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "telemetry/request_log.h"
#include "telemetry/span_ring.h"

namespace deepinfer::telemetry {

/// Where everybody tells what took time. Whoever can tell something holds a pointer to it; null means that nothing is recorded,
/// and asking that is all it costs then. Every member may be called from any thread; recording takes no lock.
class TraceRecorder {
 public:
  struct Options {
    int64_t memory = int64_t{32} << 20;  ///< bytes of spans, about 110 each; fixed
    bool ops = false;                    ///< operators of the backend, too: many
    size_t requests = 4096;              ///< kept with their phases
  };

  explicit TraceRecorder(const Options& options);
  TraceRecorder() : TraceRecorder(Options{}) {}

  void record(const Span& span) noexcept { lane(span.category).push(span); }
  /// Whether operators are wanted.
  bool ops() const { return options_.ops; }

  // The life of a request: by the engine's number. The phases come in the order of time.
  /// It has come to the engine.
  void submitted(uint64_t request, int64_t when, int64_t prompt_tokens);
  /// Who asked, and when the request was complete on its connection. After `submitted`.
  void named(uint64_t request, RequestNames names, int64_t arrival);
  void phase(uint64_t request, Phase phase, int64_t begin, int64_t end);
  /// The engine has made the first token's output: ends kPublish, which began at `begin`.
  void first_token(uint64_t request, int64_t begin, int64_t when);
  /// Who writes the answer has got the first token (again: a later one).
  void delivered(uint64_t request, int64_t when);
  /// The engine has made its last output. `finish`: "stop", ...
  void finished(uint64_t request, int64_t when, std::string_view finish, const RequestCounts& counts);
  /// Nothing more will come of it to whoever asked: `on_closed` gets it. `finish`: as far as the asker knows; empty: it left
  /// before.
  void closed(uint64_t request, std::string_view finish, const RequestCounts& counts);
  /// Called by the threads that call `closed`; it must not block. Before the first request.
  void on_closed(std::function<void(const RequestRecord&)> call) { on_closed_ = std::move(call); }

  const RequestLog& requests() const { return requests_; }

  /// Where a reader is in each lane.
  using Cursor = std::array<int64_t, kCategories>;
  /// Spans since `cursor` that are still there, lane after lane. Returns how many were lost to this reader. `last`: does not wait
  /// for spans that are just being written.
  int64_t read(Cursor& cursor, std::vector<Span>& out, bool last = false) const;
  /// All that is there.
  std::vector<Span> snapshot() const;
  /// Some spans of this category have been overwritten.
  bool wrapped(Category category) const;
  int64_t recorded() const;
  /// A consumer did not keep up.
  void count_dropped(int64_t spans) { dropped_.fetch_add(spans, std::memory_order_relaxed); }
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  int64_t start() const { return start_; }                  ///< now_ns
  int64_t start_unix_ns() const { return start_unix_ns_; }  ///< the same moment since 1970

 private:
  void record_decode(uint64_t request, const Interval& decode, const RequestCounts& counts);
  SpanRing& lane(Category category) { return *lanes_[static_cast<size_t>(category)]; }

  const Options options_;
  const int64_t start_;
  const int64_t start_unix_ns_;
  /// By category, so that many spans of one kind don't push out the few of another.
  std::array<std::unique_ptr<SpanRing>, kCategories> lanes_;
  RequestLog requests_;
  std::function<void(const RequestRecord&)> on_closed_;
  std::atomic<int64_t> dropped_{0};
};

}  // namespace deepinfer::telemetry
