// Who gets in: every route with the right key, with none and with a wrong one; CORS; request ids; what listens where.

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <fstream>

#include "server/key_ring.h"
#include "server/test_server.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using server::Application;
using testing::call;
using testing::chat_body;
using testing::Headers;
using testing::HttpReply;
using testing::TestServer;
using testing::TestServerOptions;

TestServerOptions with_keys() {
  TestServerOptions options;
  options.server.api_keys = {"first-key", "second-key"};
  options.server.admin_port = 0;
  return options;
}

std::string concrete(std::string pattern) {
  if (const size_t at = pattern.find("{id}"); at != std::string::npos) pattern.replace(at, 4, "x");
  return pattern;
}

TEST(Auth, EveryRouteWithEveryKey) {
  TestServer server(with_keys());
  for (const auto listener : {Application::Listener::kPublic, Application::Listener::kAdmin}) {
    const int port = listener == Application::Listener::kAdmin ? server.server().admin_port() : server.port();
    for (const auto& route : server.application().routes(listener)) {
      if (route.pattern == "/drain") continue;
      const std::string path = concrete(route.pattern);
      const std::string body = route.method == "POST" ? "{}" : "";
      for (const Headers& wrong : std::vector<Headers>{{},
                                                       {{"Authorization", "Bearer wrong"}},
                                                       {{"Authorization", "Bearer first-ke"}},
                                                       {{"Authorization", "Bearer first-key2"}},
                                                       {{"Authorization", "Bearer "}},
                                                       {{"Authorization", "Basic first-key"}},
                                                       {{"Authorization", "first-key"}},
                                                       {{"x-api-key", "wrong"}},
                                                       {{"x-api-key", ""}}}) {
        const HttpReply reply = call(port, route.method, path, body, wrong);
        if (route.open) {
          EXPECT_NE(reply.status, 401) << path;
          EXPECT_TRUE(path == "/health" || path == "/ready" || path == "/" || path == "/assets/x") << path;
          continue;
        }
        EXPECT_EQ(reply.status, 401) << route.method << " " << path;
        EXPECT_EQ(reply.header("www-authenticate"), "Bearer");
        EXPECT_TRUE(reply.json()["error"]["message"].is_string()) << reply.body;
        EXPECT_EQ(reply.json().contains("type"), path.starts_with("/v1/messages")) << path;
      }
      for (const Headers& right : std::vector<Headers>{{{"Authorization", "Bearer first-key"}},
                                                       {{"authorization", "bearer second-key"}},
                                                       {{"X-Api-Key", "second-key"}}}) {
        const int status = call(port, route.method, path, body, right).status;
        EXPECT_NE(status, 401) << path;
        EXPECT_NE(status, 0) << path;
      }
    }
    EXPECT_EQ(call(port, "GET", "/unknown").status, 401);
    EXPECT_EQ(call(port, "POST", "/health").status, 401);
  }
  // Admin routes are not on the public listener.
  EXPECT_EQ(call(server.port(), "POST", "/reset_prefix_cache", "{}", {{"x-api-key", "first-key"}}).status, 404);
  EXPECT_EQ(call(server.port(), "GET", "/stats", "", {{"x-api-key", "first-key"}}).status, 404);
  EXPECT_EQ(call(server.server().admin_port(), "POST", "/reset_prefix_cache", "{}", {{"x-api-key", "first-key"}}).status, 200);
  EXPECT_TRUE(call(server.server().admin_port(), "GET", "/stats", "", {{"x-api-key", "first-key"}}).json().contains("running"));
}

TEST(Auth, RefusedBeforeTheBodyIsRead) {
  TestServer server(with_keys());
  testing::RawClient client(server.port());
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n");
  EXPECT_EQ(client.receive().status, 401);
}

TEST(Auth, ResponsesBelongToTheirKey) {
  TestServer server(with_keys());
  const std::string body = R"({"model":"fake","input":"hi"})";
  const std::string id = call(server.port(), "POST", "/v1/responses", body, {{"x-api-key", "first-key"}}).json()["id"];
  EXPECT_EQ(call(server.port(), "GET", "/v1/responses/" + id, "", {{"x-api-key", "second-key"}}).status, 404);
  EXPECT_EQ(call(server.port(), "POST", "/v1/responses/" + id + "/cancel", "", {{"x-api-key", "second-key"}}).status, 404);
  EXPECT_EQ(call(server.port(), "GET", "/v1/responses/" + id, "", {{"x-api-key", "first-key"}}).status, 200);
}

