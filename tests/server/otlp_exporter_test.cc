// Traces sent to a collector that is a socket of the test.

#include "server/otlp_exporter.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "server/test_server.h"

namespace deepinfer {
namespace {

using testing::call;
using testing::chat_body;
using testing::eventually;
using testing::TestServer;
using testing::TestServerOptions;
using Json = nlohmann::json;

/// Takes POSTs one after the other, and answers each with the next of `statuses` (200 behind them).
class Collector {
 public:
  explicit Collector(std::vector<int> statuses = {}) : statuses_(std::move(statuses)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Collector() {
    stop_ = true;
    thread_.join();
    ::close(listener_);
  }

  std::string url() const { return fmt::format("http://127.0.0.1:{}/v1/traces", port_); }
  std::vector<std::string> heads() const {
    const std::lock_guard lock(mutex_);
    return heads_;
  }
  /// Spans of everything that was answered with 200.
  std::vector<Json> spans() const {
    const std::lock_guard lock(mutex_);
    std::vector<Json> out;
    for (const Json& body : accepted_) {
      for (const Json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) out.push_back(span);
    }
    return out;
  }

 private:
  void serve() {
    while (!stop_) {
      pollfd wait{.fd = listener_, .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, 20) <= 0) continue;
      const int peer = ::accept(listener_, nullptr, nullptr);
      if (peer < 0) continue;
      answer(peer);
      ::close(peer);
    }
  }

  void answer(int peer) {
    std::string text;
    size_t want = std::string::npos;
    while (text.size() < want) {
      char piece[4096];
      const ssize_t n = ::recv(peer, piece, sizeof(piece), 0);
      if (n <= 0) return;
      text.append(piece, static_cast<size_t>(n));
      const size_t head = text.find("\r\n\r\n");
      if (head == std::string::npos || want != std::string::npos) continue;
      const size_t length = text.find("Content-Length: ");
      want = head + 4 + std::stoul(text.substr(length + 16));
    }
    const size_t body = text.find("\r\n\r\n") + 4;
    const std::lock_guard lock(mutex_);
    const int status = heads_.size() < statuses_.size() ? statuses_[heads_.size()] : 200;
    heads_.push_back(text.substr(0, body));
    if (status == 200) accepted_.push_back(Json::parse(text.substr(body)));
    const std::string reply =
        fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}", status);
    EXPECT_EQ(::send(peer, reply.data(), reply.size(), MSG_NOSIGNAL), static_cast<ssize_t>(reply.size()));
  }

