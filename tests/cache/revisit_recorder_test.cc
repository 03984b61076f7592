// What is recorded of prompts that come back: exactly while there are few pages, by a fair sample when there are many.

#include "cache/revisit_recorder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cache/revisit_intervals.h"

namespace deepinfer {
namespace {

constexpr auto kChat = static_cast<size_t>(CacheClass::kChat);
constexpr auto kAgent = static_cast<size_t>(CacheClass::kAgent);

/// Keys as a keyed hash makes them.
PrefixKey key(uint64_t n) {
  std::mt19937_64 random(n);
  const uint64_t high = random();
  return {.high = high, .low = random()};
}

int64_t open(const RevisitIntervals& r) { return std::accumulate(r.open.begin(), r.open.end(), int64_t{0}); }

void expect_sound(const IntervalsByClass& recorded) {
  for (const RevisitIntervals& r : recorded) EXPECT_EQ(open(r) + r.revisits(), r.uses);
}

TEST(RevisitRecorder, IntervalsAreOfTheClassOfTheUseThatBeginsThem) {
  RevisitRecorder recorder(100);
  const std::vector<PrefixKey> shared = {key(1), key(2)};
  recorder.record(shared, CacheClass::kChat, 300, 100);
  recorder.record(shared, CacheClass::kAgent, 280, 107);
  recorder.record(std::vector{key(1), key(3)}, CacheClass::kChat, 290, 127);
  recorder.record({}, CacheClass::kChat, 5, 128);
  const IntervalsByClass recorded = recorder.snapshot(140);
  expect_sound(recorded);
  const RevisitIntervals &chat = recorded[kChat], &agent = recorded[kAgent];
  EXPECT_EQ(chat.requests, 3);
  EXPECT_EQ(chat.prompt_tokens, 595);
  EXPECT_EQ(chat.uses, 4);
  EXPECT_EQ(chat.span_seconds, 40);
  EXPECT_EQ(chat.revisits(), 2) << "both pages after 7 s";
  EXPECT_EQ(chat.ended[RevisitIntervals::bin_of(7)], 2);
  EXPECT_EQ(chat.ended_seconds, 14);
  EXPECT_EQ(chat.open[RevisitIntervals::bin_of(13)], 2);
  EXPECT_EQ(agent.uses, 2);
  EXPECT_EQ(agent.ended[RevisitIntervals::bin_of(20)], 1);
  EXPECT_EQ(agent.open[RevisitIntervals::bin_of(33)], 1);
}

TEST(RevisitRecorder, AClockThatGoesBackIsNoInterval) {
  RevisitRecorder recorder(100);
  recorder.record(std::vector{key(1)}, CacheClass::kChat, 128, 110);
  recorder.record(std::vector{key(1)}, CacheClass::kChat, 128, 105);
  const IntervalsByClass recorded = recorder.snapshot(90);
  expect_sound(recorded);
  EXPECT_EQ(recorded[kChat].ended[0], 1);
  EXPECT_EQ(recorded[kChat].span_seconds, 10);
}

// Half of the pages come back after 10 seconds, once; many more pages than are followed.
TEST(RevisitRecorder, ASampleSaysWhatFollowingAllWouldSay) {
  constexpr size_t kMost = 2000;
  RevisitRecorder sampled(0, {}, kMost), all(0, {}, size_t{1} << 30);
  constexpr uint64_t kSteps = 30000, kPages = 4;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const double now = static_cast<double>(step) * 0.01;
    std::vector<PrefixKey> pages;
    for (uint64_t i = 0; i < kPages; ++i) pages.push_back(key(step * kPages + i));
    if (step >= 1000) {
      for (uint64_t i = 0; i < kPages / 2; ++i) pages.push_back(key((step - 1000) * kPages + i));
    }
    for (RevisitRecorder* recorder : {&sampled, &all}) recorder->record(pages, CacheClass::kAgent, 512, now);
    ASSERT_LE(sampled.followed(), kMost);
  }
  EXPECT_GT(all.followed(), 50 * kMost);
  const IntervalsByClass some = sampled.snapshot(300), every = all.snapshot(300);
  expect_sound(some);
  expect_sound(every);
  EXPECT_EQ(some[kAgent].requests, every[kAgent].requests);
  const auto uses = static_cast<double>(every[kAgent].uses);
  EXPECT_NEAR(static_cast<double>(some[kAgent].uses), uses, 0.1 * uses);
  const std::vector<double> estimated = some[kAgent].followed_within(), known = every[kAgent].followed_within();
  const size_t before = RevisitIntervals::bin_of(8), after = RevisitIntervals::bin_of(12);
  EXPECT_LT(estimated[before], 0.02);
  EXPECT_NEAR(estimated[after], known[after], 0.05);
  EXPECT_NEAR(known[after], 1.0 / 3, 0.02) << "of three uses, two are first ones, of which one is followed";
}

TEST(RevisitRecorder, ARecordingGoesOnWhereItWasSaved) {
  RevisitRecorder first(0);
  first.record(std::vector{key(1)}, CacheClass::kChat, 128, 1);
  first.record(std::vector{key(1)}, CacheClass::kChat, 128, 3);
  const RevisitRecording saved{.by_class = first.snapshot(10),
                               .costs = {.page_bytes = 1000,
                                         .page_positions = 128,
                                         .prefill_tokens_per_second = 500.5,
                                         .pull_bytes_per_second = {{"local", 1e9}}}};
  const auto read = parse_recording(recording_json(saved));
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->costs.page_bytes, 1000);
  EXPECT_EQ(read->costs.page_positions, 128);
  EXPECT_EQ(read->costs.prefill_tokens_per_second, 500.5);
  EXPECT_EQ(read->costs.pull_bytes_per_second, saved.costs.pull_bytes_per_second);
  RevisitRecorder second(1000, read->by_class);
  second.record(std::vector{key(1)}, CacheClass::kChat, 128, 1001);
  const IntervalsByClass recorded = second.snapshot(1020);
  expect_sound(recorded);
  EXPECT_EQ(recorded[kChat].uses, 3);
  EXPECT_EQ(recorded[kChat].revisits(), 1) << "what happened while nobody recorded is not known";
  EXPECT_EQ(recorded[kChat].ended_seconds, 2);
  EXPECT_EQ(recorded[kChat].span_seconds, 30);
}

