// The client of `bench serve` against servers of a few lines, good and bad.
#include "serve/load_client.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cmath>
#include <mutex>

#include "apps/scripted_server.h"
#include "serve/http_client.h"

namespace deepinfer::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using testing::http_answer;
using testing::ScriptedServer;
using testing::sse_event;

const std::string kText = sse_event(R"({"choices":[{"text":"a"}]})");
const std::string kUsage =
    sse_event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}})");
const std::string kDone = sse_event("[DONE]");

/// Says the same each time.
ScriptedServer::Reply always(const std::string& reply) {
  return [reply](int64_t, const std::string&) { return reply; };
}

std::vector<LoadSession> requests(int64_t count) {
  return std::vector<LoadSession>(static_cast<size_t>(count),
                                  LoadSession{.at = 0, .body = "{}", .turns = {{.input_tokens = 5, .think_time = 0}}});
}

LoadRun run(const Endpoint& endpoint, const std::vector<LoadSession>& sessions, const LoadOptions& options = {}) {
  auto out = run_load(endpoint, sessions, options);
  EXPECT_TRUE(out.has_value()) << out.error().message();
  return *std::move(out);
}

TEST(LoadClient, CountsWhatTheServerCounts) {
  ScriptedServer server(always(http_answer(kText + kText + kUsage + kDone)));
  const LoadRun result = run(server.endpoint(), requests(20), {.max_concurrency = 2, .timeout = 20});
  ASSERT_EQ(result.records.size(), 20u);
  for (const LoadRecord& r : result.records) {
    EXPECT_EQ(r.error, "");
    EXPECT_TRUE(r.counted_by_server);
    EXPECT_EQ(r.output_tokens, 3);
    EXPECT_EQ(r.input_tokens, 7);
    EXPECT_EQ(r.cached_tokens, 2);
    EXPECT_EQ(r.gaps.size(), 1u);
    EXPECT_LE(r.sent, r.first_token);
    EXPECT_LE(r.last_token, r.finished);
    EXPECT_LE(r.finished, result.seconds);
  }
  EXPECT_LE(server.connections(), 2) << "connections are kept";
  EXPECT_LE(result.peak_in_flight, 2);
}

TEST(LoadClient, CountsChunksWithoutUsage) {
  ScriptedServer server(always(http_answer(kText + kText + kDone)));
  const LoadRun result = run(server.endpoint(), requests(1));
  EXPECT_EQ(result.records[0].output_tokens, 2);
  EXPECT_FALSE(result.records[0].counted_by_server);
}

TEST(LoadClient, SendsAgainOnAConnectionThatWasClosedMeanwhile) {
  // Every second request finds the connection of the first one closed.
  ScriptedServer server([](int64_t i, const std::string&) { return i == 1 ? std::string() : http_answer(kText + kDone); });
  const LoadRun result = run(server.endpoint(), requests(3), {.max_concurrency = 1, .timeout = 20});
  for (const LoadRecord& r : result.records) EXPECT_EQ(r.error, "");
  EXPECT_EQ(server.requests(), 4);
}

struct Bad {
  const char* name;
  std::string reply;
  const char* error;
  friend std::ostream& operator<<(std::ostream& out, const Bad& bad) { return out << bad.name; }
};
class BadServer : public ::testing::TestWithParam<Bad> {};