  const std::vector<int> statuses_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> heads_;
  std::vector<Json> accepted_;
  std::thread thread_;
};

server::OtlpOptions quick(const std::string& url) { return {.endpoint = url, .interval = 0.01, .timeout = 5}; }

void end_request(telemetry::TraceRecorder& recorder, uint64_t number, const std::string& parent = "") {
  recorder.submitted(number, telemetry::now_ns(), 3);
  recorder.named(number, {.id = fmt::format("id{}", number), .x_request_id = "", .trace_parent = parent, .model = "m"},
                 telemetry::now_ns());
  recorder.closed(number, "stop", {.prompt_tokens = 3});
}

TEST(OtlpExporter, SendsWhatTheServerAnswered) {
  Collector collector;
  TestServerOptions options;
  options.trace = true;
  TestServer server(options);
  auto exporter = server::OtlpExporter::Create(server.trace(), quick(collector.url()));
  ASSERT_TRUE(exporter.has_value());
  const testing::Headers parent = {{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}};
  const Json answer = call(server.port(), "POST", "/v1/chat/completions", chat_body("hi"), parent).json();
  ASSERT_TRUE(eventually([&] { return (*exporter)->exported() > 0; }));
  (*exporter)->close();
  const std::vector<Json> spans = collector.spans();
  ASSERT_EQ(static_cast<int64_t>(spans.size()), (*exporter)->exported());
  EXPECT_EQ(spans[0]["name"], "llm_request");
  EXPECT_EQ(spans[0]["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(spans[0]["parentSpanId"], "b7ad6b7169203331");
  bool id = false;
  for (const Json& a : spans[0]["attributes"]) id = id || a["value"].value("stringValue", "") == answer["id"];
  EXPECT_TRUE(id);
  const std::string head = collector.heads().front();
  EXPECT_TRUE(head.starts_with("POST /v1/traces HTTP/1.1\r\n")) << head;
  EXPECT_NE(head.find("Content-Type: application/json"), std::string::npos);
  EXPECT_EQ((*exporter)->dropped(), 0);
}

TEST(OtlpExporter, TriesAgainWhereThatMayHelp) {
  Collector collector({503, 429});
  auto recorder = std::make_shared<telemetry::TraceRecorder>();
  auto exporter = server::OtlpExporter::Create(recorder, quick(collector.url()));
  ASSERT_TRUE(exporter.has_value());
  end_request(*recorder, 1);
  ASSERT_TRUE(eventually([&] { return (*exporter)->exported() > 0; }));
  EXPECT_EQ((*exporter)->failures(), 2);
  EXPECT_EQ((*exporter)->dropped(), 0);
  EXPECT_EQ(collector.heads().size(), 3u);
}

TEST(OtlpExporter, GivesUpWhereItDoesNot) {
  Collector collector({400});
  auto recorder = std::make_shared<telemetry::TraceRecorder>();
  auto exporter = server::OtlpExporter::Create(recorder, quick(collector.url()));
  ASSERT_TRUE(exporter.has_value());
  end_request(*recorder, 1);
  ASSERT_TRUE(eventually([&] { return (*exporter)->dropped() > 0; }));
  EXPECT_EQ((*exporter)->exported(), 0);
  EXPECT_EQ(collector.heads().size(), 1u);
  end_request(*recorder, 2);
  ASSERT_TRUE(eventually([&] { return (*exporter)->exported() > 0; }));
}

TEST(OtlpExporter, NeverWaitsForACollectorThatIsAway) {
  auto recorder = std::make_shared<telemetry::TraceRecorder>();
  server::OtlpOptions options = quick("http://127.0.0.1:9/v1/traces");
  options.max_queued = 10;
  auto exporter = server::OtlpExporter::Create(recorder, options);
  ASSERT_TRUE(exporter.has_value());
  for (uint64_t i = 1; i <= 1000; ++i) end_request(*recorder, i);
  (*exporter)->close();
  EXPECT_EQ((*exporter)->exported(), 0);
  EXPECT_EQ((*exporter)->dropped(), 2 * 1000) << "a request and its phase `receive` each";
  EXPECT_GT((*exporter)->failures(), 0);
}

TEST(OtlpExporter, LeavesOutWhatIsNotSampled) {
  Collector collector;
  auto recorder = std::make_shared<telemetry::TraceRecorder>();
  auto exporter = server::OtlpExporter::Create(recorder, quick(collector.url()));
  ASSERT_TRUE(exporter.has_value());
  end_request(*recorder, 1, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
  end_request(*recorder, 2);
  (*exporter)->close();
  EXPECT_EQ((*exporter)->exported(), 2);
  EXPECT_EQ(collector.spans().size(), 2u);
}

TEST(OtlpExporter, Endpoints) {
  const auto full = server::parse_otlp_endpoint("http://collector.example:4318/v1/traces");
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->host, "collector.example");
  EXPECT_EQ(full->port, "4318");
  EXPECT_EQ(full->path, "/v1/traces");
  const auto v6 = server::parse_otlp_endpoint("http://[::1]:80");
  ASSERT_TRUE(v6.has_value());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->path, "/");
  EXPECT_EQ(server::parse_otlp_endpoint("http://a/b")->port, "80");
  for (const char* bad : {"", "collector:4318", "https://a/", "grpc://a:4317", "http://", "http:///v1", "http://a:0/",
                          "http://a:70000/", "http://a:x/", "http://u@a/", "http://[::1/", "http://a/ b", "http://a/\r\nX: y"})
    EXPECT_FALSE(server::parse_otlp_endpoint(bad).has_value()) << bad;
}

}  // namespace
}  // namespace deepinfer
