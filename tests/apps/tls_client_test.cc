// bench serve over TLS, against a server of a few lines with a certificate made for the test.
#include <gtest/gtest.h>

#include <fstream>

#include "apps/scripted_server.h"
#include "serve/http_client.h"
#include "serve/load_client.h"
#include "server/certificate.h"
#include "testing/paths.h"

namespace deepinfer::bench {
namespace {

using testing::http_answer;
using testing::ScriptedServer;
using testing::sse_event;

const std::string kAnswer = sse_event(R"({"choices":[{"text":"a"}]})") + sse_event("[DONE]");

ScriptedServer::Reply always(const std::string& reply) {
  return [reply](int64_t, const std::string&) { return reply; };
}

std::vector<LoadSession> requests(size_t count) {
  return std::vector<LoadSession>(count, LoadSession{.at = 0, .body = "{}", .turns = {{.input_tokens = 5, .think_time = 0}}});
}

/// The error of a request, or why none was sent.
std::string error_of(const Endpoint& endpoint) {
  const auto run = run_load(endpoint, requests(1), {.timeout = 20});
  return run.has_value() ? run->records.front().error : run.error().message();
}

std::string certificate_for(const std::string& names) {
  const std::string folder = testing::make_temp_dir("bench-tls");
  testing::make_certificate(folder, names);
  return folder;
}

TEST(TlsClient, BelievesTheGivenAuthorityAlone) {
  const std::string folder = certificate_for("IP:127.0.0.1"), other = certificate_for("IP:127.0.0.1");
  ScriptedServer server(always(http_answer(kAnswer)), "", folder);
  Endpoint e = server.endpoint();
  EXPECT_NE(error_of(e).find("TLS: certificate verify failed"), std::string::npos) << error_of(e);
  e.ca_file = other + "/cert.pem";
  EXPECT_NE(error_of(e).find("TLS: certificate verify failed"), std::string::npos) << error_of(e);
  e.ca_file = folder + "/cert.pem";
  EXPECT_EQ(error_of(e), "");
  EXPECT_TRUE(http_get(e, "/v1/models").has_value());
}

TEST(TlsClient, KeepsConnections) {
  const std::string folder = certificate_for("IP:127.0.0.1");
  ScriptedServer server(always(http_answer(kAnswer)), "", folder);
  Endpoint e = server.endpoint();
  e.ca_file = folder + "/cert.pem";
  const auto run = run_load(e, requests(20), {.max_concurrency = 2, .timeout = 20});
  ASSERT_TRUE(run.has_value());
  for (const LoadRecord& r : run->records) EXPECT_EQ(r.error, "");
  EXPECT_LE(server.connections(), 2);
}

TEST(TlsClient, ChecksTheName) {
  const std::string folder = certificate_for("DNS:elsewhere.example,IP:127.0.0.2");
  ScriptedServer server(always(http_answer(kAnswer)), "", folder);
  Endpoint e = server.endpoint();
  e.ca_file = folder + "/cert.pem";
  EXPECT_NE(error_of(e).find("TLS: certificate verify failed"), std::string::npos) << error_of(e);
  e.ca_file.clear();
  e.insecure = true;
  EXPECT_EQ(error_of(e), "");
}

TEST(TlsClient, ABodyMayEndWithItsConnection) {
  const std::string folder = certificate_for("IP:127.0.0.1");
  ScriptedServer whole(always("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + kAnswer), "", folder);
  Endpoint e = whole.endpoint();
  e.insecure = true;
  EXPECT_EQ(error_of(e), "");
  ScriptedServer cut(always("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 999\r\n\r\n" + kAnswer), "", folder);
  e.port = cut.endpoint().port;
  EXPECT_NE(error_of(e).find("read: "), std::string::npos) << error_of(e);
}

TEST(TlsClient, WhatIsNotTlsIsAnError) {
  ScriptedServer plain([](int64_t, const std::string&) { return http_answer(kAnswer); });
  Endpoint e = plain.endpoint();
  e.tls = true;
  e.insecure = true;
  // The plain server waits for a head that never comes.
  const auto run = run_load(e, requests(1), {.timeout = 0.3});
  ASSERT_TRUE(run.has_value());
  EXPECT_NE(run->records.front().error.find("TLS: "), std::string::npos) << run->records.front().error;
}

TEST(TlsClient, AFileThatIsNoAuthorityIsNamed) {
  const std::string folder = testing::make_temp_dir("bench-tls");
  std::ofstream(folder + "/words.pem") << "hello\n";
  for (const char* name : {"/none.pem", "/words.pem"}) {
    const Endpoint e{.tls = true, .ca_file = folder + name};
    EXPECT_NE(error_of(e).find("--cacert " + folder + name + ": "), std::string::npos) << error_of(e);
  }
}

}  // namespace
}  // namespace deepinfer::bench
