// Strict HTTP and its limits: what a hostile or broken client may send. After each, the server serves the next request.

#include <gtest/gtest.h>

#include "server/http_head.h"
#include "server/test_server.h"

namespace deepinfer {
namespace {

using testing::call;
using testing::chat_body;
using testing::HttpReply;
using testing::RawClient;
using testing::request_text;
using testing::TestServer;
using testing::TestServerOptions;

TestServerOptions tight() {
  TestServerOptions options;
  options.fake.tokens = 3;
  options.server.max_body_bytes = 100'000;
  options.server.max_header_bytes = 4096;
  options.server.max_headers = 20;
  return options;
}

class Limits : public ::testing::Test {
 protected:
  static TestServer& server() {
    static TestServer instance(tight());
    return instance;
  }
  /// Sends `bytes` and expects that status and the end of the connection.
  void refused(const std::string& bytes, int status) {
    RawClient client(server().port());
    client.send(bytes);
    const HttpReply reply = client.receive();
    EXPECT_EQ(reply.status, status) << bytes.substr(0, 200) << "\n" << reply.body;
    EXPECT_EQ(reply.header("connection"), "close") << bytes.substr(0, 200);
    EXPECT_TRUE(reply.json()["error"].is_object()) << reply.body;
    EXPECT_TRUE(client.ended()) << bytes.substr(0, 200);
  }
  void TearDown() override { EXPECT_EQ(call(server().port(), "POST", "/v1/chat/completions", chat_body("hi")).status, 200); }
};

TEST_F(Limits, BrokenHeads) {
  for (const char* head :
       {"GET\r\n\r\n", "GET /health\r\n\r\n", "GET  /health HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET health HTTP/1.1\r\nHost: x\r\n\r\n", "G@T /health HTTP/1.1\r\nHost: x\r\n\r\n", "GET /health HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "GET /health HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\nBad : 1\r\n\r\n", "GET /health HTTP/1.1\r\nHost: x\r\nA: 1\r\n folded\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\n\tA: 1\r\n\r\n", "GET /health HTTP/1.1\nHost: x\n\n",
        "GET /health HTTP/1.1\r\nHost: x\nA: 1\r\n\r\n", "GET /health HTTP/1.1\r\nHost: x\r\nA: a\rb\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", "GET /health HTTP/1.1\r\nHost: x\r\n: empty\r\n\r\n",
        "GET /he\x01lth HTTP/1.1\r\nHost: x\r\n\r\n", "GET /h HTTQ/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x03\r\n\r\n"})
    refused(head, 400);
  using namespace std::string_literals;
  refused("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s, 400);  // TLS, whose client waits
  refused("GET /health HTTP/1.1\r\nHost: x\r\nA: a\0b\r\n\r\n"s, 400);
  refused("GET /health HTTP/2.0\r\nHost: x\r\n\r\n", 505);
  refused("POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 200-maybe\r\nContent-Length: 2\r\n\r\n{}", 417);
}

TEST_F(Limits, Smuggling) {
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
  refused(head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  refused(head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400);
  refused(head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400);
  refused(head + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400);
  refused(head + "Content-Length: 5, 5\r\n\r\nhello", 400);
  refused(head + "Content-Length: +5\r\n\r\nhello", 400);
  refused(head + "Content-Length: -5\r\n\r\nhello", 400);
  refused(head + "Content-Length: 0x5\r\n\r\nhello", 400);
  refused(head + "Content-Length: \r\n\r\nhello", 400);
  refused(head + "Content-Length: 99999999999999999999999\r\n\r\nhello", 413);
  refused(head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  refused(head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501);
  refused(head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501);
  refused(head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400);
  refused("POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  refused(chunked + "zz\r\nhello\r\n0\r\n\r\n", 400);
  refused(chunked + "-5\r\nhello\r\n0\r\n\r\n", 400);
  refused(chunked + "5\r\nhelloX\r\n0\r\n\r\n", 400);
  refused(chunked + "fffffffffffffffff\r\nhello\r\n0\r\n\r\n", 400);
}

TEST_F(Limits, HeadSize) {
  refused("GET /health HTTP/1.1\r\nHost: x\r\nA: " + std::string(5000, 'a') + "\r\n\r\n", 431);
  refused("GET /" + std::string(8000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 431);
  refused("GET /health HTTP/1.1\r\nHost: x\r\nA: " + std::string(200'000, 'a'), 431);
  std::string many = "GET /health HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 30; ++i) many += "A" + std::to_string(i) + ": 1\r\n";
  refused(many + "\r\n", 431);
}

TEST_F(Limits, BodySize) {
  const std::string large = chat_body(std::string(150'000, 'a'));
  refused(request_text("POST", "/v1/chat/completions", large), 413);
  std::string chunked = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunked += "2710\r\n" + std::string(10'000, 'a') + "\r\n";
  refused(chunked, 413);
  EXPECT_EQ(call(server().port(), "POST", "/v1/messages", large).json()["type"], "error");
}

TEST_F(Limits, WhatStandsAroundChunks) {
  const std::string chunked = "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  refused(chunked + "1;" + std::string(200'000, 'e') + "\r\n{\r\n0\r\n\r\n", 400);
  refused(chunked + std::string(200'000, '0') + "1\r\n{\r\n0\r\n\r\n", 400);
  std::string trailers = chunked + "1\r\n{\r\n0\r\n";
  for (int i = 0; i < 20'000; ++i) trailers += "A" + std::to_string(i) + ": 1\r\n";
  refused(trailers + "\r\n", 400);
  // Empty lines are no request, however many come.
  std::string lines;
  for (int i = 0; i < 10'000; ++i) lines += "\r\n";
  refused(lines, 400);
}

TEST_F(Limits, DuplicateKeys) {
  // The last one counts, in every parser of the server, so that nothing behind another can be smuggled past a check.
  const std::string twice =
      R"({"model":"other","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"model":"fake"})";
  const HttpReply reply = call(server().port(), "POST", "/v1/chat/completions", twice);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 2);
  const std::string wrong = R"({"model":"fake","messages":[{"role":"user","content":"hi"}],"model":"other"})";
  EXPECT_EQ(call(server().port(), "POST", "/v1/chat/completions", wrong).status, 404);
}

TEST_F(Limits, FiftyMegabytes) {
  TestServerOptions options;
  options.fake.tokens = 3;
  TestServer big(options);
  // A long history takes a moment to encode, so the text stands where nothing encodes it.
  const std::string body = chat_body("hi", {{"user", std::string(50'000'000, 'u')}});
  const HttpReply reply = call(big.port(), "POST", "/v1/chat/completions", body);
  EXPECT_EQ(reply.status, 200) << reply.body.substr(0, 300);
  // Against the tight limit it is refused without being taken in.
  EXPECT_EQ(call(server().port(), "POST", "/v1/chat/completions", body).status, 413);
}

TEST_F(Limits, FiftyMegabytesOfWords) {
  // More than any context holds: all of it is read and encoded to be counted, while others are served.
  TestServerOptions options;
  options.engine.max_model_len = 1000;
  TestServer big(options);
  std::string words;
  while (words.size() < 50'000'000) words += "the quick brown fox ";
  RawClient client(big.port());
  client.send(request_text("POST", "/v1/chat/completions", chat_body(words)));
  EXPECT_EQ(call(big.port(), "POST", "/v1/chat/completions", chat_body("hi", {{"max_tokens", 3}})).status, 200);
  const HttpReply reply = client.receive();
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("maximum context length is 1000 tokens"), std::string::npos) << reply.body.substr(0, 300);
}

TEST_F(Limits, ManyLargeBodiesAtOnce) {
  TestServerOptions options;
  options.server.max_body_bytes = 1'000'000;
  options.server.max_buffered_bytes = 1'500'000;
  TestServer small(options);
  RawClient first(small.port());
  first.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n");
  EXPECT_EQ(call(small.port(), "GET", "/health").status, 200);
  RawClient second(small.port());
  second.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n");
  EXPECT_EQ(second.receive().status, 503);
  first.close();
  EXPECT_TRUE(testing::eventually([&] {
    return call(small.port(), "POST", "/v1/chat/completions", chat_body("x", {{"user", std::string(900'000, 'u')}})).status ==
           200;
  }));
}

TEST_F(Limits, SlowSenders) {
  TestServerOptions options = tight();
  options.server.header_timeout = 0.4;
  options.server.body_timeout = 0.6;
  options.server.idle_timeout = 0.8;
  TestServer hasty(options);
  RawClient head(hasty.port());
  head.send("GET /health HTTP/1.1\r\nHo");
  EXPECT_EQ(head.receive().status, 408);
  EXPECT_TRUE(head.ended());
  RawClient drip(hasty.port());
  bool open = true;
  while (open) {  // each byte soon after the one before, and none ever late by itself
    open = drip.send("G") && drip.quiet(0.04);
  }
  EXPECT_EQ(drip.receive().status, 408);
  RawClient body(hasty.port());
  body.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(body.receive().status, 408);
  RawClient idle(hasty.port());
  EXPECT_TRUE(idle.ended());
  RawClient used(hasty.port());
  used.send(request_text("GET", "/health"));
  EXPECT_EQ(used.receive().status, 200);
  EXPECT_TRUE(used.ended());
}

TEST_F(Limits, HalfClosed) {
  RawClient quick(server().port());
  quick.send(request_text("GET", "/health"));
  quick.half_close();
  EXPECT_EQ(quick.receive().status, 200);
  RawClient middle(server().port());
  middle.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  middle.half_close();
  EXPECT_TRUE(middle.ended());
  RawClient nothing(server().port());
  nothing.half_close();
  EXPECT_TRUE(nothing.ended());
}

TEST_F(Limits, ByteByByte) {
  const std::string body = chat_body("hi");
  RawClient plain(server().port());
  for (const char c : request_text("POST", "/v1/chat/completions", body)) plain.send(std::string_view(&c, 1));
  EXPECT_EQ(plain.receive().status, 200);
  std::string chunked = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char c : body) chunked += "1\r\n" + std::string(1, c) + "\r\n";
  RawClient client(server().port());
  client.send(chunked + "0\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200);
  for (const char c : chunked + "0\r\n\r\n") client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.receive().status, 200);
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.send("1;a=b\r\n{\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(client.receive().status, 400);  // the JSON, not the framing
  client.send(request_text("GET", "/health"));
  EXPECT_EQ(client.receive().status, 200);
}

TEST_F(Limits, PipeliningKeepsTheOrder) {
  RawClient client(server().port());
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const testing::Headers id = {{"x-request-id", "p" + std::to_string(i)}};
    switch (i % 4) {
      case 0:
        all += request_text("GET", "/health", "", id);
        break;
      case 1:
        all += request_text("POST", "/v1/chat/completions", chat_body("hi"), id);
        break;
      case 2:
        all += request_text("POST", "/v1/chat/completions", chat_body("hi", {{"stream", true}}), id);
        break;
      default:
        all += request_text("GET", "/nothing", "", id);
        break;
    }
  }
  client.send(all);
  for (int i = 0; i < 20; ++i) {
    const HttpReply reply = client.receive();
    EXPECT_EQ(reply.header("x-request-id"), "p" + std::to_string(i));
    EXPECT_EQ(reply.status, i % 4 == 3 ? 404 : 200) << i;
    EXPECT_TRUE(reply.complete);
  }
}

TEST_F(Limits, KeepAliveAndVersions) {
  RawClient old(server().port());
  old.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.receive().status, 200);
  EXPECT_TRUE(old.ended());
  RawClient kept(server().port());
  for (int i = 0; i < 2; ++i) {
    kept.send("GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.receive().header("connection"), "keep-alive");
  }
  RawClient stream(server().port());
  const std::string body = chat_body("hi", {{"stream", true}});
  stream.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpReply reply = stream.receive();
  EXPECT_EQ(reply.header("transfer-encoding"), "");
  EXPECT_EQ(testing::parse_sse(reply.body).back().data, "[DONE]");
  RawClient closing(server().port());
  closing.send(request_text("GET", "/health", "", {{"Connection", "close"}}));
  EXPECT_EQ(closing.receive().header("connection"), "close");
  EXPECT_TRUE(closing.ended());
  RawClient expecting(server().port());
  const std::string chat = chat_body("hi");
  expecting.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " +
                 std::to_string(chat.size()) + "\r\n\r\n");
  EXPECT_EQ(expecting.receive().status, 100);
  expecting.send(chat);
  EXPECT_EQ(expecting.receive().status, 200);
}

TEST_F(Limits, Connections) {
  TestServerOptions options;
  options.server.max_connections = 3;
  TestServer few(options);
  std::vector<std::unique_ptr<RawClient>> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(std::make_unique<RawClient>(few.port()));
    held.back()->send(request_text("GET", "/health"));
    EXPECT_EQ(held.back()->receive().status, 200);
  }
  RawClient more(few.port());
  EXPECT_EQ(more.receive().status, 503);
  EXPECT_TRUE(more.ended());
  held.pop_back();
  EXPECT_TRUE(testing::eventually([&] { return call(few.port(), "GET", "/health").status == 200; }));
}

TEST(HttpHead, Framing) {
  const auto head =
      server::parse_head("POST /a?b=c HTTP/1.1\r\nhost: x\r\nContent-LENGTH:\t7 \r\nConnection: keep-alive, Close\r\n\r\n", {});
  EXPECT_EQ(head.status, 0);
  EXPECT_EQ(head.request.path, "/a");
  EXPECT_EQ(head.request.target, "/a?b=c");
  EXPECT_EQ(head.framing.length, 7);
  EXPECT_FALSE(head.keep_alive);
}

}  // namespace
}  // namespace deepinfer
