// What `deepinfer cache plan` computes with, on data of which the answer is known.

#include "retention_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "cache/revisit_intervals.h"

namespace deepinfer::cache {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr auto kChat = static_cast<size_t>(CacheClass::kChat);
constexpr auto kAgent = static_cast<size_t>(CacheClass::kAgent);

PageTrace trace_of(std::vector<PageRequest> requests) { return {.requests = std::move(requests), .page_positions = 128}; }

PageRequest request(double time, std::vector<uint64_t> pages, CacheClass cache_class = CacheClass::kChat) {
  return {.time = time,
          .cache_class = cache_class,
          .prompt_tokens = static_cast<int64_t>(pages.size()) * 128,
          .pages = std::move(pages)};
}

ReplayOptions limits(double chat_ttl, double agent_ttl, int64_t capacity) {
  return {.ttl_seconds = {chat_ttl, agent_ttl, kForever}, .capacity_pages = capacity};
}

TEST(PageTrace, BlocksAndPrefixesBecomePages) {
  bench::TraceRow mooncake{.arrival = 1, .input_len = 700, .output_len = 1, .prefix_id = {}, .prefix_len = 0, .cache_class = ""};
  mooncake.block_ids = {0, 7};
  bench::TraceRow other = mooncake;
  other.block_ids = {0, 8};
  PageTrace trace = trace_of({});
  ASSERT_TRUE(add_rows(trace, {mooncake, other}, CacheClass::kAgent, 0).ok());
  EXPECT_EQ(trace.requests[0].pages.size(), 5U) << "700 tokens are five full pages";
  EXPECT_TRUE(std::equal(trace.requests[0].pages.begin(), trace.requests[0].pages.begin() + 4, trace.requests[1].pages.begin()));
  EXPECT_NE(trace.requests[0].pages[4], trace.requests[1].pages[4]);
  EXPECT_EQ(trace.requests[0].cache_class, CacheClass::kAgent);

  bench::TraceRow turn{.arrival = 2, .input_len = 512, .output_len = 1, .prefix_id = 3, .prefix_len = 300, .cache_class = "chat"};
  ASSERT_TRUE(add_rows(trace, {turn, turn}, CacheClass::kAgent, 1).ok());
  const auto& a = trace.requests[2].pages;
  const auto& b = trace.requests[3].pages;
  EXPECT_EQ(trace.requests[2].cache_class, CacheClass::kChat);
  EXPECT_TRUE(a[0] == b[0] && a[1] == b[1]) << "two full pages of the 300 tokens in common";
  EXPECT_TRUE(a[2] != b[2] && a[3] != b[3]) << "the rest is each one's own";
  ASSERT_TRUE(add_rows(trace, {turn}, CacheClass::kAgent, 2).ok());
  EXPECT_NE(trace.requests[4].pages[0], a[0]) << "another trace, another prefix 3";
}

TEST(PageTrace, RefusesRowsThatSayNothingAboutSharing) {
  PageTrace trace = trace_of({});
  bench::TraceRow azure{.arrival = 0, .input_len = 512, .output_len = 1, .prefix_id = {}, .prefix_len = 0, .cache_class = ""};
  EXPECT_NE(add_rows(trace, {azure}, CacheClass::kChat, 0).message().find("request 1: has neither hash_ids nor a prefix_id"),
            std::string::npos);
  azure.input_len = 2000;
  azure.block_ids = {1, 2};
  EXPECT_NE(add_rows(trace, {azure}, CacheClass::kChat, 0).message().find("has 2 hash_ids"), std::string::npos);
}

TEST(PageReplay, TimeToLiveDecides) {
  const PageTrace trace = trace_of({request(0, {1, 2, 3}), request(5, {1, 2, 4}), request(20, {1, 2, 3})});
  const ReplayResult all = replay(trace, limits(kForever, kForever, 0));
  EXPECT_EQ(all.by_class[kChat].hit_pages, 2 + 3);
  EXPECT_EQ(all.by_class[kChat].pages, 9);
  EXPECT_EQ(all.most_pages, 4);
  EXPECT_EQ(all.by_class[kChat].requests_hit, 2);
  const ReplayResult fifteen = replay(trace, limits(15, 0, 0));
  EXPECT_EQ(fifteen.by_class[kChat].hit_pages, 2 + 2) << "page 3 was last used 20 seconds before";
  EXPECT_EQ(fifteen.by_class[kChat].expired, 1);
  const ReplayResult ten = replay(trace, limits(10, 0, 0));
  EXPECT_EQ(ten.by_class[kChat].hit_pages, 2);
  // Pages 1 and 2 from 0 to 15, pages 3 from 0 to 10 and 4 from 5 to 15.
  EXPECT_DOUBLE_EQ(ten.by_class[kChat].page_seconds, 15 + 15 + 10 + 10);
  const ReplayResult none = replay(trace, limits(0, 0, 0));
  EXPECT_EQ(none.by_class[kChat].hit_pages, 0);
  EXPECT_EQ(none.most_pages, 0);
}

TEST(PageReplay, OnlyLeadingPagesAreHit) {
  const ReplayResult r = replay(trace_of({request(0, {1, 2, 3}), request(1, {9, 2, 3})}), limits(kForever, kForever, 0));
  EXPECT_EQ(r.by_class[kChat].hit_pages, 0);
}

TEST(PageReplay, EndsOfPromptsMakeRoomFirst) {
  const PageTrace trace = trace_of({request(0, {1, 2, 3, 4}), request(1, {10}), request(2, {1, 2, 3, 4})});
  const ReplayResult r = replay(trace, limits(100, 100, 4));
  EXPECT_EQ(r.by_class[kChat].hit_pages, 3);
  EXPECT_LE(r.most_pages, 4);
}

TEST(PageReplay, ChatsExpireBeforeAgents) {
  const PageTrace trace = trace_of(
      {request(0, {1, 2}, CacheClass::kAgent), request(10, {3, 4}), request(11, {5}), request(12, {1, 2}, CacheClass::kAgent)});
  const ReplayResult r = replay(trace, limits(60, 3600, 4));
  EXPECT_EQ(r.by_class[kAgent].hit_pages, 2);
  EXPECT_EQ(r.by_class[kChat].evicted, 1);
  // Without times to live the one used longest ago goes, whosever it is.
  EXPECT_EQ(replay(trace, limits(kForever, kForever, 4)).by_class[kAgent].hit_pages, 1);
}

/// A cache without indices: every page it has with the time of its last use.
int64_t naive_hits(const PageTrace& trace, double ttl) {
  std::map<uint64_t, double> last;
  int64_t hits = 0;
  for (const PageRequest& r : trace.requests) {
    size_t n = 0;
    while (n < r.pages.size() && last.contains(r.pages[n]) && r.time - last[r.pages[n]] <= ttl) ++n;
    hits += static_cast<int64_t>(n);
    for (const uint64_t page : r.pages) last[page] = r.time;
  }
  return hits;
}

PageTrace random_sessions(uint64_t seed, int requests) {
  std::mt19937_64 random(seed);
  PageTrace trace = trace_of({});
  std::vector<int> turns(40, 0);
  double time = 0;
  for (int i = 0; i < requests; ++i) {
    time += std::exponential_distribution<>(1)(random);
    const uint64_t session = random() % turns.size();
    std::vector<uint64_t> pages;
    for (int page = 0; page < 2 + turns[session]; ++page) pages.push_back(session * 1000 + static_cast<uint64_t>(page));
    turns[session] = random() % 20 == 0 ? 0 : turns[session] + 1;
    trace.requests.push_back(request(time, std::move(pages)));
  }
  return trace;
}

TEST(PageReplay, AgreesWithACacheThatOnlyCompares) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const PageTrace trace = random_sessions(seed, 600);
    for (const double ttl : {1.0, 10.0, 40.0, 1000.0})
      EXPECT_EQ(replay(trace, limits(ttl, ttl, 0)).by_class[kChat].hit_pages, naive_hits(trace, ttl)) << seed << ", " << ttl;
  }
}

