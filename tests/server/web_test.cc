// The pages at "/": open files with strict headers, the app's or the plain page of a build without it.

#include <gtest/gtest.h>

#include <algorithm>

#include "server/test_server.h"
#include "server/web_files.h"

namespace deepinfer {
namespace {

using server::web_files;
using server::WebFile;
using testing::call;
using testing::HttpReply;
using testing::RawClient;
using testing::request_text;
using testing::TestServer;
using testing::TestServerOptions;

TEST(Web, EveryFileIsServedWithoutAKey) {
  TestServerOptions options;
  options.server.api_keys = {"key"};
  TestServer server(options);
  ASSERT_FALSE(web_files().empty());
  EXPECT_TRUE(std::any_of(web_files().begin(), web_files().end(), [](const WebFile& f) { return f.path == "/"; }));
  for (const WebFile& file : web_files()) {
    const HttpReply reply = call(server.port(), "GET", std::string(file.path));
    EXPECT_EQ(reply.status, 200) << file.path;
    EXPECT_EQ(reply.body, file.body) << file.path;
    EXPECT_EQ(reply.header("content-type"), file.content_type);
    EXPECT_EQ(reply.header("etag"), file.etag);
    EXPECT_EQ(reply.header("content-encoding"), "");
    EXPECT_EQ(reply.header("x-content-type-options"), "nosniff");
    EXPECT_EQ(reply.header("cache-control").find("immutable") != std::string::npos, file.path != "/") << file.path;
    const std::string policy = reply.header("content-security-policy");
    EXPECT_NE(policy.find("default-src 'none'"), std::string::npos) << policy;
    EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos) << policy;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  }
}

TEST(Web, CompressedForThoseWhoTakeIt) {
  TestServer server;
  for (const WebFile& file : web_files()) {
    if (file.gzip.empty()) continue;
    for (const char* takes : {"gzip", "deflate, gzip, br", "br,GZIP"}) {
      const HttpReply reply = call(server.port(), "GET", std::string(file.path), "", {{"Accept-Encoding", takes}});
      EXPECT_EQ(reply.header("content-encoding"), "gzip") << takes;
      EXPECT_EQ(reply.header("vary"), "Accept-Encoding");
      EXPECT_EQ(reply.body, file.gzip);
    }
    for (const char* refuses : {"", "br", "gzip;q=0", "x-gzip"}) {
      const HttpReply reply = call(server.port(), "GET", std::string(file.path), "", {{"Accept-Encoding", refuses}});
      EXPECT_EQ(reply.header("content-encoding"), "") << refuses;
      EXPECT_EQ(reply.body, file.body);
    }
  }
}

TEST(Web, NothingIsSentAgainThatIsKnown) {
  TestServer server;
  RawClient client(server.port());
  const std::string etag(web_files().front().etag);
  const std::string path(web_files().front().path);
  for (const std::string& known : {etag, "\"other\", " + etag, std::string("*")}) {
    ASSERT_TRUE(client.send(request_text("GET", path, "", {{"If-None-Match", known}})));
    const HttpReply reply = client.receive(/*head=*/true);
    EXPECT_EQ(reply.status, 304) << known;
    EXPECT_EQ(reply.header("etag"), etag);
    EXPECT_EQ(reply.headers.count("content-length"), 0U);
  }
  // The connection goes on: nothing followed those heads.
  ASSERT_TRUE(client.send(request_text("GET", path, "", {{"If-None-Match", "\"other\""}})));
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Web, OtherPathsAndMethods) {
  TestServer server;
  for (const char* path : {"/assets/none.js", "/assets/..%2fetc", "/assets/", "/index.html", "/favicon.ico", "//"})
    EXPECT_EQ(call(server.port(), "GET", path).status, 404) << path;
  EXPECT_EQ(call(server.port(), "POST", "/", "{}").status, 405);
  EXPECT_EQ(call(server.port(), "GET", "/?x=1").status, 200);
  RawClient client(server.port());
  ASSERT_TRUE(client.send(request_text("HEAD", "/")));
  EXPECT_EQ(client.receive(/*head=*/true).status, 200);
}

TEST(Web, CanBeLeftOut) {
  TestServerOptions options;
  options.server.dashboard = false;
  TestServer server(options);
  for (const WebFile& file : web_files()) EXPECT_EQ(call(server.port(), "GET", std::string(file.path)).status, 404) << file.path;
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
}

}  // namespace
}  // namespace deepinfer
