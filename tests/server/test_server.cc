#include "server/test_server.h"

#include <gtest/gtest.h>

#include "testing/paths.h"

namespace deepinfer::testing {

std::shared_ptr<const Tokenizer> nano_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::Load(nano_dir() + "/tokenizer.json");
    if (!loaded) throw std::runtime_error(loaded.error().message());
    return *loaded;
  }();
  return tokenizer;
}

TestServer::TestServer(TestServerOptions options) {
  options.server.port = 0;
  if (options.engine.model.empty()) options.engine.model = "fake";
  if (options.trace) options.engine.trace = trace_ = std::make_shared<telemetry::TraceRecorder>();
  engine_ = server::make_fake_engine(nano_tokenizer(), options.engine, options.fake);
  server::Backend backend;
  backend.engine = engine_.get();
  backend.tokenizer = nano_tokenizer();
  backend.trace = trace_;
  backend.conversion.default_thinking = options.default_thinking;
  backend.conversion.max_body_bytes = options.server.max_body_bytes;
  backend.policy.max_model_len = engine_->model().max_model_len;
  auto made = server::Server::Create(options.server, std::move(backend),
                                     std::make_shared<server::EventLog>(server::EventLog::Format::kOff));
  if (!made) throw std::runtime_error(made.error().message());
  server_ = *std::move(made);
}

TestServer::~TestServer() { server_.reset(); }

bool TestServer::quiet() const {
  const EngineStats stats = engine_->stats();
  return stats.running == 0 && stats.waiting == 0 && server_->application().metrics().generations == 0;
}

std::string chat_body(const std::string& text, nlohmann::json more) {
  nlohmann::json body{{"model", "fake"}, {"messages", {{{"role", "user"}, {"content", text}}}}};
  if (more.is_object()) body.update(more);
  return body.dump();
}

}  // namespace deepinfer::testing
