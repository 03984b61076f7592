#pragma once

#include <memory>
#include <string>

#include "server/fake_engine.h"
#include "server/raw_client.h"
#include "server/server.h"

namespace deepinfer::testing {

/// What a test wants different.
struct TestServerOptions {
  server::ServerOptions server = {};
  server::FakeEngineOptions fake = {.rate = 0};
  EngineOptions engine = {};
  bool default_thinking = false;
  bool trace = false;  ///< a recorder for engine and server
};

/// A server on the fake engine, on a free port.
class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {});
  ~TestServer();

  int port() const { return server_->port(); }
  server::Server& server() { return *server_; }
  server::Application& application() { return server_->application(); }
  Engine& engine() { return *engine_; }
  /// Null without `trace`.
  const std::shared_ptr<telemetry::TraceRecorder>& trace() { return trace_; }
  /// Nothing runs or waits in the engine, no generation is known to the server.
  bool quiet() const;

 private:
  std::shared_ptr<telemetry::TraceRecorder> trace_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<server::Server> server_;
};

/// The tokenizer of models/nano, loaded once.
std::shared_ptr<const Tokenizer> nano_tokenizer();

/// {"model":"fake","messages":[{"role":"user","content":TEXT}], ...more}
std::string chat_body(const std::string& text, nlohmann::json more = {});

}  // namespace deepinfer::testing
