#include "telemetry/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace deepinfer::telemetry {
namespace {

using Json = nlohmann::json;

TEST(Timeline, NothingIsRecorded) {
  const Json reply = Json::parse(timeline_json(nullptr, {}, true));
  EXPECT_EQ(reply["enabled"], false);
  EXPECT_TRUE(reply["requests"].empty());
  EXPECT_TRUE(reply["spans"].empty());
}

TEST(Timeline, OfOneRequest) {
  TraceRecorder recorder;
  const int64_t t = recorder.start() - 2'000'000'000;  // all of it is over
  recorder.submitted(1, t + 1'000'000'000, 10);
  recorder.named(1, {.id = "a\"b", .x_request_id = "x", .trace_parent = "", .model = "m"}, t + 500'000'001);
  recorder.record({.name = "step", .category = Category::kDevice, .step = 3, .begin = t + 900'000'000, .end = t + 1'100'000'000});
  recorder.record({.name = "step", .category = Category::kDevice, .step = 1, .begin = t + 100, .end = t + 200});  // before it
  recorder.record({.name = "decode step",
                   .category = Category::kRequest,
                   .request = 2,
                   .step = 3,
                   .begin = t + 900'000'000,
                   .end = t + 1'100'000'000});  // another's
  const auto found = recorder.requests().find("x");
  const Json reply = Json::parse(timeline_json(&recorder, found, true));
  EXPECT_EQ(reply["enabled"], true);
  EXPECT_EQ(reply["truncated"], false);
  const Json& request = reply["requests"][0];
  EXPECT_EQ(request["id"], "a\"b");
  EXPECT_EQ(request["state"], "waiting");
  EXPECT_TRUE(request["finish"].is_null());
  EXPECT_TRUE(request["ttft"].is_null());
  EXPECT_DOUBLE_EQ(request["arrival"], -1.499999999);
  EXPECT_EQ(request["phases"][0]["name"], "receive");
  EXPECT_DOUBLE_EQ(request["phases"][0]["end"], -1.0);
  std::vector<std::string> names;
  for (const Json& span : reply["spans"]) names.push_back(span["name"]);
  ASSERT_EQ(names, (std::vector<std::string>{"receive", "step"}));
  EXPECT_EQ(reply["spans"][1]["step"], 3);
  EXPECT_FALSE(reply["spans"][1].contains("request"));
  // The list has no spans.
  EXPECT_TRUE(Json::parse(timeline_json(&recorder, found, false))["spans"].empty());
  // Of too many the latest.
  const Json cut = Json::parse(timeline_json(&recorder, found, true, 1));
  EXPECT_EQ(cut["truncated"], true);
  ASSERT_EQ(cut["spans"].size(), 1u);
  EXPECT_EQ(cut["spans"][0]["name"], "step");
}

TEST(Timeline, SaysWhenSpansAreGone) {
  TraceRecorder::Options options;
  options.memory = 1 << 18;
  TraceRecorder recorder(options);
  recorder.submitted(1, now_ns(), 10);
  recorder.phase(1, Phase::kQueue, now_ns(), now_ns());
  for (int64_t i = 0; i < 10'000; ++i)
    recorder.record({.name = "write", .category = Category::kNetwork, .request = 1, .begin = now_ns()});
  const Json reply = Json::parse(timeline_json(&recorder, recorder.requests().find("1"), true));
  EXPECT_EQ(reply["truncated"], true);
  EXPECT_EQ(reply["requests"][0]["state"], "running");
}

}  // namespace
}  // namespace deepinfer::telemetry
