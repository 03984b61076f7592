// Routes that a model answers, and those that only count its tokens.

#include <nlohmann/json.hpp>

#include "server/application.h"

namespace deepinfer::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxPrompts = 1024;  ///< of one Completions request
constexpr size_t kIdBytes = 12;

const char* id_prefix(Api api) {
  switch (api) {
    case Api::kChat:
      return "chatcmpl-";
    case Api::kCompletions:
      return "cmpl-";
    case Api::kResponses:
      return "resp_";
    case Api::kMessages:
      return "msg_";
  }
  return "";
}

/// What GET /v1/responses/{id} tells of a response without output.
std::string response_shell(const std::string& id, const std::string& model, int64_t created, const char* status) {
  nlohmann::ordered_json body{{"id", id},         {"object", "response"}, {"created_at", created},         {"model", model},
                              {"status", status}, {"error", nullptr},     {"incomplete_details", nullptr}, {"usage", nullptr}};
  body["output"] = nlohmann::ordered_json::array();
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Cancels what was submitted when a later prompt is refused.
struct Handles {
  std::vector<RequestHandle> list;
  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for (RequestHandle& handle : list) handle.cancel();
  }
  std::vector<RequestHandle> release() { return std::exchange(list, {}); }
};

}  // namespace

Outcome Application::chat(const HttpRequest& request, const std::string&) { return converse(Api::kChat, request); }
Outcome Application::messages(const HttpRequest& request, const std::string&) { return converse(Api::kMessages, request); }
Outcome Application::responses(const HttpRequest& request, const std::string&) { return converse(Api::kResponses, request); }

Outcome Application::converse(Api api, const HttpRequest& request) {
  auto generation = start(api, request);
  if (!generation) return to_reply(api, generation.error());
  return *std::move(generation);
}

Outcome Application::completions(const HttpRequest& request, const std::string&) {
  auto generation = start_completion(request);
  if (!generation) return to_reply(Api::kCompletions, generation.error());
  return *std::move(generation);
}

ApiResult<std::unique_ptr<Generation>> Application::start(Api api, const HttpRequest& http) {
  const auto arrival = Clock::now();
  DI_API_ASSIGN(const ConvertedRequest request, parse_request(api, http.body, backend_.conversion));
  log_warnings(http, request.warnings);
  if (auto error = check_model(api, request.model)) return Fail(*std::move(error));
  if (auto error = check_room()) return Fail(*std::move(error));
  DI_API_ASSIGN(std::vector<int32_t> prompt, encode(request));
  truncate_prompt(request.generation, backend_.policy, prompt);
  DI_API_ASSIGN(Request engine_request, to_engine_request(request, std::move(prompt), backend_.policy));
  engine_request.sampling.bad_words = bad_word_ids(*backend_.tokenizer, request.generation.bad_words);

  const std::string id = id_prefix(api) + random_hex(kIdBytes);
  const int64_t created = unix_seconds();
  auto stream =
      make_response_stream(request, {.id = id, .created = created, .system_fingerprint = fingerprint_}, backend_.tokenizer);
  DI_API_ASSIGN(RequestHandle handle, submit(std::move(engine_request), http));
  trace_names(handle, http, id, request.model, arrival);
  Generation::Setup setup;
  setup.api = api;
  setup.id = id;
  setup.model = request.model;
  setup.streaming = request.stream;
  setup.stream = std::move(stream);
  setup.handles.push_back(handle);
  setup.format_field = structured_output_field(request);
  setup.arrival = arrival;
  setup.metrics = &metrics_;
  setup.trace = backend_.trace.get();
  if (api == Api::kResponses) {
    responses_->begin(id, http.key, response_shell(id, request.model, created, "in_progress"),
                      [handle]() mutable { handle.cancel(); });
    setup.on_end = [store = responses_, id, model = request.model, created](std::string body, bool cancelled) {
      store->finish(id, body.empty() ? response_shell(id, model, created, cancelled ? "cancelled" : "failed") : std::move(body));
    };
  }
  return std::make_unique<Generation>(std::move(setup));
}