TEST(RevisitIntervals, HitRateOfTheRecordingIsThatOfAReplay) {
  // Without open ends to correct: the last use of every page lies long before the end.
  PageTrace trace = random_sessions(7, 3000);
  trace.requests.push_back(request(trace.requests.back().time + 1e6, {1u << 30}));
  const RevisitIntervals chat = record_intervals(trace)[kChat];
  const std::vector<double> followed = chat.followed_within();
  for (size_t bin = 10; bin < 70; bin += 7) {
    const double replayed = replay(trace, limits(RevisitIntervals::edge(bin), 1, 0)).by_class[kChat].hit_rate();
    EXPECT_NEAR(followed[bin], replayed, 2e-3) << RevisitIntervals::edge(bin);
  }
}

/// Pages used again after intervals of some distribution, with a probability, watched for `span` seconds.
RevisitIntervals sampled(const std::function<double(std::mt19937_64&)>& interval, double revisited, double span, int pages) {
  std::mt19937_64 random(3);
  RevisitIntervals out;
  out.span_seconds = span;
  out.requests = pages;
  for (int i = 0; i < pages; ++i) {
    double time = std::uniform_real_distribution<>(0, span)(random);
    for (;;) {
      ++out.uses;
      const double gap = std::uniform_real_distribution<>(0, 1)(random) < revisited ? interval(random) : 1e12;
      if (time + gap > span) break;
      time += gap;
      ++out.ended[RevisitIntervals::bin_of(gap)];
    }
    ++out.open[RevisitIntervals::bin_of(span - time)];
  }
  return out;
}

