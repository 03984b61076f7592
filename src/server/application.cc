#include "server/application.h"

#include "base/build_info.h"

namespace deepinfer::server {
namespace {

std::optional<std::string> match_pattern(std::string_view pattern, std::string_view path) {
  const size_t open = pattern.find("{id}");
  if (open == std::string_view::npos) return pattern == path ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, open);
  const std::string_view after = pattern.substr(open + 4);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after)) return std::nullopt;
  const std::string_view id = path.substr(before.size(), path.size() - before.size() - after.size());
  if (id.find('/') != std::string_view::npos || id.size() > 256) return std::nullopt;
  return std::string(id);
}

bool is_json_type(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  // Clients in shells often give none; what a form of a foreign page can send is refused.
  return type.empty() || equal_ignoring_case(type, "application/json") ||
         (type.size() > 5 && equal_ignoring_case(type.substr(type.size() - 5), "+json"));
}

ServerOptions with_name(ServerOptions options, const Engine& engine) {
  if (options.served_model_names.empty()) options.served_model_names.push_back(engine.model().name);
  return options;
}

}  // namespace

Reply to_reply(Api api, const ApiError& error) {
  Reply reply = Reply::Json(error_body(api, error));
  reply.status = error.status;
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

Application::Application(ServerOptions options, Backend backend, std::shared_ptr<EventLog> log)
    : options_(with_name(std::move(options), *backend.engine)),
      backend_(std::move(backend)),
      log_(std::move(log)),
      keys_(options_.api_keys),
      cors_(options_.allowed_origins),
      created_(unix_seconds()),
      fingerprint_(fmt::format("deepinfer-{}", build_commit())),
      responses_(std::make_shared<ResponseStore>(options_.response_store_entries, options_.response_store_bytes)) {
  constexpr bool kGenerates = true;
  constexpr bool kOpen = true;
  for (const char* prefix : {"/v1", ""})  // the hosted service answers without /v1, too
    add(routes_, "POST", fmt::format("{}/chat/completions", prefix), &Application::chat, Api::kChat, kGenerates);
  add(routes_, "POST", "/v1/completions", &Application::completions, Api::kCompletions, kGenerates);
  add(routes_, "POST", "/v1/responses", &Application::responses, Api::kResponses, kGenerates);
  add(routes_, "POST", "/v1/responses/input_tokens", &Application::response_input_tokens, Api::kResponses);
  add(routes_, "GET", "/v1/responses/{id}", &Application::get_response, Api::kResponses);
  add(routes_, "POST", "/v1/responses/{id}/cancel", &Application::cancel_response, Api::kResponses);
  add(routes_, "POST", "/v1/messages", &Application::messages, Api::kMessages, kGenerates);
  add(routes_, "POST", "/v1/messages/count_tokens", &Application::count_tokens, Api::kMessages);
  add(routes_, "GET", "/v1/models", &Application::models);
  add(routes_, "GET", "/v1/models/{id}", &Application::model);
  add(routes_, "POST", "/tokenize", &Application::tokenize);
  add(routes_, "POST", "/detokenize", &Application::detokenize);
  add(routes_, "POST", "/apply-template", &Application::apply_template);
  add(routes_, "GET", "/health", &Application::health, Api::kChat, false, kOpen);
  add(routes_, "GET", "/ready", &Application::ready, Api::kChat, false, kOpen);
  add(routes_, "GET", "/version", &Application::version);
  add(routes_, "GET", "/metrics", &Application::metrics_text);
  add(routes_, "GET", "/load", &Application::load);
  if (options_.dashboard) {
    for (const char* path : {"/", "/assets/{id}"}) add(routes_, "GET", path, &Application::web_file, Api::kChat, false, kOpen);
  }

  add(admin_routes_, "GET", "/health", &Application::health, Api::kChat, false, kOpen);
  add(admin_routes_, "GET", "/metrics", &Application::metrics_text);
  add(admin_routes_, "GET", "/stats", &Application::admin_stats);
  add(admin_routes_, "POST", "/reset_prefix_cache", &Application::admin_reset_prefix_cache);
  add(admin_routes_, "POST", "/drain", &Application::admin_drain);

  std::vector<std::vector<Route>*> debug = {&admin_routes_};
  if (options_.public_debug()) debug.push_back(&routes_);
  for (std::vector<Route>* routes : debug) {
    add(*routes, "GET", "/debug/timeline", &Application::debug_timeline);
    add(*routes, "GET", "/debug/experts", &Application::debug_experts);
  }
}

void Application::add(std::vector<Route>& routes, const char* method, std::string pattern, Handler handler, Api api,
                      bool generates, bool open) {
  routes.push_back({method, std::move(pattern), api, open, generates,
                    [this, handler](const HttpRequest& request, const std::string& parameter) {
                      return (this->*handler)(request, parameter);
                    }});
}

std::optional<Reply> Application::refuse_early(Listener listener, HttpRequest& request, Match& match) const {
  std::string allowed;
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Route& route : routes(listener)) {
    const auto parameter = match_pattern(route.pattern, request.path);
    if (!parameter.has_value()) continue;
    if (route.method == method) {
      // A fixed path stands before a pattern that it fits, too.
      if (match.route == nullptr || match.route->pattern.find('{') != std::string::npos) match = {&route, *parameter};
    } else {
      allowed += (allowed.empty() ? "" : ", ") + route.method;
    }
  }
  if (Cors::is_preflight(request) && !options_.allowed_origins.empty()) return cors_.preflight(request);
  const auto error = [&](int status, std::string message) {
    return error_reply(match, request.path, ApiError::Http(status, std::move(message)));
  };
  if (match.route == nullptr || !match.route->open) {
    const auto key = keys_.find(request);
    if (!key.has_value()) return error(401, "no valid API key: send Authorization: Bearer KEY, or x-api-key: KEY");
    request.key = *key;
  }
  if (match.route == nullptr) {
    if (allowed.empty()) return error(404, fmt::format("there is nothing at {}", request.path));
    Reply reply = error(405, fmt::format("{} takes {}", request.path, allowed));
    reply.headers.emplace_back("Allow", allowed);
    return reply;
  }
  if (match.route->method == "POST" && !is_json_type(request.header("content-type")))
    return error(415, fmt::format("Content-Type is {}, must be application/json", request.header("content-type")));
  if (const std::string_view coding = request.header("content-encoding");
      !coding.empty() && !equal_ignoring_case(coding, "identity"))
    return error(415, fmt::format("Content-Encoding is {}, must be identity", coding));
  if (match.route->generates && draining_) return error(503, "the server is shutting down");
  return std::nullopt;
}

