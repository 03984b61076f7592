// The life of a request as several threads tell it: phases without gaps, whoever comes first.

#include "telemetry/trace_recorder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace deepinfer::telemetry {
namespace {

RequestRecord the(const TraceRecorder& recorder, uint64_t request) {
  const auto found = recorder.requests().find(std::to_string(request));
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? RequestRecord{} : found.front();
}

int64_t phases_up_to_first_token(const RequestRecord& r) {
  int64_t total = 0;
  for (size_t i = 0; i <= static_cast<size_t>(Phase::kDeliver); ++i) total += r.phases[i].known() ? r.phases[i].length() : 0;
  return total;
}

TEST(TraceRecorder, PhasesAddUpToTheFirstToken) {
  TraceRecorder recorder;
  recorder.submitted(5, 1100, 77);
  recorder.phase(5, Phase::kQueue, 1100, 1300);  // the engine may be faster than who submitted
  recorder.named(5, {.id = "chatcmpl-a", .x_request_id = "x", .trace_parent = "", .model = "m"}, 1000);
  recorder.phase(5, Phase::kMatch, 1300, 1310);
  recorder.phase(5, Phase::kHandoff, 1310, 1350);
  recorder.phase(5, Phase::kPrefill, 1350, 2000);
  recorder.phase(5, Phase::kFirstDecode, 2000, 2100);
  recorder.first_token(5, 2100, 2120);
  EXPECT_EQ(the(recorder, 5).first_token, 2120);
  recorder.delivered(5, 2200);
  recorder.delivered(5, 2900);
  recorder.finished(5, 2850, "stop", {.prompt_tokens = 77, .completion_tokens = 3});
  recorder.closed(5, "stop", {.prompt_tokens = 77, .completion_tokens = 3});
  const RequestRecord r = the(recorder, 5);
  EXPECT_EQ(r.arrival, 1000);
  EXPECT_EQ(r.first_token, 2200);
  EXPECT_EQ(phases_up_to_first_token(r), r.first_token - r.arrival);
  EXPECT_EQ(r.phase(Phase::kReceive).length(), 100);
  EXPECT_EQ(r.phase(Phase::kDeliver).begin, 2120);
  EXPECT_EQ(r.phase(Phase::kDecode).begin, 2200);
  EXPECT_EQ(r.phase(Phase::kDecode).end, 2900);
  EXPECT_EQ(r.counts.completion_tokens, 3);
  EXPECT_EQ(r.finish, "stop");
  // The ring has the same, each once.
  int64_t phases = 0;
  for (const Span& s : recorder.snapshot()) {
    EXPECT_EQ(s.request, 5u);
    ++phases;
  }
  EXPECT_EQ(phases, 9);
}

TEST(TraceRecorder, SlowReaderDoesNotTurnTimeBack) {
  TraceRecorder recorder;
  recorder.submitted(1, 10, 1);
  recorder.first_token(1, 20, 30);
  recorder.finished(1, 50, "length", {});
  recorder.delivered(1, 90);  // first and last at once, long after the end
  const RequestRecord r = the(recorder, 1);
  EXPECT_EQ(r.first_token, 90);
  EXPECT_EQ(r.phase(Phase::kDecode).length(), 0);
  EXPECT_EQ(r.phase(Phase::kDeliver).length(), 60);
}

TEST(TraceRecorder, ToldWhenClosed) {
  TraceRecorder recorder;
  std::vector<RequestRecord> closed;
  recorder.on_closed([&](const RequestRecord& r) { closed.push_back(r); });
  recorder.submitted(1, 10, 4);
  recorder.named(1, {.id = "a", .x_request_id = "", .trace_parent = "", .model = "m"}, 5);
  recorder.closed(1, "", {.prompt_tokens = 4});
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].finish, "cancelled");
  EXPECT_EQ(closed[0].names.id, "a");
  EXPECT_GE(closed[0].end, closed[0].arrival);
}

TEST(RequestLog, KeepsTheLatest) {
  TraceRecorder::Options options;
  options.requests = 3;
  TraceRecorder recorder(options);
  for (uint64_t i = 1; i <= 5; ++i) {
    recorder.submitted(i, static_cast<int64_t>(i), 1);
    recorder.named(i, {.id = "same", .x_request_id = fmt::format("x{}", i), .trace_parent = "", .model = ""}, 0);
  }
  const auto latest = recorder.requests().latest(10);
  ASSERT_EQ(latest.size(), 3u);
  EXPECT_EQ(latest[0].request, 5u);
  EXPECT_EQ(latest[2].request, 3u);
  EXPECT_EQ(recorder.requests().latest(1).size(), 1u);
  EXPECT_TRUE(recorder.requests().find("2").empty());
  EXPECT_EQ(recorder.requests().find("x4").front().request, 4u);
  const auto same = recorder.requests().find("same");
  ASSERT_EQ(same.size(), 3u);
  EXPECT_EQ(same[0].request, 3u);
  EXPECT_TRUE(recorder.requests().find("").empty());
  EXPECT_TRUE(recorder.requests().find("99999999999999999999999").empty());
}

TEST(TraceRecorder, MemoryIsFixedAndKindsDoNotPushEachOtherOut) {
  TraceRecorder::Options options;
  options.memory = 1 << 20;
  TraceRecorder recorder(options);
  recorder.record({.name = "step", .category = Category::kDevice, .begin = 1, .end = 2});
  for (int64_t i = 0; i < 100'000; ++i) recorder.record({.name = "write", .category = Category::kNetwork, .begin = i, .end = i});
  const auto spans = recorder.snapshot();
  EXPECT_LE(static_cast<int64_t>(spans.size()) * 128, options.memory);
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(), [](const Span& s) { return s.category == Category::kDevice; }), 1);
  EXPECT_TRUE(recorder.wrapped(Category::kNetwork));
  EXPECT_FALSE(recorder.wrapped(Category::kDevice));
  EXPECT_EQ(recorder.recorded(), 100'001);
}

}  // namespace
}  // namespace deepinfer::telemetry
