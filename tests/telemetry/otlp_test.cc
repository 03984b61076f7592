#include "telemetry/otlp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace deepinfer::telemetry {
namespace {

using Json = nlohmann::json;

constexpr const char* kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParent, OnlyWhatTheStandardAllows) {
  const auto parsed = parse_trace_parent(kParent);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(parsed->span_id, "b7ad6b7169203331");
  EXPECT_TRUE(parsed->sampled);
  const std::string good = kParent;
  EXPECT_FALSE(parse_trace_parent(good.substr(0, 53) + "00")->sampled);
  EXPECT_TRUE(parse_trace_parent(fmt::format("01{}-more", good.substr(2))).has_value());
  for (const std::string& bad :
       {std::string(), good.substr(0, 54), good + "-more", fmt::format("ff{}", good.substr(2)),
        good.substr(0, 3) + std::string(32, '0') + good.substr(35), good.substr(0, 36) + std::string(16, '0') + good.substr(52),
        good.substr(0, 3) + "G" + good.substr(4), good.substr(0, 3) + "A" + good.substr(4), good.substr(0, 53) + "0\"",
        good.substr(0, 35) + "_" + good.substr(36)})
    EXPECT_FALSE(parse_trace_parent(bad).has_value()) << bad;
}

int64_t attribute_int(const Json& span, const std::string& key) {
  for (const Json& a : span["attributes"]) {
    if (a["key"] == key) return std::stoll(a["value"]["intValue"].get<std::string>());
  }
  return -1;
}
double attribute_double(const Json& span, const std::string& key) {
  for (const Json& a : span["attributes"]) {
    if (a["key"] == key) return a["value"]["doubleValue"].get<double>();
  }
  return -1;
}

TEST(Otlp, ARequestAndItsPhases) {
  RequestRecord r;
  r.request = 4;
  r.names = {.id = "chatcmpl-1", .x_request_id = "x\"y", .trace_parent = kParent, .model = "nano"};
  r.counts = {.prompt_tokens = 10, .cached_tokens = 0, .replayed_tokens = 0, .completion_tokens = 5, .preemptions = 0};
  r.arrival = 1'000'000'000;
  r.first_token = 1'500'000'000;
  r.end = 2'000'000'000;
  r.finish = "stop";
  r.phase(Phase::kQueue) = {1'000'000'000, 1'250'000'000};
  r.phase(Phase::kPrefill) = {1'250'000'000, 1'500'000'000};
  r.phase(Phase::kDecode) = {1'500'000'000, 2'000'000'000};
  int made = 0;
  const OtlpSource source{.service_name = "s\"",
                          .service_version = "1",
                          .start = 500'000'000,
                          .start_unix_ns = 1'700'000'000'000'000'000,
                          .random_hex = [&](size_t bytes) { return std::string(2 * bytes - 1, 'a') + std::to_string(++made); }};
  const RequestRecord both[] = {r, r};
  const Json body = Json::parse(otlp_traces(both, source));
  EXPECT_EQ(body["resourceSpans"][0]["resource"]["attributes"][0]["value"]["stringValue"], "s\"");
  const Json& spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"];
  ASSERT_EQ(static_cast<int64_t>(spans.size()), 2 * otlp_span_count(r));
  const Json& root = spans[0];
  EXPECT_EQ(root["name"], "llm_request");
  EXPECT_EQ(root["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(root["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(root["startTimeUnixNano"], "1700000000500000000");
  EXPECT_EQ(root["endTimeUnixNano"], "1700000001500000000");
  EXPECT_EQ(attribute_int(root, "gen_ai.usage.prompt_tokens"), 10);
  EXPECT_EQ(attribute_int(root, "gen_ai.usage.completion_tokens"), 5);
  EXPECT_DOUBLE_EQ(attribute_double(root, "gen_ai.latency.time_in_queue"), 0.25);
  EXPECT_DOUBLE_EQ(attribute_double(root, "gen_ai.latency.time_to_first_token"), 0.5);
  EXPECT_DOUBLE_EQ(attribute_double(root, "gen_ai.latency.e2e"), 1.0);
  EXPECT_DOUBLE_EQ(attribute_double(root, "gen_ai.latency.time_in_model_inference"), 0.75);
  EXPECT_FALSE(root.contains("status"));
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(spans[i]["parentSpanId"], root["spanId"]);
    EXPECT_EQ(spans[i]["traceId"], root["traceId"]);
    EXPECT_NE(spans[i]["spanId"], root["spanId"]);
  }
  EXPECT_EQ(spans[1]["name"], "queue");
}

TEST(Otlp, ATraceOfItsOwnAndAnError) {
  RequestRecord r;
  r.arrival = r.end = 1;
  r.finish = "error";
  r.names.trace_parent = "nonsense";
  const OtlpSource source{
      .service_name = "s", .service_version = "1", .start = 0, .start_unix_ns = 0, .random_hex = [](size_t bytes) {
        return std::string(2 * bytes, 'b');
      }};
  const Json body = Json::parse(otlp_traces({&r, 1}, source));
  const Json& root = body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(root["traceId"], std::string(32, 'b'));
  EXPECT_FALSE(root.contains("parentSpanId"));
  EXPECT_EQ(root["status"]["code"], 2);
}

}  // namespace
}  // namespace deepinfer::telemetry
