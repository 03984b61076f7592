#include "serve/serve_result.h"

#include <gtest/gtest.h>

#include <cmath>

#include "serve/serve_report.h"
#include "serve/server_counters.h"

namespace deepinfer::bench {
namespace {

LoadRecord answer(double at, double first, double last, int64_t tokens) {
  LoadRecord r;
  r.planned = at;
  r.sent = at;
  r.first_token = first;
  r.last_token = last;
  r.finished = last;
  r.input_tokens = 10;
  r.output_tokens = tokens;
  r.counted_by_server = true;
  for (int64_t i = 1; i < tokens; ++i) r.gaps.push_back(static_cast<float>((last - first) / static_cast<double>(tokens - 1)));
  return r;
}

LoadRun run_of(int64_t count, double rate, double service) {
  LoadRun run;
  for (int64_t i = 0; i < count; ++i) {
    const double at = static_cast<double>(i) / rate;
    run.records.push_back(answer(at, at + 0.1, at + service, 11));
    run.seconds = at + service;
  }
  return run;
}

ServeConditions conditions(double rate) {
  ServeConditions c;
  c.workload.request_rate = rate;
  c.model = "<m>";
  return c;
}

TEST(ServeResult, AddsUp) {
  LoadRun run = run_of(10, 2, 1.1);
  run.records[3].error = "HTTP 429";
  run.records[4].counted_by_server = false;
  ServeConditions c = conditions(2);
  c.goodput.e2el = 1000;
  const ServeResult r = summarize(c, run);
  EXPECT_EQ(r.completed, 9);
  EXPECT_EQ(r.failed, 1);
  EXPECT_EQ(r.errors.at("HTTP 429"), 1);
  EXPECT_EQ(r.total_output_tokens, 99);
  EXPECT_EQ(r.total_input_tokens, 90);
  EXPECT_EQ(r.counted_by_client, 1);
  EXPECT_NEAR(r.duration, 5.6, 1e-9);
  EXPECT_NEAR(r.output_throughput, 99 / 5.6, 1e-9);
  EXPECT_NEAR(r.offered_rate, 2, 1e-9);
  EXPECT_NEAR(r.sent_rate, 2, 1e-9);
  EXPECT_NEAR(r.ttft.mean, 100, 1e-6);
  EXPECT_NEAR(r.tpot.median, 100, 1e-6);
  EXPECT_NEAR(r.itl.p99, 100, 1e-3);
  EXPECT_EQ(r.itl.count, 90);
  EXPECT_EQ(r.request_goodput, 0) << "1.1 s is more than 1000 ms";
}

TEST(ServeResult, TableHasTheLabelsThatToolsLookFor) {
  const std::string table = format_table(summarize(conditions(2), run_of(10, 2, 1)));
  for (const char* label :
       {"============ Serving Benchmark Result ============", "Successful requests:", "Benchmark duration (s):",
        "Total input tokens:", "Total generated tokens:", "Request throughput (req/s):", "Output token throughput (tok/s):",
        "Total token throughput (tok/s):", "---------------Time to First Token----------------",
        "Mean TTFT (ms):", "Median TTFT (ms):", "P99 TTFT (ms):", "-----Time per Output Token (excl. 1st token)------",
        "P99 TPOT (ms):", "---------------Inter-token Latency----------------", "Median ITL (ms):"})
    EXPECT_NE(table.find(label), std::string::npos) << label << "\n" << table;
}

TEST(ServeResult, NothingToMeasureIsNoNumber) {
  LoadRun run;
  run.records.push_back(LoadRecord{});
  run.records[0].error = "connect";
  const ServeResult r = summarize(conditions(HUGE_VAL), run);
  EXPECT_EQ(format_table(r).find("nan"), std::string::npos);
  const auto json = nlohmann::ordered_json::parse(to_json(r).dump());
  EXPECT_TRUE(json["mean_ttft_ms"].is_null());
  EXPECT_EQ(json["request_rate"], "inf");
  const auto point = read_point(json, "x");
  ASSERT_TRUE(point.has_value());
  EXPECT_TRUE(std::isnan(point->median_ttft));
  EXPECT_EQ(rates_row(r).find("nan"), std::string::npos) << rates_row(r);
}

/// Requests at `rate`, answered one after the other at `capacity`, each in `service` seconds at least.
ServeResult queued(double rate, double capacity, double service) {
  LoadRun run;
  double free = 0;
  for (int i = 0; i < 200; ++i) {
    const double at = i / rate;
    free = std::max(free, at) + 1 / capacity;
    run.records.push_back(answer(at, free, free + service, 11));
  }
  run.seconds = run.records.back().finished;
  return summarize(conditions(rate), run);
}

TEST(ServeResult, AQueueThatGrowsIsNotKeptUpWith) {
  // Long answers are not a queue; slower ones under load are not either.
  for (const auto& [rate, service] : {std::pair(1.0, 5.0), {8.0, 2.0}, {32.0, 1.0}, {39.0, 2.0}})
    EXPECT_TRUE(queued(rate, 40, service).kept_up()) << rate;
  // A few requests are enough, and the last one does not have to be answered while requests come.
  for (const double rate : {0.1, 1.0, 10.0}) EXPECT_TRUE(summarize(conditions(rate), run_of(16, rate, 0.1)).kept_up()) << rate;
  for (const double rate : {48.0, 64.0, 96.0, 1e9}) EXPECT_FALSE(queued(rate, 40, 0.1).kept_up()) << rate;
  LoadRun at_once = run_of(5, 1, 100);
  for (LoadRecord& r : at_once.records) r.planned = r.sent = 0;
  EXPECT_TRUE(summarize(conditions(HUGE_VAL), at_once).kept_up());
}

TEST(ServeResult, ReadsCounters) {
  const auto counters = read_counters("# HELP a b 1\na{x=\"} 7\"} 2\na{x=\"z\"} 3\nb 1e2\nc NaN\nbroken\n\n");
  EXPECT_EQ(counters, (std::map<std::string, double>{{"a", 5}, {"b", 100}}));
}

TEST(ServeResult, GoodputLimits) {
  const auto g = Goodput::Parse("--goodput", {"ttft:500", "tpot:50.5"});
  ASSERT_TRUE(g.has_value());
  EXPECT_EQ(g->ttft, 500);
  EXPECT_EQ(g->tpot, 50.5);
  EXPECT_TRUE(g->met(answer(0, 0.4, 0.9, 11)));
  EXPECT_FALSE(g->met(answer(0, 0.6, 0.9, 11)));
  EXPECT_FALSE(g->met(answer(0, 0.4, 1.4, 11)));
  EXPECT_TRUE(g->met(answer(0, 0.4, 0.4, 1)));
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "itl:5", "ttft:-1", ":5"})
    EXPECT_FALSE(Goodput::Parse("--goodput", {bad}).has_value()) << bad;
}