TEST_P(BadServer, IsAnErrorThatSaysWhy) {
  ScriptedServer server(always(GetParam().reply));
  const LoadRun result = run(server.endpoint(), requests(3), {.max_concurrency = 0, .timeout = 0.3});
  ASSERT_EQ(result.records.size(), 3u);
  for (const LoadRecord& r : result.records) {
    EXPECT_NE(r.error.find(GetParam().error), std::string::npos) << r.error;
    EXPECT_FALSE(std::isnan(r.finished));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadServer,
    ::testing::Values(
        Bad{"closes", "", "end of stream"},
        Bad{"refuses", http_answer(R"({"error":"full"})", "429 Too Many Requests"), "HTTP 429: {\"error\":\"full\"}"},
        Bad{"no_http", "hello\r\n\r\n", "bad version"},
        Bad{"cut_short", "HTTP/1.1 200 OK\r\nContent-Length: 999\r\nConnection: close\r\n\r\n" + kText, "partial message"},
        Bad{"bad_chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "bad chunk"},
        Bad{"no_end", http_answer(kText), "without [DONE]"}, Bad{"no_token", http_answer(kDone), "without a token"},
        Bad{"no_json", http_answer(sse_event("{oops")), "not JSON"},
        Bad{"error_event", http_answer(kText + sse_event(R"({"error":{"message":"out of order"}})")), "out of order"},
        Bad{"silent", "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + kText, "timeout"},
        Bad{"endless_head", "HTTP/1.1 200 OK\r\nX: " + std::string(200'000, 'x'), "header limit"}),
    [](const auto& bad) { return bad.param.name; });

TEST(LoadClient, ALivelyAnswerWithoutEndIsAnError) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  const auto chunk = [](const std::string& text) { return fmt::format("{:x}\r\n{}\r\n", text.size(), text); };
  const std::pair<std::string, std::string> answers[] = {
      {head, chunk(": ping\n\n")},                                          // nothing but keep-alives
      {head, chunk(kText)},                                                 // tokens
      {"HTTP/1.1 500 Broken\r\nConnection: keep-alive\r\n\r\n", "trace "},  // a refusal
  };
  for (const auto& [first, forever] : answers) {
    ScriptedServer server(always(first), forever);
    // Never silent for the one, but too long for the other.
    const LoadRun result = run(server.endpoint(), requests(2), {.timeout = 60, .request_timeout = 0.3});
    for (const LoadRecord& r : result.records)
      EXPECT_TRUE(r.error.ends_with("in time") || r.error.find("timeout") != std::string::npos) << r.error;
  }
}

TEST(LoadClient, ADocumentThatNeverComesIsAnError) {
  asio::io_context context;
  tcp::acceptor nobody_accepts(context, {asio::ip::address_v4::loopback(), 0});
  const auto text =
      http_get({.host = "127.0.0.1", .port = std::to_string(nobody_accepts.local_endpoint().port()), .path = "/", .api_key = {}},
               "/metrics", 0.2);
  ASSERT_FALSE(text.has_value());
  EXPECT_NE(text.error().message().find("timeout"), std::string::npos) << text.error().message();
}

TEST(LoadClient, NoServerIsAnErrorOfEveryRequest) {
  std::string port;
  { port = ScriptedServer(always("")).endpoint().port; }
  const LoadRun result = run({.host = "127.0.0.1", .port = port, .path = "/", .api_key = {}}, requests(2));
  for (const LoadRecord& r : result.records) EXPECT_NE(r.error.find("connect: "), std::string::npos) << r.error;
}

TEST(LoadClient, AStoppedRunGivesUpWhatRuns) {
  ScriptedServer server([](int64_t i, const std::string&) {
    return i == 0 ? http_answer(kText + kDone) : "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + kText;
  });
  std::atomic<int> asked = 0;
  const LoadRun result =
      run(server.endpoint(), requests(5), {.max_concurrency = 1, .timeout = 60, .stop = [&] { return ++asked > 1; }});
  EXPECT_TRUE(result.stopped);
  ASSERT_EQ(result.records.size(), 2u);
  EXPECT_EQ(result.records[0].error, "");
  EXPECT_NE(result.records[1].error, "");
}

TEST(LoadClient, ASessionSaysWhatWasAnsweredAndWaitsForIt) {
  std::mutex mutex;
  std::vector<std::string> bodies;
  ScriptedServer server([&](int64_t number, const std::string& body) {
    const std::lock_guard lock(mutex);
    bodies.push_back(body);
    const std::string said =
        fmt::format(R"({{"choices":[{{"delta":{{"reasoning_content":"hm","content":"answer {}"}}}}]}})", number);
    return http_answer(sse_event(said) + kUsage + kDone);
  });
  std::vector<LoadSession> sessions = requests(1);
  sessions[0].turns = {{5, 0}, {6, 0.02}, {7, 0}};
  LoadOptions options;
  options.next_body = [](int64_t session, const std::vector<std::string>& answers) {
    std::string out = fmt::format("{}:", session);
    for (const std::string& answer : answers) out += answer + ";";
    return out;
  };
  const LoadRun result = run(server.endpoint(), sessions, options);
  ASSERT_EQ(result.records.size(), 3u);
  EXPECT_EQ(bodies, (std::vector<std::string>{"{}", "0:answer 0;", "0:answer 0;answer 1;"}));
  for (size_t i = 0; i < 3; ++i) {
    const LoadRecord& r = result.records[i];
    EXPECT_EQ(r.error, "");
    EXPECT_EQ(r.turn, static_cast<int64_t>(i));
    if (i == 0) continue;
    EXPECT_NEAR(r.planned, result.records[i - 1].finished + sessions[0].turns[i].think_time, 1e-9);
    EXPECT_GE(r.sent, r.planned);
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(LoadClient, TokensOfATurnAreAddedUpWhereTheServerDoesNotCount) {
  ScriptedServer server(always(http_answer(kText + kText + kDone)));
  std::vector<LoadSession> sessions = requests(1);
  sessions[0].turns = {{5, 0}, {6, 0}};
  LoadOptions options;
  options.next_body = [](int64_t, const std::vector<std::string>&) { return "{}"; };
  const LoadRun result = run(server.endpoint(), sessions, options);
  ASSERT_EQ(result.records.size(), 2u);
  EXPECT_EQ(result.records[0].input_tokens, 5);
  EXPECT_EQ(result.records[1].input_tokens, 5 + 2 + 6);
}

TEST(LoadClient, ClientsHaveOneSessionEachAndOneRequestInFlight) {
  ScriptedServer server(always(http_answer(kText + kDone)));
  std::vector<LoadSession> sessions = requests(9);
  for (LoadSession& s : sessions) s.turns = {{5, 0}, {5, 0.001}, {5, 0}};
  LoadOptions options;
  options.num_clients = 3;
  options.next_body = [](int64_t, const std::vector<std::string>&) { return "{}"; };
  const LoadRun result = run(server.endpoint(), sessions, options);
  EXPECT_EQ(result.records.size(), 27u);
  EXPECT_LE(result.peak_in_flight, 3);
  // Sessions that overlap, at any moment: those whose first request was sent and whose last did not end.
  for (const LoadRecord& r : result.records) {
    int64_t open = 0;
    for (int64_t s = 0; s < 9; ++s) {
      double begin = HUGE_VAL, end = 0;
      for (const LoadRecord& other : result.records) {
        if (other.session != s) continue;
        begin = std::min(begin, other.sent);
        end = std::max(end, other.finished);
      }
      open += begin <= r.sent && r.sent < end ? 1 : 0;
    }
    EXPECT_LE(open, 3);
  }
}

TEST(LoadClient, TurnsShareTheLimitOnRequests) {
  ScriptedServer server(always(http_answer(kText + kDone)));
  std::vector<LoadSession> sessions = requests(8);
  for (LoadSession& s : sessions) s.turns.resize(5);
  LoadOptions options;
  options.max_concurrency = 2;
  options.next_body = [](int64_t, const std::vector<std::string>&) { return "{}"; };
  const LoadRun result = run(server.endpoint(), sessions, options);
  EXPECT_EQ(result.records.size(), 40u);
  EXPECT_LE(result.peak_in_flight, 2);
}

TEST(LoadClient, AFailedTurnEndsItsSession) {
  ScriptedServer server([](int64_t, const std::string& body) {
    return body == "second" ? http_answer("full", "503 Busy") : http_answer(kText + kDone);
  });
  std::vector<LoadSession> sessions = requests(2);
  for (LoadSession& s : sessions) s.turns.resize(4);
  LoadOptions options;
  options.next_body = [](int64_t, const std::vector<std::string>&) { return "second"; };
  const LoadRun result = run(server.endpoint(), sessions, options);
  EXPECT_EQ(result.records.size(), 4u);
  EXPECT_EQ(result.not_sent, 4);
}

TEST(LoadClient, AStoppedRunDoesNotWaitForThinkers) {
  ScriptedServer server(always(http_answer(kText + kDone)));
  std::vector<LoadSession> sessions = requests(2);
  sessions[0].turns = {{5, 0}, {5, 1e6}};
  sessions[1].at = 1e6;
  LoadOptions options;
  std::atomic<int> asked = 0;
  options.stop = [&] { return ++asked > 1; };
  options.next_body = [](int64_t, const std::vector<std::string>&) { return "{}"; };
  const LoadRun result = run(server.endpoint(), sessions, options);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.records.size(), 1u);
  EXPECT_EQ(result.not_sent, 2);
}

TEST(LoadClient, AnAnswerThatNoTurnCouldRepeatIsAnError) {
  const std::string piece = sse_event(R"({"choices":[{"text":")" + std::string(1 << 20, 'x') + "\"}]}");
  std::string all;
  for (int i = 0; i < 17; ++i) all += piece;
  ScriptedServer server(always(http_answer(all + kDone)));
  std::vector<LoadSession> sessions = requests(1);
  EXPECT_EQ(run(server.endpoint(), sessions).records[0].error, "") << "alone it is only long";
  sessions[0].turns.resize(2);
  EXPECT_NE(run(server.endpoint(), sessions).records[0].error.find("16 MiB"), std::string::npos);
}

TEST(HttpClient, ADocumentWithoutEndIsAnError) {
  ScriptedServer server(always("HTTP/1.1 200 OK\r\n\r\n"), std::string(1 << 20, 'x'));
  const auto text = http_get(server.endpoint(), "/metrics", 60);
  ASSERT_FALSE(text.has_value());
  EXPECT_NE(text.error().message().find("more than"), std::string::npos) << text.error().message();
}

TEST(HttpClient, RefusalsAreOneLine) {
  ScriptedServer server(always(http_answer("no\nsuch\x1b[31m thing", "404 Not Found")));
  const auto text = http_get(server.endpoint(), "/v1/models");
  ASSERT_FALSE(text.has_value());
  EXPECT_TRUE(text.error().message().ends_with("HTTP 404: no\\x0asuch\\x1b[31m thing")) << text.error().message();
}

}  // namespace
}  // namespace deepinfer::bench
