// Clients that leave, queues that fill, servers that end.

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "server/test_server.h"

namespace deepinfer {
namespace {

using testing::call;
using testing::chat_body;
using testing::eventually;
using testing::HttpReply;
using testing::RawClient;
using testing::request_text;
using testing::TestServer;
using testing::TestServerOptions;
using Json = nlohmann::json;

TestServerOptions endless(double rate = 50) {
  TestServerOptions options;
  options.fake.rate = rate;
  options.fake.tokens = 1'000'000;
  return options;
}

std::string stream_request(const Json& more = {}) {
  Json extra{{"stream", true}};
  if (more.is_object()) extra.update(more);
  return request_text("POST", "/v1/chat/completions", chat_body("hi", extra));
}

int64_t running(const TestServer& server) { return const_cast<TestServer&>(server).engine().stats().running; }

TEST(Disconnect, CancelsStreams) {
  TestServer server(endless());
  for (const bool reset : {false, true}) {
    RawClient client(server.port());
    client.send(stream_request());
    ASSERT_FALSE(client.read_some().empty());
    EXPECT_EQ(running(server), 1);
    if (reset) {
      client.reset();
    } else {
      client.close();
    }
    EXPECT_TRUE(eventually([&] { return server.quiet(); })) << reset;
  }
  EXPECT_EQ(server.application().metrics().disconnects, 2);
  EXPECT_EQ(server.engine().stats().finished[static_cast<size_t>(FinishReason::kCancelled)], 2);
}

TEST(Disconnect, CancelsAnswersInOnePiece) {
  TestServer server(endless());
  const Json messages = {{"model", "fake"}, {"max_tokens", 300000}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  for (const std::string& request :
       {request_text("POST", "/v1/chat/completions", chat_body("hi", {{"max_tokens", 300000}})),
        request_text("POST", "/v1/messages", messages.dump()),
        request_text("POST", "/v1/completions", R"({"model":"fake","prompt":["a","b"],"max_tokens":300000})"),
        request_text("POST", "/v1/responses", R"({"model":"fake","input":"a","max_output_tokens":300000})")}) {
    RawClient client(server.port());
    client.send(request);
    ASSERT_TRUE(eventually([&] { return running(server) > 0; })) << client.receive().body;
    client.close();
    EXPECT_TRUE(eventually([&] { return server.quiet(); }));
  }
}

TEST(Disconnect, IsSeenBehindPipelinedRequests) {
  TestServer server(endless());
  RawClient client(server.port());
  client.send(request_text("POST", "/v1/chat/completions", chat_body("hi", {{"max_tokens", 300000}})) +
              request_text("GET", "/health"));
  ASSERT_TRUE(eventually([&] { return running(server) == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return server.quiet(); }));
}

TEST(Disconnect, WhileWaiting) {
  TestServerOptions options = endless();
  options.engine.max_num_seqs = 1;
  TestServer server(options);
  RawClient first(server.port());
  first.send(stream_request());
  ASSERT_FALSE(first.read_some().empty());
  RawClient second(server.port());
  second.send(stream_request());
  ASSERT_TRUE(eventually([&] { return server.engine().stats().waiting == 1; }));
  second.close();
  EXPECT_TRUE(eventually([&] { return server.engine().stats().waiting == 0; }));
  EXPECT_EQ(running(server), 1);
}

TEST(Stream, SlowReaderHoldsNothingUp) {
  TestServerOptions options = endless(0);
  options.fake.tokens = 200'000;
  options.server.write_timeout = 30;
  TestServer server(options);
  RawClient slow(server.port());
  const int small = 64 << 10;
  ::setsockopt(slow.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  slow.send(stream_request());
  // The engine goes on without the reader, and others are served.
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
  EXPECT_TRUE(eventually([&] { return running(server) == 0; }));
  const HttpReply reply = slow.receive();
  EXPECT_TRUE(reply.complete);
  int64_t tokens = 0;
  for (const auto& event : testing::parse_sse(reply.body)) {
    if (event.data == "[DONE]") continue;
    const Json usage = Json::parse(event.data)["usage"];
    if (usage.is_object()) tokens = usage["completion_tokens"];
  }
  // What nobody read was merged: all of it arrives, in few pieces.
  EXPECT_EQ(tokens, 8192);
  EXPECT_LT(reply.chunks, 8192);
}

TEST(Stream, WhoNeverReadsIsLeft) {
  TestServerOptions options = endless(0);
  options.server.write_timeout = 0.3;
  TestServer server(options);
  RawClient client(server.port());
  const int small = 2048;
  ::setsockopt(client.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  client.send(stream_request({{"max_tokens", 300'000}, {"n", 8}}));
  ASSERT_TRUE(eventually([&] { return running(server) == 1; }));
  EXPECT_TRUE(eventually([&] { return server.quiet(); }));
}

TEST(Stream, PingsWhileNothingComes) {
  TestServerOptions options = endless();
  options.fake.first_delay = 1;
  options.fake.tokens = 2;
  options.server.ping_interval = 0.1;
  TestServer server(options);
  RawClient chat(server.port());
  chat.send(stream_request());
  const HttpReply reply = chat.receive();
  EXPECT_TRUE(reply.body.starts_with(": ")) << reply.body.substr(0, 100);
  EXPECT_EQ(testing::parse_sse(reply.body).back().data, "[DONE]");
  const Json body = {
      {"model", "fake"}, {"max_tokens", 5}, {"stream", true}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  const auto events = testing::parse_sse(call(server.port(), "POST", "/v1/messages", body.dump()).body);
  EXPECT_EQ(events.front().name, "ping");
  EXPECT_EQ(events.back().name, "message_stop");
}

TEST(Stream, TokensArriveAsTheyAreMade) {
  TestServerOptions options = endless(20);
  options.fake.tokens = 10;
  TestServer server(options);
  RawClient client(server.port());
  client.send(stream_request());
  int pieces = 0;
  std::string text;
  while (text.find("[DONE]") == std::string::npos) {
    const std::string piece = client.read_some();
    ASSERT_FALSE(piece.empty());
    text += piece;
    ++pieces;
  }
  EXPECT_GE(pieces, 3) << "not all at once, however seldom this thread gets to run";
}

TEST(Load, FullQueueIs429) {
  TestServerOptions options = endless();
  options.engine.max_num_seqs = 1;
  options.engine.max_queued_requests = 1;
  TestServer server(options);
  RawClient first(server.port()), second(server.port());
  first.send(stream_request());
  ASSERT_TRUE(eventually([&] { return running(server) == 1; }));
  second.send(stream_request());
  ASSERT_TRUE(eventually([&] { return server.engine().stats().waiting == 1; }));
  for (const char* path : {"/v1/chat/completions", "/v1/messages"}) {
    const HttpReply reply = call(server.port(), "POST", path, chat_body("hi", {{"max_tokens", 5}}));
    EXPECT_EQ(reply.status, 429) << reply.body;
    EXPECT_EQ(reply.header("retry-after"), "1");
    EXPECT_EQ(reply.json()["error"]["type"], "rate_limit_error");
  }
  // Several prompts, of which not all find a place: those that did are given back.
  EXPECT_EQ(call(server.port(), "POST", "/v1/completions", R"({"model":"fake","prompt":["a","b","c"]})").status, 429);
  EXPECT_EQ(server.engine().stats().waiting, 1);
  first.close();
  second.close();
  EXPECT_TRUE(eventually([&] { return server.quiet(); }));
}

TEST(Load, LargerThanTheCacheIs400) {
  // However full or empty the queue is: later it would not fit either.
  TestServerOptions options = endless();
  options.fake.pages = 4;
  options.engine.max_num_seqs = 1;
  options.engine.max_queued_requests = 2;
  TestServer server(options);
  const auto too_large = [&](const char* path, const Json& more) {
    const HttpReply reply = call(server.port(), "POST", path, chat_body("hi", more));
    EXPECT_EQ(reply.status, 400) << path << reply.body;
    EXPECT_EQ(reply.header("retry-after"), "");
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
    EXPECT_NE(reply.body.find("the KV cache has 4 of 128 tokens"), std::string::npos) << reply.body;
  };
  too_large("/v1/chat/completions", {{"max_tokens", 600}});
  too_large("/v1/messages", {{"max_tokens", 600}});
  RawClient first(server.port()), second(server.port());
  first.send(stream_request({{"max_tokens", 400}}));
  ASSERT_TRUE(eventually([&] { return running(server) == 1; }));
  second.send(stream_request({{"max_tokens", 400}}));
  ASSERT_TRUE(eventually([&] { return server.engine().stats().waiting == 1; }));
  too_large("/v1/chat/completions", {{"max_tokens", 600}});
  EXPECT_EQ(server.engine().stats().refused, 0);
}

TEST(Load, ConcurrencyLimit) {
  TestServerOptions options = endless();
  options.server.max_concurrent_requests = 2;
  TestServer server(options);
  RawClient first(server.port()), second(server.port());
  first.send(stream_request());
  second.send(stream_request());
  ASSERT_TRUE(eventually([&] { return running(server) == 2; }));
  EXPECT_EQ(call(server.port(), "GET", "/load").json()["server_load"], 2);
  EXPECT_EQ(call(server.port(), "POST", "/v1/chat/completions", chat_body("hi")).status, 429);
  EXPECT_EQ(call(server.port(), "POST", "/tokenize", R"({"prompt":"x"})").status, 200);
  first.close();
  EXPECT_TRUE(eventually([&] { return running(server) == 1; }));
}

TEST(Drain, RunningRequestsFinish) {
  TestServerOptions options = endless(40);
  options.fake.tokens = 120;  // three seconds, in which the rest of the test has its place
  options.server.admin_port = 0;
  TestServer server(options);
  RawClient idle(server.port()), busy(server.port());
  idle.send(request_text("GET", "/health"));
  EXPECT_EQ(idle.receive().status, 200);
  busy.send(stream_request());
  ASSERT_TRUE(eventually([&] { return running(server) == 1; }));
  std::thread waiter([&] { server.server().wait(); });
  EXPECT_EQ(call(server.server().admin_port(), "POST", "/drain").status, 200);
  EXPECT_TRUE(idle.ended());
  const HttpReply refused = call(server.port(), "POST", "/v1/chat/completions", chat_body("hi"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  EXPECT_EQ(refused.header("connection"), "close");
  EXPECT_EQ(call(server.port(), "GET", "/ready").status, 503);
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
  const HttpReply reply = busy.receive();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(testing::parse_sse(reply.body).back().data, "[DONE]");
  waiter.join();
  EXPECT_EQ(server.engine().stats().finished[static_cast<size_t>(FinishReason::kStop)], 1);
}

TEST(Drain, AfterTheTimeRequestsAreCancelled) {
  TestServerOptions options = endless(40);
  options.server.drain_timeout = 0.2;
  TestServer server(options);
  RawClient stream(server.port()), whole(server.port());
  stream.send(stream_request());
  whole.send(request_text("POST", "/v1/chat/completions", chat_body("hi")));
  ASSERT_TRUE(eventually([&] { return running(server) == 2; }));
  std::thread waiter([&] { server.server().wait(); });
  server.server().drain();
  const HttpReply cut = stream.receive();
  EXPECT_NE(cut.body.find("\"error\""), std::string::npos)
      << cut.body.substr(cut.body.size() - std::min<size_t>(cut.body.size(), 300));
  EXPECT_EQ(cut.body.find("[DONE]"), std::string::npos);
  EXPECT_GE(whole.receive().status, 500);
  waiter.join();
}

/// Entries of a folder of /proc/self: "fd" are the open descriptors, "task" the threads.
int64_t entries(const char* name) {
  int64_t count = 0;
  DIR* dir = ::opendir((std::string("/proc/self/") + name).c_str());
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

// What its loops hold must not hold the loops: an event loop that stays costs descriptors.
TEST(Server, TakesItsLoopsWithIt) {
  { const TestServer warm; }
  const int64_t descriptors = entries("fd"), threads = entries("task");
  for (int i = 0; i < 30; ++i) {
    TestServerOptions options = endless(0);
    if (i % 3 == 2) options.server.host = "not-an-address";  // it ends before its threads have begun
    try {
      TestServer server(options);
      RawClient client(server.port());
      client.send(stream_request({{"n", 4}}));
      if (i % 3 == 1) client.read_some();
    } catch (const std::runtime_error&) {
      EXPECT_EQ(i % 3, 2);
    }
  }
  EXPECT_EQ(entries("fd"), descriptors);
  EXPECT_EQ(entries("task"), threads);
}

// CASES 18: requests of every format, whole and broken off, from clients that stay and clients that leave in every state.
TEST(Soak, NothingIsLeftBehind) {
  TestServerOptions options = endless(200);
  options.fake.tokens = 20;
  options.engine.max_num_seqs = 8;  // so that some wait
  TestServer server(options);
  call(server.port(), "GET", "/health");
  ASSERT_TRUE(eventually([&] { return server.application().metrics().connections == 0; }));
  const int64_t descriptors = entries("fd"), threads = entries("task");
  const std::string messages = R"({"model":"fake","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]})";
  const std::vector<std::string> requests = {
      stream_request(),
      request_text("POST", "/v1/chat/completions", chat_body("hi", {{"n", 2}})),
      request_text("POST", "/v1/messages", messages),
      request_text("POST", "/v1/responses", R"({"model":"fake","input":"hi","stream":true})"),
      request_text("POST", "/v1/completions", R"({"model":"fake","prompt":["a","b"],"max_tokens":9})"),
      request_text("POST", "/v1/chat/completions", "{\"model\":") + request_text("GET", "/metrics"),
      request_text("GET", "/nothing")};
  std::vector<std::unique_ptr<RawClient>> clients(16);
  uint32_t random = 12345;
  for (int i = 0; i < 2000; ++i) {
    random = random * 1664525 + 1013904223;
    auto& client = clients[(random >> 4) % clients.size()];
    if (client != nullptr && (random >> 20) % 5 == 0) client->reset();
    if (client != nullptr && (random >> 21) % 5 == 1) client->half_close();
    client = std::make_unique<RawClient>(server.port());
    const std::string& request = requests[(random >> 8) % requests.size()];
    client->send(request.substr(0, (random >> 9) % 4 == 0 ? (random >> 12) % request.size() : request.size()));
    if ((random >> 16) % 16 == 0) client->read_some(0.02);
  }
  clients.clear();
  EXPECT_TRUE(eventually([&] { return server.quiet() && server.application().metrics().connections == 0; }));
  EXPECT_EQ(entries("fd"), descriptors);
  EXPECT_EQ(entries("task"), threads);
  const EngineStats stats = server.engine().stats();
  int64_t ended = 0;
  for (const int64_t count : stats.finished) ended += count;
  EXPECT_GE(ended, stats.submitted) << "every choice of every request";
  EXPECT_EQ(call(server.port(), "POST", "/v1/chat/completions", chat_body("hi")).status, 200);
}

}  // namespace
}  // namespace deepinfer
