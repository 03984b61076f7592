// The two commands from their arguments to their files, over a fake engine.

#include "bench_command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/command_run.h"
#include "apps/fake_engine.h"
#include "apps/xml_check.h"
#include "checkpoint/temp_dir.h"

namespace deepinfer::bench {
namespace {

using testing::FakeBehaviour;
using testing::FakeLog;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

struct CommandRun : testing::CommandOutput {
  std::shared_ptr<FakeLog> log = std::make_shared<FakeLog>();
};

CommandRun run(Arguments arguments, const FakeBehaviour& behaviour = {}) {
  CommandRun result;
  CLI::App app;
  app.require_subcommand(1);
  cli::Command chosen;
  add_bench_command(app, chosen, testing::fake_factory(behaviour, result.log));
  arguments.insert(arguments.begin() + 1, {"-m", "fake"});
  arguments.insert(arguments.begin(), "bench");
  static_cast<testing::CommandOutput&>(result) = testing::run_command(app, chosen, std::move(arguments));
  return result;
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

TEST(BenchThroughput, Table) {
  const CommandRun r = run({"throughput", "--num-prompts", "10", "--input-len", "32", "--output-len", "4", "--concurrency", "2"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_NE(r.out.find("Successful requests:                         10"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("Total input tokens:                          320"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("Total generated tokens:                      40"), std::string::npos) << r.out;
  EXPECT_EQ(r.log->requests.size(), 10u);
  EXPECT_LE(r.log->max_in_flight, 2);
}

TEST(BenchThroughput, JsonOnStandardOutputAndRequestsInAFile) {
  const std::string csv = testing::scratch_dir("bench") + "/requests.csv";
  const CommandRun r = run(
      {"throughput", "--num-prompts", "6", "--input-len", "16", "--output-len", "4",     "--warmup", "3", "--shared-prefix-ratio",
       "0.5",        "--seed",        "9", "--threads",   "3",  "--replay",     "exact", "--json",   "-", "--save-requests",
       csv});
  EXPECT_EQ(r.code, 0) << r.err;
  const std::vector<Json> lines = json_lines(r.out);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["completed"], 6);
  EXPECT_EQ(lines[0]["total_output_tokens"], 24);
  EXPECT_EQ(lines[0]["cache"]["hit_rate"], 0.5);
  EXPECT_EQ(lines[0]["cache"]["work_saved"], 0.5);
  EXPECT_GT(lines[0]["engine"]["steps"].get<int64_t>(), 0);
  const Json& conditions = lines[0]["conditions"];
  EXPECT_EQ(conditions["seed"], 9);
  EXPECT_EQ(conditions["threads"], 3);
  EXPECT_EQ(conditions["warmup"], 3);
  EXPECT_EQ(conditions["num_prompts"], 6);
  EXPECT_EQ(conditions["engine"]["replay"], "exact");
  EXPECT_EQ(r.log->requests.size(), 9u);
  ASSERT_EQ(r.log->engines.size(), 1u);
  EXPECT_EQ(r.log->engines[0].model, "fake");
  const std::string text = read(csv);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7) << text;
}

TEST(BenchThroughput, JsonFileIsReplacedUnlessAppended) {
  const std::string file = testing::scratch_dir("bench") + "/result.json";
  const Arguments base = {"throughput", "--num-prompts", "2", "--input-len", "4", "--output-len", "2", "--json", file};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run(base).code, 0);
  EXPECT_EQ(json_lines(read(file)).size(), 1u);
  Arguments append = base;
  append.emplace_back("--append-result");
  EXPECT_EQ(run(append).code, 0);
  EXPECT_EQ(json_lines(read(file)).size(), 2u);
}

TEST(BenchThroughput, Trace) {
  const std::string file = testing::scratch_dir("bench") + "/trace.jsonl";
  std::ofstream(file) << R"({"arrival": 0.01, "input_len": 8, "output_len": 3, "prefix_id": 1, "class": "agent"})"
                      << "\n"
                      << R"({"arrival": 0, "input_len": 5, "output_len": 2})"
                      << "\n";
  const CommandRun r = run({"throughput", "--trace", file, "--json", "-"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json_lines(r.out)[0]["total_output_tokens"], 5);
  EXPECT_EQ(json_lines(r.out)[0]["conditions"]["trace"], file);
  ASSERT_EQ(r.log->requests.size(), 2u);
  EXPECT_EQ(r.log->requests[0].prompt.size(), 5u);
  EXPECT_EQ(r.log->requests[1].cache_class, "agent");
}

TEST(BenchThroughput, FailuresAreTold) {
  FakeBehaviour some;
  some.fail_every = 2;
  const Arguments arguments = {"throughput", "--num-prompts", "4", "--input-len", "4", "--output-len", "4"};
  const CommandRun half = run(arguments, some);
  EXPECT_EQ(half.code, 0);
  EXPECT_EQ(half.err, "deepinfer: 2 of 4 requests failed, the first with: a made-up defect\n");
  FakeBehaviour all;
  all.refuse_every = 1;
  EXPECT_EQ(run(arguments, all).code, 1);
}

TEST(BenchThroughput, EosAndDuration) {
  FakeBehaviour behaviour;
  behaviour.stop_after = 2;
  const Arguments base = {"throughput", "--num-prompts", "2", "--input-len", "4", "--output-len", "8", "--json", "-"};
  Arguments early = base;
  early.emplace_back("--no-ignore-eos");
  EXPECT_EQ(json_lines(run(base, behaviour).out)[0]["total_output_tokens"], 16);
  EXPECT_EQ(json_lines(run(early, behaviour).out)[0]["total_output_tokens"], 4);
  behaviour.never_answer = true;
  Arguments limited = base;
  limited.insert(limited.end(), {"--duration", "0.05"});
  const Json json = json_lines(run(limited, behaviour).out)[0];
  EXPECT_EQ(json["cancelled"], 2);
  EXPECT_TRUE(json["timed_out"].get<bool>());
  EXPECT_TRUE(json["mean_ttft_ms"].is_null());
}

TEST(BenchSweep, EveryCombinationAndEveryFile) {
  const std::string dir = testing::scratch_dir("bench");
  const CommandRun r = run({"sweep", "--concurrency", "1,4", "--input-len", "8,16", "--shared-prefix-ratio", "0,0.9",
                            "--output-len", "3", "--num-prompts", "4", "--json", dir + "/s.jsonl", "--csv", dir + "/s.csv",
                            "--svg", dir + "/s.svg", "--html", dir + "/s.html"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 9) << r.out;
  const std::vector<Json> lines = json_lines(read(dir + "/s.jsonl"));
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0]["conditions"]["concurrency"], 1);
  EXPECT_EQ(lines[1]["conditions"]["concurrency"], 4);
  EXPECT_EQ(lines[7]["conditions"]["input_len"], 16);
  EXPECT_EQ(lines[7]["conditions"]["shared_prefix_ratio"], 0.9);
  EXPECT_FALSE(lines[7]["conditions"]["reused_engine"].get<bool>());
  EXPECT_EQ(r.log->engines.size(), 8u);
  const std::string csv = read(dir + "/s.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 9);
  EXPECT_EQ(testing::xml_defect(read(dir + "/s.svg")), "");
  EXPECT_EQ(testing::xml_defect(read(dir + "/s.html")), "");
}

TEST(BenchSweep, ReusedEngineGetsOtherPrompts) {
  const CommandRun r = run({"sweep", "--concurrency", "1,2", "--input-len", "8", "--output-len", "2", "--num-prompts", "2",
                            "--reuse-engine", "--json", "-"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json_lines(r.out).size(), 2u);
  EXPECT_EQ(r.log->engines.size(), 1u);
  ASSERT_EQ(r.log->requests.size(), 4u);
  EXPECT_NE(r.log->requests[0].prompt, r.log->requests[2].prompt);
}

TEST(BenchSweep, WhatCannotFitIsToldBeforeTheFirstRun) {
  const CommandRun r = run({"sweep", "--input-len", "8,9000", "--output-len", "2"});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, "--input-len is 9000 and --output-len 2: 9002 tokens, max_model_len is 8192");
  EXPECT_TRUE(r.log->requests.empty());
  EXPECT_EQ(r.out, "");
}

TEST(BenchCommand, NeedsOneOfTheTwo) {
  const std::pair<Arguments, const char*> cases[] = {{{"bench"}, "bench: throughput, sweep, serve or report must follow"},
                                                     {{"bench", "fly"}, "fly"},
                                                     {{"bench", "--fly"}, "--fly"}};
  for (const auto& [arguments, named] : cases) {
    CLI::App app;
    cli::Command chosen;
    add_bench_command(app, chosen, testing::fake_factory({}, std::make_shared<FakeLog>()));
    Arguments reversed(arguments.rbegin(), arguments.rend());
    try {
      app.parse(reversed);
      ADD_FAILURE() << named;
    } catch (const CLI::ParseError& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  }
}

TEST(BenchFlags, ErrorsNameFlagValueAndLimit) {
  const std::string trace = testing::scratch_dir("bench") + "/bad.jsonl";
  std::ofstream(trace) << "{\"arrival\": 0, \"input_len\": 0, \"output_len\": 1}\n";
  const std::string good = testing::source_dir() + "/bench/traces/sessions.jsonl";
  const std::pair<Arguments, std::vector<std::string>> cases[] = {
      {{"throughput", "--input-len", "0"}, {"--input-len", "0", "16777216"}},
      {{"throughput", "--input-len", "1,2"}, {"--input-len", "1,2"}},
      {{"throughput", "--output-len", "x"}, {"--output-len", "\"x\""}},
      {{"throughput", "--num-prompts", "99999999999"}, {"--num-prompts", "99999999999", "10000000"}},
      {{"throughput", "--concurrency", "0"}, {"--concurrency", "0", "1000000"}},
      {{"throughput", "--request-rate", "0"}, {"--request-rate", "0"}},
      {{"throughput", "--request-rate", "-1"}, {"--request-rate", "-1"}},
      {{"throughput", "--request-rate", "nan"}, {"--request-rate", "nan"}},
      {{"throughput", "--arrival", "sometimes"}, {"--arrival", "sometimes", "poisson"}},
      {{"throughput", "--arrival", "trace"}, {"--arrival", "--trace"}},
      {{"throughput", "--arrival", "closed", "--request-rate", "2"}, {"--request-rate", "poisson", "closed"}},
      {{"throughput", "--trace", good, "--request-rate", "2"}, {"--request-rate", "trace"}},
      {{"throughput", "--trace", good, "--input-len", "2"}, {"--input-len", "--trace"}},
      {{"throughput", "--trace", trace}, {"--trace", trace, "line 1", "input_len"}},
      {{"throughput", "--trace", "/nonexistent"}, {"--trace", "/nonexistent"}},
      {{"throughput", "--shared-prefix-ratio", "1.5"}, {"--shared-prefix-ratio", "1.5", "1"}},
      {{"throughput", "--num-prefixes", "3"}, {"--num-prefixes", "3", "--shared-prefix-ratio"}},
      {{"throughput", "--length-jitter", "2"}, {"--length-jitter", "2", "1"}},
      {{"throughput", "--seed", "-1"}, {"--seed", "-1"}},
      {{"throughput", "--warmup", "-1"}, {"--warmup", "-1"}},
      {{"throughput", "--duration", "0"}, {"--duration", "0"}},
      {{"throughput", "--temperature", "101"}, {"--temperature", "101", "100"}},
      {{"throughput", "--top-p", "0"}, {"--top-p", "0"}},
      {{"throughput", "--top-k", "-1"}, {"--top-k", "-1"}},
      {{"throughput", "--n", "129"}, {"--n", "129", "128"}},
      {{"throughput", "--cache-class", "robot"}, {"--cache-class", "robot", "agent"}},
      {{"throughput", "--priority", "1e9"}, {"--priority", "1e9"}},
      {{"throughput", "--input-len", "9000"}, {"--input-len", "9000", "8192"}},
      {{"throughput", "--json", "/nonexistent/a"}, {"--json", "/nonexistent/a"}},
      {{"throughput", "--save-requests", "/nonexistent/a"}, {"--save-requests", "/nonexistent/a"}},
      {{"throughput", "--json", "-", "--save-requests", "-"}, {"--json", "--save-requests"}},
      {{"throughput", "--csv", "x"}, {"--csv"}},
      {{"throughput", "--kv-cache-memory", "4XB"}, {"--kv-cache-memory", "4XB"}},
      {{"sweep", "--concurrency", "1,0"}, {"--concurrency", "0"}},
      {{"sweep", "--concurrency", ""}, {"--concurrency"}},
      {{"sweep", "--shared-prefix-ratio", "0,0.9,7"}, {"--shared-prefix-ratio", "7"}},
      {{"sweep", "--html", "/nonexistent/a"}, {"--html", "/nonexistent/a"}},
      {{"sweep", "--csv", "-", "--json", "-"}, {"--csv", "--json"}},
  };
  for (const auto& [arguments, named] : cases) {
    const CommandRun r = run(arguments);
    EXPECT_EQ(r.code, 1) << arguments[1];
    EXPECT_EQ(r.out, "") << arguments[1];
    EXPECT_EQ(r.err.find('\n'), std::string::npos) << r.err;
    EXPECT_TRUE(r.log->requests.empty()) << arguments[1];
    for (const std::string& part : named) EXPECT_NE(r.err.find(part), std::string::npos) << r.err << " should name " << part;
  }
}

}  // namespace
}  // namespace deepinfer::bench
