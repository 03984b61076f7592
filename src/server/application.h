#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "deepinfer/engine.h"
#include "protocol/api.h"
#include "server/cors.h"
#include "server/event_log.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/key_ring.h"
#include "server/metrics.h"
#include "server/otlp_exporter.h"
#include "server/response_store.h"
#include "server/server_options.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer::server {

/// A reply, or one that comes bit by bit.
using Outcome = std::variant<Reply, std::unique_ptr<Generation>>;

/// What the routes work with.
struct Backend {
  Engine* engine = nullptr;  ///< outlives the application
  std::shared_ptr<const Tokenizer> tokenizer;
  ConversionOptions conversion;
  GenerationPolicy policy;
  std::shared_ptr<telemetry::TraceRecorder> trace;  ///< the engine's; null: nothing is recorded
  std::shared_ptr<const OtlpExporter> otlp;         ///< whose counters /metrics tells; null: none
};

struct Route {
  std::string method;
  std::string pattern;     ///< a last or middle part "{id}" matches anything but '/'
  Api api = Api::kChat;    ///< whose errors it gives
  bool open = false;       ///< needs no key
  bool generates = false;  ///< takes engine time: refused while draining
  std::function<Outcome(const HttpRequest&, const std::string& parameter)> handler;
};

struct Match {
  const Route* route = nullptr;
  std::string parameter;
};

/// The API without the network: what each route does, who may call it, what is counted and logged. Thread-safe.
class Application {
 public:
  Application(ServerOptions options, Backend backend, std::shared_ptr<EventLog> log);

  enum class Listener : uint8_t { kPublic, kAdmin };
  const std::vector<Route>& routes(Listener listener) const { return listener == Listener::kAdmin ? admin_routes_ : routes_; }

  /// What can be refused by the head alone: unknown path or method, no key, wrong type of body, draining. Fills in
  /// `request.key`.
  std::optional<Reply> refuse_early(Listener listener, HttpRequest& request, Match& match) const;
  Outcome handle(const HttpRequest& request, const Match& match);

  /// An error in the form that callers of the path expect.
  Reply error_reply(const Match& match, std::string_view path, const ApiError& error) const;
  /// Headers that every reply carries.
  void decorate(const HttpRequest& request, const Match& match, std::vector<Header>& headers) const;
  /// The request is over: counts and logs it.
  void record(const HttpRequest& request, const Match& match, int status, int64_t bytes, double seconds,
              const GenerationSummary* summary, std::string_view note);

  void start_draining() { draining_ = true; }
  bool draining() const { return draining_; }
  /// Asked for on the admin listener; the server sets what it does.
  void on_drain(std::function<void()> drain) { drain_ = std::move(drain); }

  const ServerOptions& options() const { return options_; }
  Metrics& metrics() { return metrics_; }
  telemetry::TraceRecorder* trace() const { return backend_.trace.get(); }
  const EventLog& log() const { return *log_; }
  /// The name that /v1/models lists first.
  const std::string& model_name() const { return options_.served_model_names.front(); }

 private:
  using Handler = Outcome (Application::*)(const HttpRequest&, const std::string&);
  void add(std::vector<Route>& routes, const char* method, std::string pattern, Handler handler, Api api = Api::kChat,
           bool generates = false, bool open = false);

  // generation_routes.cc
  Outcome chat(const HttpRequest& request, const std::string&);
  Outcome messages(const HttpRequest& request, const std::string&);
  Outcome responses(const HttpRequest& request, const std::string&);
  Outcome completions(const HttpRequest& request, const std::string&);
  Outcome count_tokens(const HttpRequest& request, const std::string&);
  Outcome response_input_tokens(const HttpRequest& request, const std::string&);
  Outcome apply_template(const HttpRequest& request, const std::string&);
  Outcome converse(Api api, const HttpRequest& request);
  ApiResult<std::unique_ptr<Generation>> start(Api api, const HttpRequest& request);
  ApiResult<std::unique_ptr<Generation>> start_completion(const HttpRequest& request);
  ApiResult<RenderedPrompt> render(const ConvertedRequest& request) const;
  ApiResult<std::vector<int32_t>> encode(const ConvertedRequest& request) const;
  ApiResult<int64_t> input_tokens(Api api, const HttpRequest& request);
  ApiResult<RequestHandle> submit(Request request, const HttpRequest& http);
  std::optional<ApiError> check_model(Api api, const std::string& model) const;
  std::optional<ApiError> check_room() const;
  void log_warnings(const HttpRequest& request, const std::vector<std::string>& warnings) const;

  // utility_routes.cc
  Outcome models(const HttpRequest& request, const std::string&);
  Outcome model(const HttpRequest& request, const std::string& name);
  Outcome tokenize(const HttpRequest& request, const std::string&);
  Outcome detokenize(const HttpRequest& request, const std::string&);
  Outcome get_response(const HttpRequest& request, const std::string& id);
  Outcome cancel_response(const HttpRequest& request, const std::string& id);
  Outcome health(const HttpRequest& request, const std::string&);
  Outcome ready(const HttpRequest& request, const std::string&);
  Outcome version(const HttpRequest& request, const std::string&);
  Outcome metrics_text(const HttpRequest& request, const std::string&);
  Outcome load(const HttpRequest& request, const std::string&);
  Outcome admin_stats(const HttpRequest& request, const std::string&);
  Outcome admin_reset_prefix_cache(const HttpRequest& request, const std::string&);
  Outcome admin_drain(const HttpRequest& request, const std::string&);

  // debug_routes.cc
  Outcome debug_timeline(const HttpRequest& request, const std::string&);
  Outcome debug_experts(const HttpRequest& request, const std::string&);
  void trace_names(const RequestHandle& handle, const HttpRequest& http, const std::string& id, const std::string& model,
                   std::chrono::steady_clock::time_point arrival) const;

  // web_routes.cc
  Outcome web_file(const HttpRequest& request, const std::string&);

  ServerOptions options_;
  const Backend backend_;
  const std::shared_ptr<EventLog> log_;
  const KeyRing keys_;
  const Cors cors_;
  const int64_t created_;
  const std::string fingerprint_;
  Metrics metrics_;
  std::shared_ptr<ResponseStore> responses_;  ///< shared with generations, which may end later
  std::vector<Route> routes_, admin_routes_;
  std::atomic<uint64_t> cache_epoch_{0};  ///< renewed by a reset: nothing that was cached before is found under another
  std::atomic<bool> draining_{false};
  std::function<void()> drain_;
};

/// The reply for an error of one API.
Reply to_reply(Api api, const ApiError& error);

}  // namespace deepinfer::server