/// Two sessions of two turns: the second ones start 1 s after the first have ended.
LoadRun sessions_run() {
  LoadRun run;
  for (const int64_t session : {0, 1}) {
    const auto at = static_cast<double>(session) * 4;
    run.records.push_back(answer(at, at + 0.2, at + 1, 5));
    run.records.push_back(answer(at + 2, at + 2.1, at + 3, 5));
    run.records.back().turn = 1;
    run.records.back().input_tokens = 25;
    run.records.back().cached_tokens = 15;
    run.seconds = at + 3;
  }
  return run;
}

TEST(ServeResult, Turns) {
  ServeConditions c = conditions(0.5);
  c.workload.turns = 2;
  c.num_clients = 7;
  const ServeResult r = summarize(c, sessions_run());
  ASSERT_EQ(r.turns.size(), 2u);
  EXPECT_EQ(r.turns[1].completed, 2);
  EXPECT_NEAR(r.turns[0].median_ttft, 200, 1e-6);
  EXPECT_NEAR(r.turns[1].median_ttft, 100, 1e-6);
  EXPECT_EQ(r.turns[1].cached_tokens, 30);
  EXPECT_NEAR(r.offered_rate, 0.5, 1e-9) << "a session of two requests every four seconds";
  const std::string table = format_table(r);
  EXPECT_NE(table.find("Turn 2: median TTFT (ms), cached (%):    100.00, 60.0"), std::string::npos) << table;
  EXPECT_NE(table.find("Clients:"), std::string::npos);
  EXPECT_EQ(to_json(r)["rounds"][1]["cached_tokens"], 30);
  EXPECT_FALSE(to_json(summarize(conditions(2), run_of(10, 2, 1))).contains("rounds"));
}

TEST(ServeResult, RefusedRequestsAreNotKeptUpWith) {
  LoadRun run = run_of(20, 2, 0.1);
  EXPECT_TRUE(summarize(conditions(2), run).kept_up());
  for (size_t i = 10; i < 13; ++i) run.records[i].error = "HTTP 429: full";
  const ServeResult r = summarize(conditions(2), run);
  EXPECT_NEAR(r.good_share, 0.85, 1e-9);
  EXPECT_FALSE(r.kept_up());
  ServeConditions strict = conditions(2);
  strict.goodput.ttft = 50;
  EXPECT_FALSE(summarize(strict, run_of(20, 2, 0.1)).kept_up()) << "100 ms is more than 50";
}

TEST(ServeResult, ManyKindsOfErrorsStayShort) {
  LoadRun run = run_of(40, 2, 0.1);
  for (size_t i = 0; i < 40; ++i) run.records[i].error = "request " + std::to_string(i) + " is lost";
  const std::string table = format_table(summarize(conditions(2), run));
  EXPECT_NE(table.find("    30   other kinds of errors"), std::string::npos) << table;
  EXPECT_EQ(rates_row(summarize(conditions(2), run)).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::bench