TEST(RevisitIntervals, WhatWasNotSeenToTheEndCountsAsLongAsItWasSeen) {
  // Half of the uses are followed by another, a thousand seconds later on average, and only two thousand are watched: counting
  // alone would find much less than half.
  const auto seen = sampled([](auto& random) { return std::exponential_distribution<>(1e-3)(random); }, 0.5, 2000, 60'000);
  const auto counted = static_cast<double>(seen.revisits()) / static_cast<double>(seen.uses);
  EXPECT_LT(counted, 0.3);
  const std::vector<double> followed = seen.followed_within();
  for (const double t : {100.0, 500.0, 1000.0, 1700.0}) {
    const size_t bin = RevisitIntervals::bin_of(t);
    EXPECT_NEAR(followed[bin], 0.5 * (1 - std::exp(-RevisitIntervals::edge(bin) / 1000)), 0.012) << t;
  }
}

TEST(IntervalFit, FindsTheDistributionThatWasThere) {
  struct Truth {
    IntervalFamily family;
    std::function<double(std::mt19937_64&)> draw;
    std::vector<double> parameters;
  };
  const Truth truths[] = {
      {IntervalFamily::kExponential, [](auto& r) { return std::exponential_distribution<>(1.0 / 300)(r); }, {300}},
      {IntervalFamily::kWeibull, [](auto& r) { return std::weibull_distribution<>(0.6, 400)(r); }, {400, 0.6}},
      {IntervalFamily::kLogNormal, [](auto& r) { return std::lognormal_distribution<>(std::log(120.0), 1.2)(r); }, {120, 1.2}},
  };
  for (const Truth& truth : truths) {
    const auto fits = fit_intervals(sampled(truth.draw, 0.7, 20'000, 30'000));
    ASSERT_EQ(fits.size(), kIntervalFamilyCount);
    const auto name = std::string(interval_family_name(truth.family));
    const auto at = std::find_if(fits.begin(), fits.end(), [&](const auto& fit) { return fit.family == truth.family; });
    EXPECT_NEAR(at->revisited, 0.7, 0.02) << name;
    for (size_t p = 0; p < truth.parameters.size(); ++p)
      EXPECT_NEAR(at->parameters[p] / truth.parameters[p], 1, 0.05) << name << ", " << parameter_names(truth.family)[p];
    EXPECT_LT(at->ks_distance, 0.01) << name;
    for (const IntervalFit& other : fits) {
      if (parameter_names(other.family).size() > truth.parameters.size()) continue;  // it may contain the true one
      EXPECT_GE(other.bic, at->bic) << name << " against " << interval_family_name(other.family);
    }
  }
}

TEST(IntervalFit, TellsTwoKindsOfRevisitsApart) {
  const auto draw = [](std::mt19937_64& r) {
    const bool quick = std::uniform_real_distribution<>(0, 1)(r) < 0.4;
    return std::lognormal_distribution<>(std::log(quick ? 2.0 : 600.0), quick ? 0.5 : 0.8)(r);
  };
  const auto fits = fit_intervals(sampled(draw, 0.5, 50'000, 30'000));
  ASSERT_FALSE(fits.empty());
  EXPECT_EQ(fits.front().family, IntervalFamily::kTwoLogNormals);
  EXPECT_LT(fits.front().ks_distance, 0.01);
  EXPECT_GT(fits.back().ks_distance, 0.05) << "one that can't";
}

TEST(IntervalFit, SaysNothingAboutTooLittle) {
  RevisitIntervals few;
  few.uses = kLeastRevisits;
  few.ended[20] = kLeastRevisits - 1;
  few.open[40] = 1;
  EXPECT_TRUE(fit_intervals(few).empty());
  EXPECT_TRUE(fit_intervals({}).empty());
}

TEST(RetentionCost, CheapestIsWhereTheNextSecondPaysForItself) {
  // Weibull of shape 1/2: the chance of a use in the next second falls like 1 / sqrt(t).
  const double p = 0.6, scale = 1000, shape = 0.5;
  const auto followed = [=](double t) { return p * -std::expm1(-std::pow(t / scale, shape)); };
  const PageCosts costs{.prefill = 1, .hit = 0.1, .storage_per_second = 5e-5};
  const std::vector<RetentionPoint> curve = retention_curve(followed, costs, 1e6);
  const RetentionPoint& best = cheapest(curve);
  const auto hazard = [&](double t) { return (followed(t * 1.001) - followed(t * 0.999)) / (t * 0.002) / (1 - followed(t)); };
  const double threshold = costs.storage_per_second / (costs.prefill - costs.hit);
  EXPECT_NEAR(hazard(best.ttl_seconds) / threshold, 1, 0.1);
  EXPECT_GT(hazard(best.ttl_seconds / 2), threshold);
  EXPECT_LT(hazard(best.ttl_seconds * 2), threshold);
  EXPECT_DOUBLE_EQ(curve.front().cost, costs.prefill) << "nothing kept: everything computed";
  for (const RetentionPoint& point : curve) {
    EXPECT_LE(point.held_seconds, point.ttl_seconds);
    EXPECT_GE(point.cost, best.cost);
  }
}

TEST(RetentionCost, WhatCostsMoreToKeepIsNotKept) {
  const auto followed = [](double t) { return -std::expm1(-t / 100); };
  EXPECT_EQ(cheapest(retention_curve(followed, {.prefill = 1, .hit = 0, .storage_per_second = 0.02}, 1e4)).ttl_seconds, 0);
  EXPECT_EQ(cheapest(retention_curve(followed, {.prefill = 1, .hit = 0, .storage_per_second = 0}, 1e3)).hit_rate, followed(1e3));
  EXPECT_FALSE((PageCosts{.prefill = 1, .hit = 1}).validate().ok());
  EXPECT_FALSE((PageCosts{.prefill = 0}).validate().ok());
  EXPECT_FALSE((PageCosts{.prefill = 1, .hit = 0, .storage_per_second = NAN}).validate().ok());
}

TEST(RetentionPlan, SpaceIsWhatAReplayHolds) {
  const PageTrace trace = random_sessions(11, 20'000);
  PlanPrices prices{.page_bytes = 1000, .page_positions = 128, .prefill_tokens_per_second = 1000, .pull_bytes_per_second = 1e6};
  prices.device_per_hour = 1;
  prices.storage_per_gib_month = 2e5;
  auto plan = make_plan(record_intervals(trace), prices, 1, 1e5);
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  ASSERT_EQ(plan->classes.size(), 1U);
  add_replays(*plan, trace, 0);
  const ReplayCounts replayed = plan->replays.front().result.total();
  const ClassPlan& chat = plan->classes.front();
  EXPECT_GT(chat.best.ttl_seconds, 0);
  EXPECT_NEAR(chat.best.hit_rate, replayed.hit_rate(), 0.02);
  EXPECT_NEAR(chat.budget_bytes / (replayed.page_seconds / trace.span() * 1000), 1, 0.05);
}

TEST(RevisitIntervals, JsonKeepsThem) {
  PageTrace trace = random_sessions(5, 500);
  trace.requests.push_back(request(trace.requests.back().time + 1, {77}, CacheClass::kAgent));
  const IntervalsByClass before = record_intervals(trace);
  const auto after = parse_recording(recording_json({.by_class = before, .costs = {}}));
  ASSERT_TRUE(after.has_value()) << after.error().message();
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    EXPECT_EQ(after->by_class[c].ended, before[c].ended);
    EXPECT_EQ(after->by_class[c].open, before[c].open);
    EXPECT_EQ(after->by_class[c].uses, before[c].uses);
    EXPECT_EQ(after->by_class[c].requests, before[c].requests);
  }
}

TEST(RevisitIntervals, HostileRecordingsAreRefusedByName) {
  const auto good = nlohmann::json::parse(recording_json({.by_class = record_intervals(random_sessions(5, 50)), .costs = {}}));
  struct Hostile {
    const char* pointer;
    nlohmann::json value;
    const char* says;
  };
  const Hostile all[] = {
      {"/format", "something else", "format: must be"},
      {"/version", 2, "version"},
      {"/bins_per_decade", 8, "bins_per_decade"},
      {"/classes", 3, "classes: must be an object"},
      {"/classes", {{"robot", 1}}, "robot"},
      {"/classes/chat", 3, "classes: chat: must be an object"},
      {"/classes/chat/uses", -1, "classes: chat: uses"},
      {"/classes/chat/uses", 7, "uses: is 7"},
      {"/classes/chat/requests", 1.5, "requests: must be a whole number"},
      {"/classes/chat/span_seconds", -1, "span_seconds"},
      {"/classes/chat/span_seconds", 1e300, "span_seconds"},
      {"/classes/chat/ended", 5, "ended: must be a list"},
      {"/classes/chat/ended", {{1000, 1}}, "ended: has [1000,1]"},
      {"/classes/chat/ended", {{-1, 1}}, "ended: has"},
      {"/classes/chat/open", {{1, uint64_t{1} << 60}}, "open: has"},
      {"/classes/chat/open", {{1}}, "open: has [1]"},
  };
  for (const Hostile& hostile : all) {
    nlohmann::json json = good;
    json[nlohmann::json::json_pointer(hostile.pointer)] = hostile.value;
    const auto parsed = parse_recording(json.dump());
    ASSERT_FALSE(parsed.has_value()) << hostile.pointer;
    EXPECT_NE(parsed.error().message().find(hostile.says), std::string::npos) << parsed.error().message();
  }
  for (const char* text : {"", "[]", "{", "null", "{\"format\":1}"}) EXPECT_FALSE(parse_recording(text).has_value()) << text;
}

}  // namespace
}  // namespace deepinfer::cache
