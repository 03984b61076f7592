// /metrics: the text, what it counts against what the client has seen, and the table of the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "server/test_server.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::call;
using testing::chat_body;
using testing::eventually;
using testing::HttpReply;
using testing::TestServer;
using testing::TestServerOptions;
using Json = nlohmann::json;

struct Family {
  std::string type, help;
  std::set<std::string> labels;          ///< but for le
  std::map<std::string, double> values;  ///< by the line without its number
};

/// The text exposition format, taken apart; every line is checked.
std::map<std::string, Family> parse(const std::string& text) {
  std::map<std::string, Family> families;
  std::string current;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("# HELP ")) {
      const size_t end = line.find(' ', 7);
      current = line.substr(7, end - 7);
      EXPECT_FALSE(families.contains(current)) << current;
      families[current].help = line.substr(end + 1);
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_EQ(line.substr(7, current.size() + 1), current + " ");
      families[current].type = line.substr(8 + current.size());
    } else {
      Family& family = families[current];
      const size_t space = line.rfind(' ');
      const std::string sample = line.substr(0, space);
      const std::string name = sample.substr(0, sample.find('{'));
      char* end = nullptr;
      family.values[sample] = std::strtod(line.c_str() + space + 1, &end);
      EXPECT_EQ(*end, '\0') << line;
      EXPECT_FALSE(family.type.empty()) << line;
      EXPECT_TRUE(name == current || (family.type == "histogram" && name.starts_with(current + "_"))) << line;
      std::string labels = sample.size() > name.size() ? sample.substr(name.size() + 1, sample.size() - name.size() - 2) : "";
      for (size_t at = 0; at < labels.size();) {
        const size_t equals = labels.find("=\"", at);
        if (labels.substr(at, equals - at) != "le") family.labels.insert(labels.substr(at, equals - at));
        at = labels.find('"', equals + 2) + 2;
      }
    }
  }
  return families;
}

/// When every request has been counted, which happens after its reply is sent.
std::map<std::string, Family> metrics_of(TestServer& server) {
  EXPECT_TRUE(eventually([&] { return server.quiet() && server.application().metrics().connections == 0; }));
  const HttpReply reply = call(server.port(), "GET", "/metrics");
  EXPECT_TRUE(reply.header("content-type").starts_with("text/plain; version=0.0.4"));
  return parse(reply.body);
}

double value(const std::map<std::string, Family>& families, const std::string& name, const std::string& more = "",
             const std::string& suffix = "") {
  const std::string sample = name + suffix + "{model_name=\"fake\"" + (more.empty() ? "" : "," + more) + "}";
  const auto family = families.find(name);
  if (family == families.end() || !family->second.values.contains(sample)) {
    ADD_FAILURE() << "there is no " << sample;
    return -1;
  }
  return family->second.values.at(sample);
}

double sum(const std::map<std::string, Family>& families, const std::string& name) { return value(families, name, "", "_sum"); }
double count(const std::map<std::string, Family>& families, const std::string& name) {
  return value(families, name, "", "_count");
}

