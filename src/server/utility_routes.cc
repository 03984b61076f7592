// Routes about the model, the tokenizer and the server itself.

#include <ctime>

#include "base/build_info.h"
#include "protocol/json_input.h"
#include "server/application.h"

namespace deepinfer::server {
namespace {

constexpr int64_t kMaxTokenIds = 10'000'000;

std::string iso_time(int64_t seconds) {
  const auto t = static_cast<std::time_t>(seconds);
  std::tm utc{};
  ::gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

/// Percent-encoded as in paths: client libraries escape the '/' of a model's name.
std::string unescaped(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Json openai_model(const std::string& name, const std::string& root, int64_t created, int64_t max_model_len) {
  return Json{{"id", name},
              {"object", "model"},
              {"created", created},
              {"owned_by", "deepinfer"},
              {"root", root},
              {"parent", nullptr},
              {"max_model_len", max_model_len}};
}

Json anthropic_model(const std::string& name, int64_t created) {
  return Json{{"type", "model"}, {"id", name}, {"display_name", name}, {"created_at", iso_time(created)}};
}

bool asks_anthropic(const HttpRequest& request) { return !request.header("anthropic-version").empty(); }

/// The body as an object.
ApiResult<Json> parse_object(const std::string& body, const ConversionOptions& options) {
  DI_API_ASSIGN(Json value, parse_json(body, {.max_bytes = options.max_body_bytes,
                                              .max_depth = options.max_depth,
                                              .max_values = std::max(options.max_values, kMaxTokenIds)}));
  if (!value.is_object()) return Fail(ApiError::Invalid("the request must be an object"));
  return value;
}

/// A chat request that may leave its model out.
ApiResult<ConvertedRequest> parse_conversation(Json body, const std::string& model, const ConversionOptions& options) {
  if (!body.contains("model") || body["model"].is_null()) body["model"] = model;
  return parse_chat_request(wire_json(body), options);
}

}  // namespace

Outcome Application::models(const HttpRequest& request, const std::string&) {
  Json data = Json::array();
  const auto& names = options_.served_model_names;
  const bool anthropic = asks_anthropic(request);
  for (const std::string& name : names)
    data.push_back(anthropic ? anthropic_model(name, created_)
                             : openai_model(name, names.front(), created_, backend_.policy.max_model_len));
  if (anthropic) {
    return Reply::Json(
        wire_json(Json{{"data", data}, {"has_more", false}, {"first_id", names.front()}, {"last_id", names.back()}}));
  }
  return Reply::Json(wire_json(Json{{"object", "list"}, {"data", data}}));
}

Outcome Application::model(const HttpRequest& request, const std::string& name) {
  const std::string plain = unescaped(name);
  const Api api = asks_anthropic(request) ? Api::kMessages : Api::kChat;
  for (const std::string& served : options_.served_model_names) {
    if (served != plain) continue;
    if (api == Api::kMessages) return Reply::Json(wire_json(anthropic_model(served, created_)));
    return Reply::Json(wire_json(openai_model(served, model_name(), created_, backend_.policy.max_model_len)));
  }
  return to_reply(api, *check_model(api == Api::kMessages ? Api::kCompletions : api, plain));
}

Outcome Application::tokenize(const HttpRequest& request, const std::string&) {
  const auto run = [&]() -> ApiResult<std::string> {
    DI_API_ASSIGN(const Json body, parse_object(request.body, backend_.conversion));
    DI_API_ASSIGN(const ObjectInput input, ObjectInput::Of(body, ""));
    std::vector<int32_t> ids;
    if (body.contains("messages")) {
      DI_API_ASSIGN(const ConvertedRequest chat, parse_conversation(body, model_name(), backend_.conversion));
      DI_API_ASSIGN(ids, encode(chat));
    } else {
      DI_API_ASSIGN(const std::string prompt, input.required_string("prompt"));
      DI_API_ASSIGN(const std::optional<bool> special, input.boolean("add_special_tokens"));
      if (special.value_or(true)) {
        DI_API_ASSIGN(ids, encode_completion_prompt(*backend_.tokenizer, prompt));
      } else {
        ids = backend_.tokenizer->encode(prompt);
      }
    }
    DI_API_ASSIGN(const std::optional<bool> strings, input.boolean("return_token_strs"));
    Json reply{{"count", ids.size()}, {"max_model_len", backend_.policy.max_model_len}, {"tokens", ids}, {"token_strs", nullptr}};
    if (strings.value_or(false)) {
      Json list = Json::array();
      for (const int32_t id : ids) list.push_back(backend_.tokenizer->token_string(id));
      reply["token_strs"] = std::move(list);
    }
    return wire_json(reply);
  };
  auto body = run();
  if (!body) return to_reply(Api::kChat, body.error());
  return Reply::Json(*std::move(body));
}

Outcome Application::detokenize(const HttpRequest& request, const std::string&) {
  const auto run = [&]() -> ApiResult<std::string> {
    DI_API_ASSIGN(const Json body, parse_object(request.body, backend_.conversion));
    DI_API_ASSIGN(const ObjectInput input, ObjectInput::Of(body, ""));
    DI_API_ASSIGN(const Json* const tokens, input.array("tokens", kMaxTokenIds));
    if (tokens == nullptr) return Fail(ApiError::Field("tokens", "missing"));
    std::vector<int32_t> ids;
    const int32_t vocabulary = backend_.tokenizer->vocab_size();
    for (size_t i = 0; i < tokens->size(); ++i) {
      const Json& id = (*tokens)[i];
      const bool valid = id.is_number_integer() && (!id.is_number_unsigned() || id.get<uint64_t>() < INT32_MAX);
      if (!valid || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocabulary)
        return Fail(
            ApiError::Field(fmt::format("tokens[{}]", i), "is {}, must be from 0 to {}", json_excerpt(id), vocabulary - 1));
      ids.push_back(id.get<int32_t>());
    }
    return wire_json(Json{{"prompt", backend_.tokenizer->decode(ids)}});
  };
  auto body = run();
  if (!body) return to_reply(Api::kChat, body.error());
  return Reply::Json(*std::move(body));
}

Outcome Application::apply_template(const HttpRequest& request, const std::string&) {
  const auto run = [&]() -> ApiResult<std::string> {
    DI_API_ASSIGN(Json body, parse_object(request.body, backend_.conversion));
    DI_API_ASSIGN(const ConvertedRequest chat, parse_conversation(std::move(body), model_name(), backend_.conversion));
    DI_API_ASSIGN(const RenderedPrompt prompt, render(chat));
    return wire_json(Json{{"prompt", prompt_text(prompt.segments)}});
  };
  auto body = run();
  if (!body) return to_reply(Api::kChat, body.error());
  return Reply::Json(*std::move(body));
}

Outcome Application::get_response(const HttpRequest& request, const std::string& id) {
  auto body = responses_->get(id, request.key);
  if (body.has_value()) return Reply::Json(*std::move(body));
  return to_reply(Api::kResponses, ApiError::Http(404, fmt::format("there is no response {}", id)));
}

Outcome Application::cancel_response(const HttpRequest& request, const std::string& id) {
  if (responses_->cancel(id, request.key) == ResponseStore::Cancel::kUnknown)
    return to_reply(Api::kResponses, ApiError::Http(404, fmt::format("there is no response {}", id)));
  // What was still running says so as soon as its step is over; its caller gets the error.
  Json body = Json::parse(responses_->get(id, request.key).value_or("{}"), nullptr, /*allow_exceptions=*/false);
  if (body.is_object() && body.value("status", "") == "in_progress") body["status"] = "cancelled";
  return Reply::Json(wire_json(body));
}

Outcome Application::health(const HttpRequest&, const std::string&) { return Reply::Text(""); }

Outcome Application::ready(const HttpRequest&, const std::string&) {
  Reply reply = Reply::Text(draining_ ? "draining\n" : "ready\n");
  if (draining_) reply.status = 503;
  return reply;
}

Outcome Application::version(const HttpRequest&, const std::string&) {
  return Reply::Json(wire_json(Json{{"version", build_version()}, {"commit", build_commit()}}));
}

Outcome Application::metrics_text(const HttpRequest& request, const std::string&) {
  // Other parameters are left alone: scrapers have their own.
  bool colons = true;
  for (const auto& [name, value] : query_parameters(request.target).value_or(QueryParameters{})) {
    if (name != "names") continue;
    if (value != "vllm" && value != "underscore") {
      return to_reply(Api::kChat, ApiError::Field("names", "is \"{}\", must be \"vllm\" or \"underscore\"",
                                                  std::string_view(value).substr(0, 100)));
    }
    colons = value == "vllm";
  }
  TelemetryCounts telemetry;
  if (backend_.trace != nullptr) {
    telemetry.spans = backend_.trace->recorded();
    telemetry.dropped_spans = backend_.trace->dropped();
  }
  if (backend_.otlp != nullptr) {
    telemetry.exported_spans = backend_.otlp->exported();
    telemetry.dropped_exports = backend_.otlp->dropped();
    telemetry.failed_exports = backend_.otlp->failures();
  }
  std::string text = metrics_.render(backend_.engine->stats(), backend_.engine->expert_counts(),
                                     backend_.engine->revisit_intervals(), telemetry, model_name());
  Reply reply = Reply::Text(colons ? std::move(text) : without_colons(text));
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return reply;
}

Outcome Application::load(const HttpRequest&, const std::string&) {
  return Reply::Json(fmt::format(R"({{"server_load":{}}})", metrics_.generations.load()));
}

Outcome Application::admin_stats(const HttpRequest&, const std::string&) {
  const EngineStats s = backend_.engine->stats();
  return Reply::Json(wire_json(Json{{"running", s.running},
                                    {"waiting", s.waiting},
                                    {"submitted", s.submitted},
                                    {"refused", s.refused},
                                    {"steps", s.steps},
                                    {"pages_total", s.pages_total},
                                    {"pages_free", s.pages_free},
                                    {"pages_cached", s.pages_cached},
                                    {"connections", metrics_.connections.load()},
                                    {"generations", metrics_.generations.load()},
                                    {"draining", draining_.load()}}));
}

Outcome Application::admin_reset_prefix_cache(const HttpRequest&, const std::string&) {
  // The pages that running requests hold come into the cache later, and those in stores stay, under the old salts: no request
  // finds them there.
  cache_epoch_ = random_epoch();
  backend_.engine->reset_prefix_cache();
  return Reply::Json(R"({"reset":true})");
}

Outcome Application::admin_drain(const HttpRequest&, const std::string&) {
  if (drain_) drain_();
  return Reply::Json(R"({"draining":true})");
}

}  // namespace deepinfer::server