TEST(RevisitRecorder, WhatWasMeasuredIsReadWithCare) {
  const std::string good = R"({"format":"deepinfer revisit intervals","version":1,"first_edge_seconds":0.1,"bins_per_decade":16,)"
                           R"("classes":{},"measured":)";
  EXPECT_TRUE(parse_recording(good + R"({"page_bytes":1,"page_positions":2}})").has_value());
  const std::pair<const char*, const char*> cases[] = {
      {"3}", "measured: must be an object"},
      {R"({"page_positions":2}})", "measured: page_bytes: is missing"},
      {R"({"page_bytes":-1,"page_positions":2}})", "measured: page_bytes: must be a whole number"},
      {R"({"page_bytes":1,"page_positions":2,"prefill_tokens_per_second":-1}})", "measured: prefill_tokens_per_second: must be"},
      {R"({"page_bytes":1,"page_positions":2,"pull_bytes_per_second":7}})", "measured: pull_bytes_per_second: must be an object"},
      {R"({"page_bytes":1,"page_positions":2,"pull_bytes_per_second":{"local":"fast"}}})", "measured: local: must be a number"},
  };
  for (const auto& [text, says] : cases) {
    const auto read = parse_recording(good + text);
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_NE(read.error().message().find(says), std::string::npos) << read.error().message();
  }
}

TEST(RevisitRecorder, ThreadsMayRecordAndReadAtOnce) {
  RevisitRecorder recorder(0, {}, 500);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder, t] {
      for (uint64_t i = 0; i < 2000; ++i) {
        recorder.record(std::vector{key(t * 1000 + i % 700), key(i)}, CacheClass::kChat, 256, static_cast<double>(i));
        if (i % 500 == 0) expect_sound(recorder.snapshot(static_cast<double>(i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const IntervalsByClass recorded = recorder.snapshot(2000);
  expect_sound(recorded);
  EXPECT_EQ(recorded[kChat].requests, 8000);
}

}  // namespace
}  // namespace deepinfer