TEST(Metrics, AgreeWithWhatTheClientCounts) {
  TestServerOptions options;
  options.fake = {.rate = 0, .tokens = 7};
  TestServer server(options);
  int64_t prompt = 0, completion = 0, requests = 0, choices = 0;
  const auto add = [&](const Json& usage, int64_t of_choices, const char* in = "prompt_tokens",
                       const char* out = "completion_tokens") {
    prompt += usage[in].get<int64_t>();
    completion += usage[out].get<int64_t>();
    ++requests;
    choices += of_choices;
  };
  for (int i = 0; i < 5; ++i) {
    const std::string words(static_cast<size_t>(i) * 20, 'x');
    add(call(server.port(), "POST", "/v1/chat/completions", chat_body("hello " + words)).json()["usage"], 1);
    add(call(server.port(), "POST", "/v1/chat/completions", chat_body(words, {{"n", 3}, {"max_tokens", 4}})).json()["usage"], 3);
    const auto events =
        testing::parse_sse(call(server.port(), "POST", "/v1/chat/completions",
                                chat_body(words, {{"stream", true}, {"stream_options", {{"include_usage", true}}}}))
                               .body);
    for (const auto& event : events) {
      if (event.data != "[DONE]" && Json::parse(event.data)["usage"].is_object()) add(Json::parse(event.data)["usage"], 1);
    }
    const Json messages = {{"model", "fake"}, {"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", words + "q"}}}}};
    add(call(server.port(), "POST", "/v1/messages", messages.dump()).json()["usage"], 1, "input_tokens", "output_tokens");
    const Json completions = {{"model", "fake"}, {"prompt", {"a", "b c"}}, {"max_tokens", 3}};
    add(call(server.port(), "POST", "/v1/completions", completions.dump()).json()["usage"], 2);
    ++requests;  // of the engine: two prompts
  }
  EXPECT_EQ(call(server.port(), "POST", "/v1/chat/completions", "{").status, 400);
  const auto families = metrics_of(server);
  EXPECT_EQ(value(families, "vllm:prompt_tokens_total"), prompt);
  EXPECT_EQ(value(families, "vllm:generation_tokens_total"), completion);
  EXPECT_EQ(value(families, "vllm:prompt_tokens_by_source_total", "source=\"local_compute\"") +
                value(families, "vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\""),
            prompt);
  EXPECT_EQ(sum(families, "vllm:request_prompt_tokens"), prompt);
  EXPECT_EQ(sum(families, "vllm:request_generation_tokens"), completion);
  double ended = 0;
  for (const auto& [sample, number] : families.at("vllm:request_success_total").values) ended += number;
  EXPECT_EQ(ended, choices);
  for (const char* histogram :
       {"vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds", "vllm:request_time_per_output_token_seconds"})
    EXPECT_EQ(count(families, histogram), requests) << histogram;
  // A token that comes with its predecessor counts, too: all but the first of each choice, where nothing was merged with the
  // first.
  EXPECT_LE(count(families, "vllm:inter_token_latency_seconds"), completion - choices);
  EXPECT_EQ(value(families, "vllm:num_requests_running"), 0);
  EXPECT_EQ(value(families, "vllm:num_requests_waiting"), 0);
  const auto& routes = families.at("deepinfer:http_requests_total").values;
  EXPECT_EQ(routes.at("deepinfer:http_requests_total{model_name=\"fake\",route=\"/v1/chat/completions\",status=\"200\"}"), 15);
  EXPECT_EQ(routes.at("deepinfer:http_requests_total{model_name=\"fake\",route=\"/v1/chat/completions\",status=\"400\"}"), 1);
}

TEST(Metrics, PartsOfARequestAddUp) {
  TestServerOptions options;
  options.fake = {.rate = 50, .tokens = 10, .first_delay = 0.1};
  options.engine.max_num_seqs = 1;
  TestServer server(options);
  testing::RawClient one(server.port()), two(server.port());
  const std::string request = testing::request_text("POST", "/v1/chat/completions", chat_body("hi"));
  one.send(request);
  ASSERT_TRUE(eventually([&] { return server.engine().stats().running == 1; }));
  two.send(request);
  EXPECT_EQ(one.receive().status, 200);
  EXPECT_EQ(two.receive().status, 200);
  one.close();
  two.close();
  const auto families = metrics_of(server);
  const double queue = sum(families, "vllm:request_queue_time_seconds"),
               prefill = sum(families, "vllm:request_prefill_time_seconds");
  const double decode = sum(families, "vllm:request_decode_time_seconds");
  const double first = sum(families, "vllm:time_to_first_token_seconds");
  EXPECT_GE(first, 2 * 0.1);
  EXPECT_GT(queue, 0);
  EXPECT_GT(decode, 0);
  EXPECT_NEAR(sum(families, "vllm:request_inference_time_seconds"), prefill + decode, 1e-6);
  EXPECT_LE(queue + prefill, first + 1e-6);
  EXPECT_LE(queue + prefill + decode, sum(families, "vllm:e2e_request_latency_seconds") + 1e-6);
}

TEST(Metrics, HistogramsAreCumulative) {
  server::Histogram histogram({1, 2, 5});
  for (const double v : {0.5, 1.0, 1.5, 6.0}) histogram.observe(v);
  histogram.observe(2.0, 3);
  std::string text;
  histogram.write(text, "h", "a=\"b\"");
  EXPECT_EQ(text,
            "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2\"} 6\nh_bucket{a=\"b\",le=\"5\"} 6\n"
            "h_bucket{a=\"b\",le=\"+Inf\"} 7\nh_sum{a=\"b\"} 15\nh_count{a=\"b\"} 7\n");
}

