// The client of `bench serve` against servers of a few lines, good and bad.
#include "load_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "sse_reader.h"

namespace deepinfer::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// Answers each request of a connection with what `reply` says; "" closes it. One thread for each connection.
class ScriptedServer {
 public:
  using Reply = std::function<std::string(int64_t request)>;
  /// `forever` is sent after a reply, again and again.
  explicit ScriptedServer(Reply reply, std::string forever = "")
      : reply_(std::move(reply)), forever_(std::move(forever)), acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this] {
      std::vector<std::thread> connections;
      while (true) {
        boost::system::error_code error;
        auto socket = std::make_shared<tcp::socket>(context_);
        acceptor_.accept(*socket, error);
        if (stop_ || error) break;
        ++connections_;
        connections.emplace_back([this, socket] { talk(*socket); });
      }
      for (std::thread& t : connections) t.join();
    });
  }
  ~ScriptedServer() {
    stop_ = true;
    boost::system::error_code ignored;
    tcp::socket wake(context_);
    wake.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }
  Endpoint endpoint() const {
    return {.host = "127.0.0.1",
            .port = std::to_string(acceptor_.local_endpoint().port()),
            .path = "/v1/completions",
            .api_key = "k"};
  }
  int64_t connections() const { return connections_; }
  int64_t requests() const { return requests_; }

 private:
  void talk(tcp::socket& socket) {
    asio::streambuf in;
    boost::system::error_code error;
    while (!stop_) {
      const size_t head = asio::read_until(socket, in, "\r\n\r\n", error);
      if (error) return;
      std::string text(asio::buffers_begin(in.data()), asio::buffers_begin(in.data()) + static_cast<std::ptrdiff_t>(head));
      in.consume(head);
      const size_t at = text.find("Content-Length: ");
      if (at == std::string::npos) return;
      const size_t length = std::stoul(text.substr(at + 16));
      if (in.size() < length) asio::read(socket, in, asio::transfer_exactly(length - in.size()), error);
      if (error) return;
      in.consume(length);
      const std::string reply = reply_(requests_++);
      if (reply.empty()) return;
      asio::write(socket, asio::buffer(reply), error);
      while (!forever_.empty() && !error && !stop_) {
        asio::write(socket, asio::buffer(forever_), error);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (error || reply.find("\r\n\r\n") == std::string::npos || reply.find("Connection: close") != std::string::npos) return;
    }
  }

  Reply reply_;
  std::string forever_;
  asio::io_context context_;
  tcp::acceptor acceptor_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> connections_ = 0, requests_ = 0;
  std::thread thread_;
};

std::string http(const std::string& body, const std::string& status = "200 OK", const std::string& more = "") {
  return "HTTP/1.1 " + status + "\r\nContent-Type: text/event-stream\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
std::string event(const std::string& data) { return "data: " + data + "\n\n"; }
const std::string kText = event(R"({"choices":[{"text":"a"}]})");
const std::string kUsage =
    event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}})");
const std::string kDone = event("[DONE]");

std::vector<LoadRequest> requests(int64_t count) {
  return std::vector<LoadRequest>(static_cast<size_t>(count), LoadRequest{.at = 0, .body = "{}", .input_tokens = 5});
}

TEST(SseReader, GivesTheSameEventsHoweverTheBytesAreCut) {
  const std::string text =
      ": ping\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\nid: 4\n\n\n\ndata\ndata: {\"a\": \":\"}\n\n";
  const std::vector<std::string> wanted = {"one", "two\nlines", "{\"a\": \":\"}"};
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    SseReader reader;
    std::vector<std::string> events;
    for (size_t at = 0; at < text.size(); at += cut)
      ASSERT_TRUE(reader.push(std::string_view(text).substr(at, cut), [&](std::string_view data) { events.emplace_back(data); }));
    EXPECT_EQ(events, wanted) << cut;
  }
}

TEST(SseReader, RefusesEventsWithoutEnd) {
  SseReader reader;
  const std::string piece(1 << 20, 'x');
  int64_t pieces = 0;
  while (reader.push(piece, [](std::string_view) { FAIL(); })) ASSERT_LT(++pieces, 20);
  EXPECT_EQ(pieces, 16);
}

TEST(LoadClient, CountsWhatTheServerCounts) {
  ScriptedServer server([](int64_t) { return http(kText + kText + kUsage + kDone); });
  const LoadRun run =
      run_load(server.endpoint(), requests(20), {.max_concurrency = 2, .timeout = 20, .stop = {}, .progress = {}});
  ASSERT_EQ(run.records.size(), 20u);
  for (const LoadRecord& r : run.records) {
    EXPECT_EQ(r.error, "");
    EXPECT_TRUE(r.counted_by_server);
    EXPECT_EQ(r.output_tokens, 3);
    EXPECT_EQ(r.input_tokens, 7);
    EXPECT_EQ(r.cached_tokens, 2);
    EXPECT_EQ(r.gaps.size(), 1u);
    EXPECT_LE(r.sent, r.first_token);
    EXPECT_LE(r.last_token, r.finished);
    EXPECT_LE(r.finished, run.seconds);
  }
  EXPECT_LE(server.connections(), 2) << "connections are kept";
  EXPECT_LE(run.peak_in_flight, 2);
}

