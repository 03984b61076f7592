// HTTPS with a certificate made for the test.

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <poll.h>

#include "server/certificate.h"
#include "server/test_server.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::chat_body;
using testing::RawClient;
using testing::request_text;
using testing::TestServer;
using testing::TestServerOptions;

/// A blocking TLS client over a raw one.
class TlsClient {
 public:
  explicit TlsClient(int port) : raw_(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_)) {
    SSL_set_fd(ssl_, raw_.fd());
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  bool connected() const { return connected_; }
  void send(const std::string& text) { SSL_write(ssl_, text.data(), static_cast<int>(text.size())); }
  /// Until `mark` has come.
  std::string read_until(const std::string& mark) {
    std::string text;
    char piece[4096];
    while (text.find(mark) == std::string::npos) {
      const int count = SSL_read(ssl_, piece, sizeof(piece));
      if (count <= 0) break;
      text.append(piece, static_cast<size_t>(count));
    }
    return text;
  }
  void shutdown() { SSL_shutdown(ssl_); }
  RawClient& raw() { return raw_; }

 private:
  RawClient raw_;
  SSL_CTX* context_;
  SSL* ssl_;
  bool connected_ = false;
};

TestServerOptions with_tls(double rate, int64_t tokens) {
  const std::string directory = testing::make_temp_dir("tls");
  testing::make_certificate(directory);
  TestServerOptions options;
  options.server.ssl_certfile = directory + "/cert.pem";
  options.server.ssl_keyfile = directory + "/key.pem";
  options.fake.rate = rate;
  options.fake.tokens = tokens;
  return options;
}

TEST(Tls, RequestsAndStreams) {
  TestServer server(with_tls(0, 5));
  EXPECT_TRUE(server.server().url().starts_with("https://127.0.0.1:"));
  TlsClient client(server.port());
  ASSERT_TRUE(client.connected());
  for (int i = 0; i < 2; ++i) {
    client.send(request_text("GET", "/v1/models"));
    EXPECT_NE(client.read_until("}]}").find("200 OK"), std::string::npos);
  }
  client.send(request_text("POST", "/v1/chat/completions", chat_body("hi", {{"stream", true}})));
  EXPECT_NE(client.read_until("0\r\n\r\n").find("[DONE]"), std::string::npos);
}

TEST(Tls, DisconnectCancels) {
  TestServer server(with_tls(50, 1'000'000));
  for (const bool polite : {true, false}) {
    TlsClient client(server.port());
    client.send(request_text("POST", "/v1/chat/completions", chat_body("hi", {{"stream", polite}})));
    ASSERT_TRUE(testing::eventually([&] { return server.engine().stats().running == 1; }));
    if (polite) client.shutdown();
    client.raw().close();
    EXPECT_TRUE(testing::eventually([&] { return server.quiet(); })) << polite;
  }
}

TEST(Tls, PlainTextAndSilenceAreRefused) {
  TestServerOptions options = with_tls(0, 5);
  options.server.header_timeout = 0.5;
  TestServer hasty(options), server(with_tls(0, 5));
  RawClient plain(server.port());
  plain.send(request_text("GET", "/health"));
  EXPECT_TRUE(plain.ended());
  RawClient silent(hasty.port());
  EXPECT_TRUE(silent.ended());
  TlsClient client(server.port());
  client.send(request_text("GET", "/health"));
  EXPECT_NE(client.read_until("\r\n\r\n").find("200 OK"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