TEST(Metrics, CancelledAndForeign) {
  TestServerOptions options;
  options.fake = {.rate = 50, .tokens = 1'000'000};
  TestServer server(options);
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  EXPECT_EQ(call(server.port(), "POST", "/v1/chat/completions",
                 chat_body("[[reply]]a <｜｜DSML｜｜ calls> b[[/reply]]", {{"tools", tools}}))
                .status,
            200);
  {
    testing::RawClient client(server.port());
    client.send(testing::request_text("POST", "/v1/chat/completions", chat_body("hi", {{"stream", true}})));
    ASSERT_FALSE(client.read_some().empty());
  }
  const auto families = metrics_of(server);
  EXPECT_EQ(value(families, "deepinfer:foreign_markers_total"), 1);
  EXPECT_EQ(value(families, "vllm:request_success_total", "finished_reason=\"abort\""), 1);
  EXPECT_EQ(value(families, "deepinfer:client_disconnects_total"), 1);
  EXPECT_GT(families.at("process_resident_memory_bytes").values.at("process_resident_memory_bytes"), 0);
}

TEST(Metrics, NamesOfModelsAreEscaped) {
  TestServerOptions options;
  options.server.served_model_names = {"a\"b\\c"};
  TestServer server(options);
  EXPECT_NE(call(server.port(), "GET", "/metrics").body.find("{model_name=\"a\\\"b\\\\c\"}"), std::string::npos);
}

TEST(Metrics, NamesWithoutColons) {
  TestServerOptions options;
  options.server.served_model_names = {"a:b"};
  TestServer server(options);
  call(server.port(), "POST", "/v1/chat/completions", chat_body("hi", {{"model", "a:b"}}));
  // From here on the routes and statuses that are counted are the same: a request is counted after its reply, the second scrape
  // waits until the first is.
  for (int i = 0; i < 2; ++i) metrics_of(server);
  const HttpReply plain = call(server.port(), "GET", "/metrics?other=1&names=underscore");
  ASSERT_EQ(plain.status, 200);
  EXPECT_NE(plain.body.find("\nvllm_num_requests_running{model_name=\"a:b\"} 0\n"), std::string::npos)
      << plain.body.substr(0, 500);
  const auto underscored = parse(plain.body), verbatim = metrics_of(server);
  EXPECT_EQ(underscored.size(), verbatim.size());
  for (const auto& [name, family] : verbatim) {
    std::string wanted = name;
    std::replace(wanted.begin(), wanted.end(), ':', '_');
    ASSERT_TRUE(underscored.contains(wanted)) << wanted;
    EXPECT_EQ(underscored.at(wanted).values.size(), family.values.size()) << wanted;
  }
  for (const auto& [name, family] : underscored) EXPECT_EQ(name.find(':'), std::string::npos) << name;
  EXPECT_EQ(call(server.port(), "GET", "/metrics?names=vllm").status, 200);
  const HttpReply refused = call(server.port(), "GET", "/metrics?names=short");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "names");
  EXPECT_EQ(refused.json()["error"]["message"], "names: is \"short\", must be \"vllm\" or \"underscore\"");
}

TEST(Metrics, PagesAndTiers) {
  EngineStats stats;
  stats.pages_total = 100;
  stats.pages_free = 40;
  stats.pages_cached = 30;
  stats.pages_by_class = {10, 15, 5};
  const auto samples = [&](const std::string& name) {
    auto families = parse(server::Metrics().render(stats, {}, {}, {}, "m"));
    return families.contains(name) ? families.at(name).values : std::map<std::string, double>();
  };
  const auto sample = [](const std::string& name, const std::string& labels) {
    return name + "{model_name=\"m\"," + labels + "}";
  };
  const std::string by_class = "deepinfer:kv_pages_by_class", by_tier = "deepinfer:kv_pages_by_tier";
  EXPECT_EQ(samples(by_class), (std::map<std::string, double>{{sample(by_class, "class=\"chat\""), 10},
                                                              {sample(by_class, "class=\"agent\""), 15},
                                                              {sample(by_class, "class=\"pinned\""), 5}}));
  EXPECT_EQ(samples(by_tier), (std::map<std::string, double>{{sample(by_tier, "tier=\"device\""), 60}}));
  EXPECT_TRUE(samples("deepinfer:kv_tier_available").empty()) << "there is no tier";

  KvTierStats host, local;
  host.name = "host";
  local.name = "local";
  local.pages = 7;
  local.matched_pages = 3;
  local.match_misses[static_cast<size_t>(KvStoreMiss::kExpired)] = 2;
  local.available = false;
  stats.tiers.tiers = {host, local};
  EXPECT_EQ(samples(by_tier),
            (std::map<std::string, double>{{sample(by_tier, "tier=\"device\""), 60}, {sample(by_tier, "tier=\"local\""), 7}}))
      << "what a tier does not count is not reported";
  const auto available = samples("deepinfer:kv_tier_available");
  EXPECT_EQ(available.at(sample("deepinfer:kv_tier_available", "tier=\"host\"")), 1);
  EXPECT_EQ(available.at(sample("deepinfer:kv_tier_available", "tier=\"local\"")), 0);
  EXPECT_EQ(
      samples("deepinfer:kv_tier_pages_matched_total").at(sample("deepinfer:kv_tier_pages_matched_total", "tier=\"local\"")), 3);
  const auto misses = samples("deepinfer:kv_tier_lookup_misses_total");
  EXPECT_EQ(misses.at(sample("deepinfer:kv_tier_lookup_misses_total", "tier=\"local\",reason=\"expired\"")), 2);
  EXPECT_FALSE(misses.contains(sample("deepinfer:kv_tier_lookup_misses_total", "tier=\"local\",reason=\"none\"")));
}

