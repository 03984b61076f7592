#include "protocol/api_error.h"

#include "protocol/json_input.h"

namespace deepinfer {

std::string_view api_name(Api api) {
  switch (api) {
    case Api::kChat:
      return "chat";
    case Api::kCompletions:
      return "completions";
    case Api::kResponses:
      return "responses";
    case Api::kMessages:
      return "messages";
  }
  return "unknown";
}

ApiError ApiError::Http(int status, std::string message) {
  const auto name = [status]() -> const char* {
    switch (status) {
      case 401:
        return "authentication_error";
      case 403:
        return "permission_error";
      case 404:
        return "not_found_error";
      case 413:
        return "request_too_large";
      case 429:
        return "rate_limit_error";
      case 503:
        return "overloaded_error";
      case 504:
        return "timeout_error";
      default:
        return status >= 500 ? "internal_error" : "invalid_request_error";
    }
  };
  return {.status = status, .type = name(), .message = std::move(message), .param = {}, .code = name()};
}

namespace {

/// What only the engine can check, since it knows the vocabulary.
std::optional<std::string> engine_field(std::string_view message) {
  for (const std::string_view field : {"logit_bias", "stop_token_ids"}) {
    if (message.starts_with(field) && message.substr(field.size()).starts_with(' ')) return std::string(field);
  }
  return std::nullopt;
}

}  // namespace

ApiError ApiError::From(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented: {
      ApiError error = Http(400, status.message());
      error.param = engine_field(error.message);
      return error;
    }
    case StatusCode::kUnavailable:
      return Http(429, status.message());
    case StatusCode::kNotFound:
      return Http(404, status.message());
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kCancelled:
      return Http(503, status.message());
    default:
      return Http(500, status.message());
  }
}

std::string error_body(Api api, const ApiError& error) {
  Json body = Json::object();
  if (api == Api::kMessages) body["type"] = "error";
  body["error"] = Json{{"message", error.message},
                       {"type", error.type},
                       {"param", error.param.has_value() ? Json(*error.param) : Json(nullptr)},
                       {"code", error.code}};
  return wire_json(body);
}

}  // namespace deepinfer