ApiResult<std::unique_ptr<Generation>> Application::start_completion(const HttpRequest& http) {
  const auto arrival = Clock::now();
  DI_API_ASSIGN(const CompletionRequest request, parse_completion_request(http.body, backend_.conversion));
  if (auto error = check_model(Api::kCompletions, request.model)) return Fail(*std::move(error));
  if (auto error = check_room()) return Fail(*std::move(error));
  if (request.prompts.size() > kMaxPrompts)
    return Fail(ApiError::Field("prompt", "has {} prompts, at most {} are allowed", request.prompts.size(), kMaxPrompts));
  const std::vector<std::vector<int32_t>> bad_words = bad_word_ids(*backend_.tokenizer, request.generation.bad_words);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Request> requests;
  for (const auto& prompt : request.prompts) {
    DI_API_ASSIGN(std::vector<int32_t> ids, encode_completion_prompt(*backend_.tokenizer, prompt));
    truncate_prompt(request.generation, backend_.policy, ids);
    prompts.push_back(ids);
    DI_API_ASSIGN(Request one, to_engine_request(request, std::move(ids), backend_.policy));
    one.sampling.bad_words = bad_words;
    requests.push_back(std::move(one));
  }
  const std::string id = id_prefix(Api::kCompletions) + random_hex(kIdBytes);
  Generation::Setup setup;
  setup.api = Api::kCompletions;
  setup.id = id;
  setup.model = request.model;
  setup.streaming = request.stream;
  setup.stream = make_completion_stream(request, {.id = id, .created = unix_seconds(), .system_fingerprint = fingerprint_},
                                        backend_.tokenizer, std::move(prompts));
  Handles handles;
  for (Request& one : requests) {
    DI_API_ASSIGN(RequestHandle handle, submit(std::move(one), http));
    trace_names(handle, http, id, request.model, arrival);
    handles.list.push_back(std::move(handle));
  }
  setup.handles = handles.release();
  setup.format_field = request.response_format.field;
  setup.arrival = arrival;
  setup.metrics = &metrics_;
  setup.trace = backend_.trace.get();
  return std::make_unique<Generation>(std::move(setup));
}

ApiResult<RenderedPrompt> Application::render(const ConvertedRequest& request) const {
  RenderedPrompt prompt = render_prompt(request.conversation, backend_.policy.version);
  if (!prompt.images.empty()) return Fail(ApiError::Invalid("images are not accepted by this server"));
  return prompt;
}

ApiResult<std::vector<int32_t>> Application::encode(const ConvertedRequest& request) const {
  DI_API_ASSIGN(const RenderedPrompt prompt, render(request));
  auto ids = encode_prompt(*backend_.tokenizer, prompt.segments);
  if (!ids) return Fail(ApiError::From(ids.error()));
  return *std::move(ids);
}

ApiResult<RequestHandle> Application::submit(Request request, const HttpRequest& http) {
  const int64_t tenant = options_.salt_per_key ? http.key : -1;
  request.cache_salt = keys_.cache_salt(tenant, request.cache_salt, cache_epoch_);
  auto handle = backend_.engine->submit(std::move(request));
  if (handle) return *std::move(handle);
  return Fail(ApiError::From(handle.error()));
}

std::optional<ApiError> Application::check_model(Api api, const std::string& model) const {
  for (const std::string& name : options_.served_model_names) {
    if (name == model) return std::nullopt;
  }
  // Anthropic's tools ask for their own models; the hosted service maps them (spec/protocol, head).
  if (api == Api::kMessages && model.starts_with("claude")) return std::nullopt;
  ApiError error = ApiError::Http(404, fmt::format("model: \"{}\" is not served here; there is \"{}\"", model.substr(0, 200),
                                                   fmt::join(options_.served_model_names, "\", \"")));
  error.param = "model";
  if (api != Api::kMessages) error.code = "model_not_found";
  return error;
}

std::optional<ApiError> Application::check_room() const {
  const int64_t limit = options_.max_concurrent_requests;
  if (limit == 0 || metrics_.generations < limit) return std::nullopt;
  return ApiError::Http(429, fmt::format("{} requests are in progress, the limit is {}", metrics_.generations.load(), limit));
}

void Application::log_warnings(const HttpRequest& request, const std::vector<std::string>& warnings) const {
  for (const std::string& warning : warnings)
    log_->write(EventLog::Level::kWarning, "request warning", {{"id", request.id}, {"warning", warning}});
}

ApiResult<int64_t> Application::input_tokens(Api api, const HttpRequest& http) {
  DI_API_ASSIGN(const ConvertedRequest request, parse_request(api, http.body, backend_.conversion));
  if (auto error = check_model(api, request.model)) return Fail(*std::move(error));
  DI_API_ASSIGN(const std::vector<int32_t> prompt, encode(request));
  return static_cast<int64_t>(prompt.size());
}

Outcome Application::count_tokens(const HttpRequest& request, const std::string&) {
  const auto tokens = input_tokens(Api::kMessages, request);
  if (!tokens) return to_reply(Api::kMessages, tokens.error());
  return Reply::Json(count_tokens_body(*tokens));
}

Outcome Application::response_input_tokens(const HttpRequest& request, const std::string&) {
  const auto tokens = input_tokens(Api::kResponses, request);
  if (!tokens) return to_reply(Api::kResponses, tokens.error());
  return Reply::Json(fmt::format(R"({{"object":"response.input_tokens","input_tokens":{}}})", *tokens));
}

}  // namespace deepinfer::server
