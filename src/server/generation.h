#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "protocol/api.h"
#include "server/generation_observer.h"
#include "server/http.h"

namespace deepinfer::server {

/// One answer in progress: the engine's handles at one end, bytes for the wire at the other. It is pulled: while nobody calls
/// `advance`, the engine's news is merged where it waits, so a slow reader costs no memory. One thread at a time; destroying it
/// cancels what still runs.
class Generation {
 public:
  struct Setup {
    Api api = Api::kChat;
    std::string id;
    std::string model;
    bool streaming = false;
    std::unique_ptr<ResponseStream> stream;
    std::vector<RequestHandle> handles;  ///< by prompt
    std::string format_field;            ///< of the request: what an error of its form is about
    std::chrono::steady_clock::time_point arrival;
    Metrics* metrics = nullptr;
    telemetry::TraceRecorder* trace = nullptr;  ///< null: nothing is recorded
    /// With the body that a GET finds later, or nothing and whether it was cancelled.
    std::function<void(std::string body, bool cancelled)> on_end;
  };

  explicit Generation(Setup setup);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Called from any thread when `advance` may have something. It must not block.
  void set_callback(const std::function<void()>& on_news);
  /// Takes in what the engine has made; what to send of it, nothing if the answer goes out in one piece.
  std::string advance();
  /// Nothing more will come.
  bool done() const { return setup_.stream->done(); }
  bool streaming() const { return setup_.streaming; }
  /// The engine's number of the first prompt.
  RequestId request() const { return setup_.handles.front().id(); }
  /// False while a structured output is being compiled: it may yet be refused with a status of its own, so nothing may be sent.
  bool prepared() const;
  /// Headers of the reply beside the usual ones. Complete once `prepared`.
  std::vector<Header> headers() const;
  /// Whether it ended in an error; with nothing sent yet, `reply` says it better than a stream does.
  bool failed() const { return setup_.stream->failed().has_value(); }
  /// The whole answer, or the error. Only when done.
  Reply reply() const;
  std::string keep_alive() const { return sse_keep_alive(setup_.api); }
  const GenerationSummary& summary() const { return observer_.summary(); }

 private:
  void take(const Output& output, int64_t prompt, std::string& out);

  Setup setup_;
  GenerationObserver observer_;
};

/// Seconds since 1970.
int64_t unix_seconds();

}  // namespace deepinfer::server