TEST(Metrics, Revisits) {
  IntervalsByClass revisits;
  revisits[1].uses = 9;
  revisits[1].ended[RevisitIntervals::bin_of(0.05)] = 1;
  revisits[1].ended[RevisitIntervals::bin_of(50)] = 4;
  revisits[1].ended[RevisitIntervals::bin_of(1e9)] = 2;
  revisits[1].ended_seconds = 200.05;
  auto families = parse(server::Metrics().render({}, {}, revisits, {}, "m"));
  const std::string name = "deepinfer:kv_revisit_interval_seconds";
  const auto& values = families.at(name).values;
  const auto at = [&](const std::string& suffix, const std::string& labels) {
    const auto found = values.find(name + suffix + "{model_name=\"m\",class=\"agent\"" + labels + "}");
    EXPECT_NE(found, values.end()) << suffix << labels;
    return found == values.end() ? -1 : found->second;
  };
  EXPECT_EQ(at("_bucket", ",le=\"0.1\""), 1);
  EXPECT_EQ(at("_bucket", ",le=\"31.6228\""), 1);
  EXPECT_EQ(at("_bucket", ",le=\"100\""), 5);
  EXPECT_EQ(at("_bucket", ",le=\"+Inf\""), 7);
  EXPECT_EQ(at("_count", ""), 7);
  EXPECT_EQ(at("_sum", ""), 200.05);
  const std::string uses = "deepinfer:kv_page_uses_total";
  EXPECT_EQ(families.at(uses).values.at(uses + "{model_name=\"m\",class=\"agent\"}"), 9);
}

/// The table of docs/reference/metrics.md.
std::string reference(const std::map<std::string, Family>& families) {
  std::string out =
      "# Metrics\n\nWhat `GET /metrics` answers, in the text format of Prometheus. Names with `vllm:` mean what they mean in "
      "vLLM, with the "
      "same buckets, so\nthat its dashboards fit. This page is generated: `DEEPINFER_UPDATE_DOCS=1 "
      "build/release/bin/server_test --gtest_filter=Metrics.ReferenceIsCurrent`.\n\n| name | type | labels | meaning "
      "|\n|---|---|---|---|\n";
  for (const auto& [name, family] : families) {
    std::string labels;
    for (const std::string& label : family.labels) labels += (labels.empty() ? "`" : ", `") + label + "`";
    out += fmt::format("| `{}` | {} | {} | {} |\n", name, family.type, labels, family.help);
  }
  return out;
}

TEST(Metrics, ReferenceIsCurrent) {
  TestServer server;
  call(server.port(), "GET", "/health");
  const std::string path = testing::source_dir() + "/docs/reference/metrics.md";
  auto families = metrics_of(server);
  // An engine that has tiers says more.
  EngineStats stats;
  stats.tiers.tiers.emplace_back().name = "host";
  stats.tiers.tiers.back().pages = 1;
  for (auto& [name, family] : parse(server::Metrics().render(stats, {}, {}, {}, "m"))) families.emplace(name, std::move(family));
  const std::string now = reference(families);
  if (std::getenv("DEEPINFER_UPDATE_DOCS") != nullptr) std::ofstream(path) << now;
  std::stringstream committed;
  committed << std::ifstream(path).rdbuf();
  EXPECT_EQ(committed.str(), now) << "docs/reference/metrics.md is not what the code says; it tells how to write it again";
}

}  // namespace
}  // namespace deepinfer
