// /debug/timeline and /debug/experts: who may see them, what they take, and that they agree with /metrics.

#include <gtest/gtest.h>

#include "server/test_server.h"

namespace deepinfer {
namespace {

using testing::call;
using testing::chat_body;
using testing::eventually;
using testing::HttpReply;
using testing::TestServer;
using testing::TestServerOptions;
using Json = nlohmann::json;
using DebugEndpoints = server::ServerOptions::DebugEndpoints;

TestServerOptions traced() {
  TestServerOptions options;
  options.trace = true;
  options.server.admin_port = 0;
  return options;
}

int timeline_status(int port, const testing::Headers& headers = {}) {
  return call(port, "GET", "/debug/timeline", "", headers).status;
}

TEST(Debug, OnThePublicPortOnlyForOneParty) {
  struct Case {
    DebugEndpoints mode;
    std::vector<std::string> keys;
    int expected;
  };
  for (const Case& c : {Case{DebugEndpoints::kAuto, {}, 200}, Case{DebugEndpoints::kAuto, {"one"}, 200},
                        Case{DebugEndpoints::kAuto, {"one", "two"}, 404}, Case{DebugEndpoints::kOn, {"one", "two"}, 200},
                        Case{DebugEndpoints::kOff, {}, 404}}) {
    TestServerOptions options = traced();
    options.server.debug_endpoints = c.mode;
    options.server.api_keys = c.keys;
    TestServer server(options);
    const testing::Headers key = c.keys.empty() ? testing::Headers() : testing::Headers{{"x-api-key", c.keys.back()}};
    EXPECT_EQ(timeline_status(server.port(), key), c.expected);
    EXPECT_EQ(timeline_status(server.server().admin_port(), key), 200);
    if (!c.keys.empty()) {
      EXPECT_EQ(timeline_status(server.server().admin_port()), 401);
    }
  }
  server::ServerOptions all;
  all.host = "0.0.0.0";
  EXPECT_FALSE(all.public_debug());
  all.host = "::1";
  EXPECT_TRUE(all.public_debug());
}

TEST(Debug, RefusesWhatItDoesNotKnow) {
  TestServer server(traced());
  for (const char* query :
       {"last=0", "last=1001", "last=1x", "last=", "last=99999999999999999999", "request=", "first=3", "last=%4", "%zz=1"}) {
    const HttpReply reply = call(server.port(), "GET", std::string("/debug/timeline?") + query);
    EXPECT_EQ(reply.status, 400) << query;
    EXPECT_TRUE(reply.json()["error"]["message"].is_string()) << query;
  }
  EXPECT_EQ(call(server.port(), "GET", fmt::format("/debug/timeline?request={:a>300}", "")).status, 400);
  EXPECT_EQ(call(server.port(), "GET", "/debug/timeline?request=nobody").status, 404);
  EXPECT_EQ(call(server.port(), "POST", "/debug/timeline", "{}").status, 405);
  EXPECT_EQ(call(server.port(), "GET", "/debug/timeline?last=1000").status, 200);
}

TEST(Debug, NothingRecorded) {
  TestServer server;
  const Json reply = call(server.port(), "GET", "/debug/timeline").json();
  EXPECT_EQ(reply["enabled"], false);
  EXPECT_EQ(call(server.port(), "GET", "/debug/timeline?request=1").json()["enabled"], false);
}

TEST(Debug, ARequestByEachOfItsNames) {
  TestServer server(traced());
  const testing::Headers named = {{"x-request-id", "mine-1"}};
  const Json answer = call(server.port(), "POST", "/v1/chat/completions", chat_body("hello", {{"max_tokens", 5}}), named).json();
  ASSERT_TRUE(eventually([&] { return server.quiet(); }));
  const Json list = call(server.port(), "GET", "/debug/timeline?last=5").json();
  ASSERT_EQ(list["requests"].size(), 1u);
  EXPECT_TRUE(list["spans"].empty());
  const Json& request = list["requests"][0];
  EXPECT_EQ(request["id"], answer["id"]);
  EXPECT_EQ(request["x_request_id"], "mine-1");
  EXPECT_EQ(request["state"], "finished");
  EXPECT_EQ(request["finish"], "length");
  EXPECT_EQ(request["prompt_tokens"], answer["usage"]["prompt_tokens"]);
  EXPECT_EQ(request["completion_tokens"], answer["usage"]["completion_tokens"]);
  EXPECT_LE(request["arrival"].get<double>(), request["first_token"].get<double>());
  EXPECT_LE(request["first_token"].get<double>(), request["end"].get<double>());
  EXPECT_LE(request["end"].get<double>(), list["now"].get<double>());
  for (const std::string& id :
       {answer["id"].get<std::string>(), std::string("mine-1"), std::to_string(request["request"].get<int>())}) {
    const Json reply = call(server.port(), "GET", fmt::format("/debug/timeline?request={}", id)).json();
    ASSERT_EQ(reply["requests"].size(), 1u) << id;
    EXPECT_EQ(reply["requests"][0], request);
    std::map<std::string, int> count;
    for (const Json& span : reply["spans"]) ++count[span["name"].get<std::string>()];
    for (const char* name : {"receive", "queue", "prefill", "publish", "deliver", "decode", "write"})
      EXPECT_EQ(count[name], 1) << name;
  }
}

TEST(Debug, PromptsOfOneCallAreRequestsOfOneId) {
  TestServer server(traced());
  const Json body = {{"model", "fake"}, {"prompt", {"a", "b c"}}, {"max_tokens", 3}};
  const std::string id = call(server.port(), "POST", "/v1/completions", body.dump()).json()["id"];
  EXPECT_EQ(call(server.port(), "GET", fmt::format("/debug/timeline?request={}", id)).json()["requests"].size(), 2u);
}

// What the histogram of the first tokens' times saw is what the phases add up to: they are measured at the same moments.
TEST(Debug, PhasesAddUpToTheMeasuredFirstToken) {
  TestServerOptions options = traced();
  options.fake = {.rate = 200, .tokens = 4, .first_delay = 0.02};
  options.engine.max_num_seqs = 2;
  TestServer server(options);
  std::vector<std::unique_ptr<testing::RawClient>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<testing::RawClient>(server.port()));
    clients.back()->send(testing::request_text("POST", "/v1/chat/completions", chat_body("hi", {{"stream", i % 2 == 0}})));
  }
  for (const auto& client : clients) EXPECT_EQ(client->receive().status, 200);
  clients.clear();
  ASSERT_TRUE(eventually([&] { return server.quiet() && server.application().metrics().connections == 0; }));
  const Json list = call(server.port(), "GET", "/debug/timeline").json();
  ASSERT_EQ(list["requests"].size(), 6u);
  double phases = 0, ttft = 0;
  for (const Json& request : list["requests"]) {
    double end = request["arrival"];
    for (const Json& phase : request["phases"]) {
      if (phase["name"] == "decode") continue;
      EXPECT_NEAR(phase["begin"].get<double>(), end, 1e-9) << "a gap before " << phase["name"];
      end = phase["end"];
      phases += end - phase["begin"].get<double>();
    }
    ttft += request["ttft"].get<double>();
  }
  EXPECT_NEAR(phases, ttft, 0.02 * ttft);
  const std::string metrics = call(server.port(), "GET", "/metrics").body;
  const std::string name = "vllm:time_to_first_token_seconds_sum{model_name=\"fake\"} ";
  const double measured = std::stod(metrics.substr(metrics.find(name) + name.size()));
  EXPECT_NEAR(phases, measured, 0.02 * measured);
}

TEST(Debug, ExpertsAgreeWithTheMetrics) {
  TestServer server;
  call(server.port(), "POST", "/v1/chat/completions", chat_body("hello"));
  ASSERT_TRUE(eventually([&] { return server.quiet(); }));
  const Json reply = call(server.port(), "GET", "/debug/experts").json();
  const std::string metrics = call(server.port(), "GET", "/metrics").body;
  ASSERT_FALSE(reply["layers"].empty());
  for (const Json& layer : reply["layers"]) {
    ASSERT_EQ(layer["counts"].size(), reply["experts"].get<size_t>());
    int64_t total = 0, most = 0;
    for (const Json& n : layer["counts"]) {
      total += n.get<int64_t>();
      most = std::max(most, n.get<int64_t>());
    }
    EXPECT_GT(total, 0);
    EXPECT_EQ(layer["tokens"], total);
    EXPECT_NEAR(layer["imbalance"].get<double>(), static_cast<double>(most) * 8 / static_cast<double>(total), 1e-4);
    const std::string line =
        fmt::format("deepinfer:expert_tokens_total{{model_name=\"fake\",layer=\"{}\"}} {}\n", layer["layer"].get<int>(), total);
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace deepinfer
