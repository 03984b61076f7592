#pragma once

// What a caller is told when a request fails (spec/protocol §13): an HTTP status and the error object of its API.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "base/status.h"

namespace deepinfer {

/// The request formats.
enum class Api : uint8_t { kChat, kCompletions, kResponses, kMessages };

/// "chat", "completions", "responses", "messages".
std::string_view api_name(Api api);

struct ApiError {
  int status = 400;  ///< of HTTP
  std::string type = "invalid_request_error";
  std::string message = {};               ///< names the field, its value and the limit
  std::optional<std::string> param = {};  ///< path of the field, where one field is at fault
  std::string code = "invalid_request_error";

  /// A fault of the request.
  template <typename... Args>
  static ApiError Invalid(fmt::format_string<Args...> format, Args&&... args) {
    ApiError error;
    error.message = fmt::format(format, std::forward<Args>(args)...);
    return error;
  }
  /// A fault of one field: "path: what".
  template <typename... Args>
  static ApiError Field(std::string_view path, fmt::format_string<Args...> format, Args&&... args) {
    ApiError error;
    error.message = fmt::format("{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
    error.param = std::string(path);
    return error;
  }
  /// A fault of one field, in words of its own that name it.
  template <typename... Args>
  static ApiError About(std::string_view path, fmt::format_string<Args...> format, Args&&... args) {
    ApiError error = Invalid(format, std::forward<Args>(args)...);
    error.param = std::string(path);
    return error;
  }
  /// 401, 404, 405, 413, 429, 500, 503 and others, with the type and code that go with them.
  static ApiError Http(int status, std::string message);
  /// What a Status of the engine means to a caller: 400 for faults of the request, 404, 429 when the queue is full, 503 when it
  /// cannot be served at all, 500 otherwise. `param` is set for fields that only the engine can check, by the message, which
  /// begins with the name.
  static ApiError From(const Status& status);
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> Fail(ApiError error) { return tl::unexpected<ApiError>(std::move(error)); }

/// The body of an error response: {"error":{"message","type","param","code"}}; for Messages with "type":"error" in front.
std::string error_body(Api api, const ApiError& error);

#define DI_API_CONCAT_INNER(a, b) a##b
#define DI_API_CONCAT(a, b) DI_API_CONCAT_INNER(a, b)
#define DI_API_RETURN_IF_ERROR(expression)                                                           \
  do {                                                                                               \
    if (auto di_api_ = (expression); !di_api_) return ::deepinfer::Fail(std::move(di_api_).error()); \
  } while (false)
#define DI_API_ASSIGN(lhs, expression) DI_API_ASSIGN_IMPL(DI_API_CONCAT(di_api_result_, __LINE__), lhs, expression)
#define DI_API_ASSIGN_IMPL(result, lhs, expression)                 \
  auto result = (expression);                                       \
  if (!result) return ::deepinfer::Fail(std::move(result).error()); \
  lhs = *std::move(result)

}  // namespace deepinfer
