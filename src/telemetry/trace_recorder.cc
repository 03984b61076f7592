#include "telemetry/trace_recorder.h"

#include <algorithm>
#include <optional>

namespace deepinfer::telemetry {
namespace {

constexpr int64_t kSlotBytes = 128;

/// Parts of the memory, of 16: what a request does in each step is most of it.
constexpr std::array<int64_t, kCategories> kShares = {6, 2, 4, 0, 2, 2};
constexpr int64_t kOpsShare = 16;  ///< beside them: as much again

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

TraceRecorder::TraceRecorder(const Options& options)
    : options_(options), start_(now_ns()), start_unix_ns_(unix_ns()), requests_(options.requests) {
  const int64_t parts = options_.ops ? 16 + kOpsShare : 16;
  for (size_t i = 0; i < kCategories; ++i) {
    const bool ops = static_cast<Category>(i) == Category::kOp;
    const int64_t share = ops && options_.ops ? kOpsShare : kShares[i];
    lanes_[i] = std::make_unique<SpanRing>(options_.memory / parts * share / kSlotBytes);
  }
}

void TraceRecorder::submitted(uint64_t request, int64_t when, int64_t prompt_tokens) {
  requests_.update(request, [&](RequestRecord& r) {
    if (r.arrival < 0) r.arrival = when;
    r.counts.prompt_tokens = prompt_tokens;
  });
}

void TraceRecorder::named(uint64_t request, RequestNames names, int64_t arrival) {
  Interval received{arrival, arrival};
  requests_.update(request, [&](RequestRecord& r) {
    if (r.arrival >= 0) received.end = std::max(r.arrival, arrival);
    r.names = std::move(names);
    r.arrival = arrival;
    r.phase(Phase::kReceive) = received;
  });
  record({.name = phase_name(Phase::kReceive),
          .category = Category::kRequest,
          .request = request,
          .begin = received.begin,
          .end = received.end});
}

void TraceRecorder::phase(uint64_t request, Phase phase, int64_t begin, int64_t end) {
  end = std::max(begin, end);
  requests_.update(request, [&](RequestRecord& r) { r.phase(phase) = {begin, end}; });
  record({.name = phase_name(phase), .category = Category::kRequest, .request = request, .begin = begin, .end = end});
}

void TraceRecorder::first_token(uint64_t request, int64_t begin, int64_t when) {
  phase(request, Phase::kPublish, begin, when);
  requests_.update(request, [&](RequestRecord& r) { r.first_token = when; });
}

void TraceRecorder::delivered(uint64_t request, int64_t when) {
  std::optional<Interval> first;
  requests_.update(request, [&](RequestRecord& r) {
    if (!r.phase(Phase::kDeliver).known()) {
      const int64_t published = r.phase(Phase::kPublish).known() ? r.phase(Phase::kPublish).end : when;
      first = r.phase(Phase::kDeliver) = {published, std::max(published, when)};
      r.first_token = first->end;
    }
    r.phase(Phase::kDecode) = {r.first_token, std::max(r.first_token, when)};
  });
  if (first.has_value())
    record({.name = phase_name(Phase::kDeliver),
            .category = Category::kRequest,
            .request = request,
            .begin = first->begin,
            .end = first->end});
}

void TraceRecorder::finished(uint64_t request, int64_t when, std::string_view finish, const RequestCounts& counts) {
  Interval decode;
  requests_.update(request, [&](RequestRecord& r) {
    r.counts = counts;
    r.finish = finish;
    r.end = std::max(r.end, when);
    // Whoever writes the answer may be behind: then it says later how long it took.
    if (r.first_token >= 0 && r.phase(Phase::kDecode).end < when) r.phase(Phase::kDecode) = {r.first_token, when};
    if (r.names.id.empty()) decode = r.phase(Phase::kDecode);
  });
  record_decode(request, decode, counts);
}

void TraceRecorder::closed(uint64_t request, std::string_view finish, const RequestCounts& counts) {
  RequestRecord copy;
  requests_.update(request, [&](RequestRecord& r) {
    r.end = std::max(r.end, now_ns());
    r.counts = counts;
    if (r.finish.empty()) r.finish = finish.empty() ? "cancelled" : finish;
    copy = r;
  });
  record_decode(request, copy.phase(Phase::kDecode), counts);
  if (on_closed_) on_closed_(copy);
}

void TraceRecorder::record_decode(uint64_t request, const Interval& decode, const RequestCounts& counts) {
  if (!decode.known()) return;
  record({.name = phase_name(Phase::kDecode),
          .category = Category::kRequest,
          .request = request,
          .begin = decode.begin,
          .end = decode.end,
          .args = {{{"tokens", counts.completion_tokens}}}});
}

int64_t TraceRecorder::read(Cursor& cursor, std::vector<Span>& out, bool last) const {
  int64_t lost = 0;
  for (size_t i = 0; i < kCategories; ++i) lost += lanes_[i]->read(cursor[i], out, last);
  return lost;
}

std::vector<Span> TraceRecorder::snapshot() const {
  std::vector<Span> out;
  Cursor cursor{};
  read(cursor, out, /*last=*/true);
  return out;
}

bool TraceRecorder::wrapped(Category category) const {
  const SpanRing& lane = *lanes_[static_cast<size_t>(category)];
  return lane.pushed() > lane.capacity();
}

int64_t TraceRecorder::recorded() const {
  int64_t total = 0;
  for (const auto& lane : lanes_) total += lane->pushed();
  return total;
}

}  // namespace deepinfer::telemetry