TEST(LoadClient, CountsChunksWithoutUsage) {
  ScriptedServer server([](int64_t) { return http(kText + kText + kDone); });
  const LoadRun run = run_load(server.endpoint(), requests(1), {});
  EXPECT_EQ(run.records[0].output_tokens, 2);
  EXPECT_FALSE(run.records[0].counted_by_server);
}

TEST(LoadClient, SendsAgainOnAConnectionThatWasClosedMeanwhile) {
  // Every second request finds the connection of the first one closed.
  ScriptedServer server([](int64_t i) { return i == 1 ? std::string() : http(kText + kDone); });
  const LoadRun run = run_load(server.endpoint(), requests(3), {.max_concurrency = 1, .timeout = 20, .stop = {}, .progress = {}});
  for (const LoadRecord& r : run.records) EXPECT_EQ(r.error, "");
  EXPECT_EQ(server.requests(), 4);
}

struct Bad {
  const char* name;
  std::string reply;
  const char* error;
};
class BadServer : public ::testing::TestWithParam<Bad> {};

TEST_P(BadServer, IsAnErrorThatSaysWhy) {
  ScriptedServer server([](int64_t) { return GetParam().reply; });
  const LoadRun run =
      run_load(server.endpoint(), requests(3), {.max_concurrency = 0, .timeout = 0.3, .stop = {}, .progress = {}});
  ASSERT_EQ(run.records.size(), 3u);
  for (const LoadRecord& r : run.records) {
    EXPECT_NE(r.error.find(GetParam().error), std::string::npos) << r.error;
    EXPECT_FALSE(std::isnan(r.finished));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadServer,
    ::testing::Values(Bad{"closes", "", "end of stream"},
                      Bad{"refuses", http(R"({"error":"full"})", "429 Too Many Requests"), "HTTP 429: {\"error\":\"full\"}"},
                      Bad{"no_http", "hello\r\n\r\n", "bad version"},
                      Bad{"cut_short", "HTTP/1.1 200 OK\r\nContent-Length: 999\r\nConnection: close\r\n\r\n" + kText,
                          "partial message"},
                      Bad{"bad_chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "bad chunk"},
                      Bad{"no_end", http(kText), "without [DONE]"}, Bad{"no_token", http(kDone), "without a token"},
                      Bad{"no_json", http(event("{oops")), "not JSON"},
                      Bad{"error_event", http(kText + event(R"({"error":{"message":"out of order"}})")), "out of order"},
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
    ScriptedServer server([&](int64_t) { return first; }, forever);
    // Never silent for the one, but too long for the other.
    const LoadRun run =
        run_load(server.endpoint(), requests(2), {.timeout = 60, .request_timeout = 0.3, .stop = {}, .progress = {}});
    for (const LoadRecord& r : run.records)
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
  {
    port = ScriptedServer([](int64_t) { return std::string(); }).endpoint().port;
  }
  const LoadRun run = run_load({.host = "127.0.0.1", .port = port, .path = "/", .api_key = {}}, requests(2), {});
  for (const LoadRecord& r : run.records) EXPECT_NE(r.error.find("connect: "), std::string::npos) << r.error;
}

TEST(LoadClient, AStoppedRunGivesUpWhatRuns) {
  ScriptedServer server(
      [](int64_t i) { return i == 0 ? http(kText + kDone) : "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + kText; });
  std::atomic<int> asked = 0;
  const LoadRun run = run_load(server.endpoint(), requests(5),
                               {.max_concurrency = 1, .timeout = 60, .stop = [&] { return ++asked > 1; }, .progress = {}});
  EXPECT_TRUE(run.stopped);
  ASSERT_EQ(run.records.size(), 2u);
  EXPECT_EQ(run.records[0].error, "");
  EXPECT_NE(run.records[1].error, "");
}

TEST(LoadClient, ReadsUrls) {
  const auto a = Endpoint::Parse("--base-url", "http://h:81", "/v1/completions");
  ASSERT_TRUE(a.has_value());
  EXPECT_EQ(a->host + "|" + a->port + "|" + a->path, "h|81|/v1/completions");
  EXPECT_EQ(Endpoint::Parse("--base-url", "http://h/proxy/v1/", "/v1/completions")->path, "/proxy/v1/completions");
  EXPECT_EQ(Endpoint::Parse("--base-url", "http://h", "/x")->port, "80");
  for (const char* url : {"h:81", "https://h", "http://:81", "http://h:", "http://h:x"})
    EXPECT_FALSE(Endpoint::Parse("--base-url", url, "/x").has_value()) << url;
}

}  // namespace
}  // namespace deepinfer::bench
