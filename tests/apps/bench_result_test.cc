#include "bench_result.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepinfer::bench {
namespace {

using Json = nlohmann::json;

TEST(Percentile, InterpolatesAsNumPyDoes) {
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_EQ(percentile({1, 2, 3, 4}, 0.5), 2.5);
  EXPECT_EQ(percentile({1, 2, 3, 4}, 0), 1);
  EXPECT_EQ(percentile({1, 2, 3, 4}, 1), 4);
  EXPECT_DOUBLE_EQ(percentile({10, 20, 30, 40, 50}, 0.95), 48);
}

TEST(Distribution, LeavesNanOut) {
  const Distribution d = distribution({3, std::nan(""), 1, 2});
  EXPECT_EQ(d.count, 3);
  EXPECT_EQ(d.mean, 2);
  EXPECT_EQ(d.median, 2);
  EXPECT_EQ(d.max, 3);
  EXPECT_EQ(distribution({}).count, 0);
  EXPECT_TRUE(std::isnan(distribution({}).mean));
}

RequestRecord record(double submitted, double first, double finished, int64_t tokens, Outcome outcome) {
  RequestRecord r;
  r.submitted = submitted;
  r.first_token = first;
  r.finished = finished;
  r.prompt_tokens = 100;
  r.output_tokens = tokens;
  r.usage.cached_tokens = 50;
  r.usage.replayed_tokens = 10;
  r.outcome = outcome;
  r.cache_class = "chat";
  return r;
}

RunRecord example() {
  RunRecord run;
  run.seconds = 2;
  run.requests = {record(0, 0.1, 1.1, 11, Outcome::kCompleted), record(0, 0.3, 1.3, 21, Outcome::kCompleted),
                  record(0, 0.2, 2.0, 8, Outcome::kCancelled), record(0, std::nan(""), 0.0, 0, Outcome::kFailed)};
  run.requests[0].tpot = 0.1;
  run.requests[0].finish = FinishReason::kLength;
  run.requests[1].tpot = 0.05;
  run.requests[3].error = "full, \"really\"";
  run.inter_token_times = {0.1f, 0.05f};
  run.before.steps = 10;
  run.after.steps = 30;
  run.before.prompt_tokens = 1000;
  run.after.prompt_tokens = 1300;
  run.after.cached_tokens = 150;
  run.after.replayed_tokens = 30;
  run.after.generation_tokens = 40;
  run.after.row_layers = 250;
  run.before.drafts = 3;
  run.before.drafted_tokens = 10;
  run.after.drafts = 13;
  run.after.drafted_tokens = 40;
  run.after.accepted_tokens = 25;
  run.after.full_row_layers = 1000;
  run.after.device_idle_seconds = 0.5;
  run.before.plan = {1.0, 0.1, 10};
  run.after.plan = {1.002, 0.2, 30};
  run.after.pages_total = 100;
  run.min_pages_free = 60;
  return run;
}

TEST(Summarize, Figures) {
  const BenchResult r = summarize({}, example());
  EXPECT_EQ(r.completed, 2);
  EXPECT_EQ(r.failed, 1);
  EXPECT_EQ(r.cancelled, 1);
  EXPECT_EQ(r.first_error, "full, \"really\"");
  EXPECT_EQ(r.total_input_tokens, 300);  // the failed one was not run
  EXPECT_EQ(r.total_output_tokens, 40);
  EXPECT_EQ(r.request_throughput, 1);
  EXPECT_EQ(r.output_throughput, 20);
  EXPECT_EQ(r.total_token_throughput, 170);
  EXPECT_EQ(r.ttft.count, 2);
  EXPECT_DOUBLE_EQ(r.ttft.mean, 200);
  EXPECT_DOUBLE_EQ(r.ttft.max, 300);
  EXPECT_DOUBLE_EQ(r.tpot.mean, 75);
  EXPECT_NEAR(r.itl.mean, 75, 1e-4);
  EXPECT_DOUBLE_EQ(r.e2el.median, 1200);
  EXPECT_EQ(r.cached_tokens, 150);
  EXPECT_EQ(r.cache_hit_rate, 0.5);
  EXPECT_EQ(r.replayed_tokens, 30);
  EXPECT_EQ(r.steps, 20);
  EXPECT_EQ(r.drafts, 10);
  EXPECT_EQ(r.drafted_tokens, 30);
  EXPECT_EQ(r.accepted_tokens, 25);
  EXPECT_EQ(r.tokens_per_step, (300 - 150 + 30 + 40) / 20.0);
  EXPECT_EQ(r.work_saved, 0.75);
  EXPECT_EQ(r.device_idle_share, 0.25);
  EXPECT_NEAR(r.plan_mean_us, 100, 1e-6);
  EXPECT_NEAR(r.plan_max_us, 2e5, 1e-6);
  EXPECT_EQ(r.peak_pages_used, 40);
}

TEST(Summarize, NothingDone) {
  const BenchResult r = summarize({}, {});
  EXPECT_EQ(r.output_throughput, 0);
  EXPECT_EQ(r.cache_hit_rate, 0);
  const Json json = Json::parse(to_json(r).dump());
  EXPECT_TRUE(json["mean_ttft_ms"].is_null());
  EXPECT_TRUE(json["first_error"].is_null());
  EXPECT_NE(format_table(r).find("Mean TTFT (ms):"), std::string::npos);
}

TEST(ToJson, HasConditionsAndFigures) {
  BenchConditions c;
  c.workload.arrival = Arrival::kPoisson;
  c.engine.replay = ReplayMode::kExact;
  c.model.name = "nano";
  c.settings.sampling.top_p = 0.9f;
  c.engine.kv_cache_memory = 1 << 20;
  describe_machine(c);
  const Json json = Json::parse(to_json(summarize(c, example())).dump());
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["output_throughput"], 20.0);
  EXPECT_NEAR(json["p99_ttft_ms"].get<double>(), 298, 1e-9);
  EXPECT_EQ(json["cache"]["hit_rate"], 0.5);
  EXPECT_EQ(json["engine"]["device_idle_share"], 0.25);
  const Json& conditions = json["conditions"];
  EXPECT_EQ(conditions["model"], "nano");
  EXPECT_EQ(conditions["arrival"], "poisson");
  EXPECT_EQ(conditions["request_rate"], "inf");
  EXPECT_EQ(conditions["top_p"], 0.9);
  EXPECT_EQ(conditions["engine"]["replay"], "exact");
  EXPECT_EQ(conditions["engine"]["kv_cache_memory"], 1 << 20);
  EXPECT_FALSE(conditions["cpu"].get<std::string>().empty());
  EXPECT_GT(conditions["threads"].get<int>(), 0);
  EXPECT_EQ(json["date"].get<std::string>().size(), 20u);
  EXPECT_FALSE(json["commit"].get<std::string>().empty());
}

TEST(FormatTable, LabelsOfServingBenchmarks) {
  const std::string table = format_table(summarize({}, example()));
  for (const char* label :
       {"Serving Benchmark Result", "Successful requests:", "Failed requests:", "Benchmark duration (s):", "Total input tokens:",
        "Total generated tokens:", "Request throughput (req/s):", "Output token throughput (tok/s):",
        "Total token throughput (tok/s):", "Time to First Token",
        "P99 TTFT (ms):", "Median TPOT (ms):", "P95 ITL (ms):", "Max E2EL (ms):", "Cache hit rate (%):", "Device idle (%):"}) {
    EXPECT_NE(table.find(label), std::string::npos) << label << "\n" << table;
  }
}

TEST(RequestsCsv, OneLineEach) {
  const std::string csv = requests_csv(example());
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 5);
  EXPECT_NE(csv.find("0,chat,completed,length,0.000000,0.000000,100,100,1100,100,11,50,10,none,0,\n"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\"full, \"\"really\"\"\""), std::string::npos) << csv;
  EXPECT_EQ(csv.find("nan"), std::string::npos) << csv;
}

}  // namespace
}  // namespace deepinfer::bench
