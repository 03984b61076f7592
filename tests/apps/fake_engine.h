#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "bench_command.h"
#include "deepinfer/engine.h"
#include "engine/request_stream.h"

namespace deepinfer::testing {

/// What a fake engine does. Answers have the wanted length; token i of an answer is i.
struct FakeBehaviour {
  int64_t tokens_per_step = 1;    ///< of each sequence, in one output
  int64_t max_running = 1 << 20;  ///< more of them wait
  int64_t refuse_every = 0;       ///< the Nth submission is refused
  int64_t fail_every = 0;         ///< the Nth request ends with an error
  int64_t stop_after = 0;         ///< EOS comes there, unless ignored
  bool never_answer = false;
  int64_t max_model_len = 8192;
  std::chrono::microseconds step{200};
};

/// What tests look at; shared by the engines that a factory makes.
struct FakeLog {
  std::mutex mutex;
  std::vector<Request> requests;
  std::vector<EngineOptions> engines;
  int64_t max_in_flight = 0;
  int64_t cancelled = 0;
};

/// An engine without a model: one thread, one output per running sequence and step.
class FakeEngine : public Engine {
 public:
  FakeEngine(const EngineOptions& options, const FakeBehaviour& behaviour, std::shared_ptr<FakeLog> log);
  ~FakeEngine() override;

  Result<RequestHandle> submit(Request request) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  void reset_prefix_cache() override {}
  void shutdown(Shutdown how) override;
  const EngineOptions& options() const override { return options_; }
  ModelInfo model() const override {
    ModelInfo info;
    info.name = "fake";
    info.vocab_size = 4096;
    info.max_model_len = behaviour_.max_model_len;
    info.page_tokens = 128;
    info.eos_token_id = 1;
    return info;
  }
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  Result<std::vector<int32_t>> encode_chat(std::string_view, bool) const override { return std::vector<int32_t>{}; }
  std::string decode(const std::vector<int32_t>&, bool) const override { return ""; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return nullptr; }

 private:
  struct Running {
    Request request;
    std::shared_ptr<RequestStream> stream;
    int64_t made = 0;
    bool fails = false;
    bool cancelled = false;
  };
  void loop();
  bool advance(RequestId id, Running& running);

  const EngineOptions options_;
  const FakeBehaviour behaviour_;
  const std::shared_ptr<FakeLog> log_;
  mutable std::mutex mutex_;
  std::map<RequestId, Running> running_;
  EngineStats stats_;
  RequestId next_id_ = 1;
  bool ending_ = false;
  std::thread thread_;
};

/// Makes fake engines.
bench::EngineFactory fake_factory(const FakeBehaviour& behaviour, std::shared_ptr<FakeLog> log);

}  // namespace deepinfer::testing