Outcome Application::handle(const HttpRequest& request, const Match& match) {
  try {
    return match.route->handler(request, match.parameter);
  } catch (const std::exception& failure) {
    // Nothing throws by design; memory may run out.
    log_->write(EventLog::Level::kError, "handler failed", {{"id", request.id}, {"error", failure.what()}});
    return error_reply(match, request.path, ApiError::Http(500, "the server could not handle this request"));
  }
}

Reply Application::error_reply(const Match& match, std::string_view path, const ApiError& error) const {
  const Api unmatched = path.starts_with("/v1/messages") ? Api::kMessages : Api::kChat;
  return to_reply(match.route != nullptr ? match.route->api : unmatched, error);
}

void Application::decorate(const HttpRequest& request, const Match& match, std::vector<Header>& headers) const {
  headers.emplace_back("x-request-id", request.id);
  // The name that Anthropic's clients read.
  if (match.route != nullptr && match.route->api == Api::kMessages) headers.emplace_back("request-id", request.id);
  cors_.add_to(request, headers);
}

void Application::record(const HttpRequest& request, const Match& match, int status, int64_t bytes, double seconds,
                         const GenerationSummary* summary, std::string_view note) {
  const std::string route = match.route != nullptr ? match.route->pattern : "other";
  metrics_.count_request(route, status);
  metrics_.bytes_sent += bytes;
  // Probes, scrapers and dashboards come every few seconds.
  const bool quiet = match.route != nullptr && match.route->method == "GET" && status < 400;
  // What is refused for now, as the server is full or shuts down, is no fault of it.
  const auto level = status == 503   ? EventLog::Level::kWarning
                     : status >= 500 ? EventLog::Level::kError
                     : quiet         ? EventLog::Level::kDebug
                                     : EventLog::Level::kInfo;
  if (!log_->enabled(level)) return;
  std::vector<EventLog::Field> fields = {{"id", request.id},  {"remote", request.remote}, {"method", request.method},
                                         {"route", route},    {"status", status},         {"bytes", bytes},
                                         {"seconds", seconds}};
  if (request.key >= 0) fields.emplace_back("key", request.key);
  if (summary != nullptr) {
    fields.emplace_back("model", summary->model);
    fields.emplace_back("prompt_tokens", summary->prompt_tokens);
    fields.emplace_back("cached_tokens", summary->cached_tokens);
    fields.emplace_back("completion_tokens", summary->completion_tokens);
    fields.emplace_back("finish", summary->finish);
  }
  if (summary != nullptr && summary->foreign_markers > 0) fields.emplace_back("foreign_markers", summary->foreign_markers);
  if (!note.empty()) fields.emplace_back("note", note);
  log_->write(level, "request", fields);
}

}  // namespace deepinfer::server