TEST(Auth, SaltsKeepTenantsApart) {
  const server::KeyRing keys({"first-key", "second-key"}), turned({"second-key", "first-key"}), none({});
  const std::string first = keys.cache_salt(0, "", 0);
  EXPECT_EQ(keys.cache_salt(0, "", 0), first);
  EXPECT_NE(keys.cache_salt(1, "", 0), first);
  EXPECT_NE(keys.cache_salt(-1, "", 0), first);
  EXPECT_NE(keys.cache_salt(0, "a", 0), first);
  EXPECT_NE(keys.cache_salt(0, "", 1), first);
  EXPECT_EQ(keys.cache_salt(0, std::string(100'000, 'x'), 0).size(), 32U);
  // Servers that share a store, and the next run of this one, may list their keys otherwise.
  EXPECT_EQ(turned.cache_salt(1, "", 0), first);
  EXPECT_NE(turned.cache_salt(0, "", 0), first);
  EXPECT_EQ(none.cache_salt(-1, "", 0), keys.cache_salt(-1, "", 0));
  EXPECT_NE(server::random_epoch(), server::random_epoch());
}

TEST(Auth, KeyFile) {
  const std::string path = testing::make_temp_dir("keys") + "/keys";
  std::ofstream(path) << "# keys\none\r\n\n  \ntwo \n";
  EXPECT_EQ(*server::read_key_file(path), (std::vector<std::string>{"one", "two"}));
  std::ofstream(path) << "# none\n";
  EXPECT_FALSE(server::read_key_file(path));
  EXPECT_FALSE(server::read_key_file(path + "x"));
  server::ServerOptions options;
  options.api_keys = {"with space"};
  EXPECT_FALSE(options.validate().ok());
}

TEST(Cors, OriginsAreWhatBrowsersSend) {
  server::ServerOptions options;
  for (const char* fine :
       {"*", "null", "https://app.example", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abc"}) {
    options.allowed_origins = {fine};
    EXPECT_TRUE(options.validate().ok()) << fine;
  }
  for (const char* wrong : {"", "app.example", "localhost:3000", "https://", "://x", "https://app.example/",
                            "https://App.example", "https://a.example,https://b.example/x", "https://user@app.example"}) {
    options.allowed_origins = {wrong};
    EXPECT_NE(options.validate().message().find("--allowed-origins: \"" + std::string(wrong) + "\""), std::string::npos) << wrong;
  }
}

TEST(Cors, PreflightAndReplies) {
  TestServerOptions options = with_keys();
  options.server.allowed_origins = {"https://app.example"};
  TestServer server(options);
  const Headers asks = {{"Origin", "https://app.example"},
                        {"Access-Control-Request-Method", "POST"},
                        {"Access-Control-Request-Headers", "authorization, content-type"}};
  const HttpReply preflight = call(server.port(), "OPTIONS", "/v1/chat/completions", "", asks);
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("access-control-allow-origin"), "https://app.example");
  EXPECT_EQ(preflight.header("access-control-allow-headers"), "authorization, content-type");
  Headers foreign = asks;
  foreign[0].second = "https://evil.example";
  EXPECT_EQ(call(server.port(), "OPTIONS", "/v1/chat/completions", "", foreign).status, 403);
  const HttpReply reply = call(server.port(), "POST", "/v1/chat/completions", chat_body("x", {{"stream", true}}),
                               {{"Origin", "https://app.example"}, {"x-api-key", "first-key"}});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("access-control-allow-origin"), "https://app.example");
  EXPECT_EQ(reply.header("vary"), "Origin");
  // Errors can be read by pages, too.
  EXPECT_EQ(
      call(server.port(), "GET", "/v1/models", "", {{"Origin", "https://app.example"}}).header("access-control-allow-origin"),
      "https://app.example");
  EXPECT_EQ(
      call(server.port(), "GET", "/v1/models", "", {{"Origin", "https://evil.example"}}).header("access-control-allow-origin"),
      "");
}

TEST(Cors, OffByDefault) {
  TestServer server;
  const HttpReply reply = call(server.port(), "GET", "/v1/models", "", {{"Origin", "https://app.example"}});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("access-control-allow-origin"), "");
  EXPECT_EQ(call(server.port(), "OPTIONS", "/v1/models", "", {{"Origin", "https://a"}, {"Access-Control-Request-Method", "GET"}})
                .status,
            405);
}

TEST(RequestIds, TakenOverOrMade) {
  TestServer server;
  EXPECT_EQ(call(server.port(), "GET", "/health", "", {{"X-Request-Id", "abc-1.2:3_4"}}).header("x-request-id"), "abc-1.2:3_4");
  const std::string made = call(server.port(), "GET", "/health").header("x-request-id");
  EXPECT_EQ(made.size(), 32U);
  EXPECT_NE(call(server.port(), "GET", "/health").header("x-request-id"), made);
  for (const std::string& bad : {std::string("a b"), std::string(129, 'a'), std::string("{\"x\":1}")})
    EXPECT_EQ(call(server.port(), "GET", "/health", "", {{"x-request-id", bad}}).header("x-request-id").size(), 32U) << bad;
  EXPECT_EQ(call(server.port(), "POST", "/v1/chat/completions", chat_body("x", {{"stream", true}}), {{"x-request-id", "s1"}})
                .header("x-request-id"),
            "s1");
  EXPECT_EQ(call(server.port(), "GET", "/nothing", "", {{"x-request-id", "s2"}}).header("x-request-id"), "s2");
}

/// Local addresses of the sockets that listen on one of these ports.
std::vector<std::string> listening(const std::vector<int>& ports) {
  std::vector<std::string> found;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    std::string line;
    while (std::getline(in, line)) {
      char address[64] = "";
      unsigned port = 0, state = 0;
      if (std::sscanf(line.c_str(), " %*d: %63[0-9A-F]:%x %*[0-9A-F]:%*x %x", address, &port, &state) != 3 || state != 0x0A)
        continue;
      if (std::find(ports.begin(), ports.end(), static_cast<int>(port)) != ports.end()) found.push_back(address);
    }
  }
  return found;
}

TEST(Listening, OnLoopbackOnly) {
  TestServer server(with_keys());
  const auto addresses = listening({server.port(), server.server().admin_port()});
  EXPECT_EQ(addresses, (std::vector<std::string>{"0100007F", "0100007F"}));
}

TEST(Listening, BadAddressesAreNamed) {
  TestServerOptions options;
  options.server.host = "not-an-address";
  EXPECT_THROW(TestServer{options}, std::runtime_error);
  options.server.host = "127.0.0.1";
  options.server.ssl_certfile = "/nonexistent.pem";
  EXPECT_THROW(TestServer{options}, std::runtime_error);
  options.server.ssl_keyfile = "/nonexistent.pem";
  EXPECT_THROW(TestServer{options}, std::runtime_error);
}

}  // namespace
}  // namespace deepinfer
