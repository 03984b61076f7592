#pragma once

// Status and Result are part of the public API; the macros that make them short to use are not.

#include "deepinfer/status.h"

namespace deepinfer {

namespace internal {
/// Converts to Status as well as to any Result, so that one macro serves functions of both kinds.
struct ErrorReturn {
  Status status;
  operator Status() && { return std::move(status); }  // NOLINT(google-explicit-constructor)
  template <typename T>
  operator Result<T>() && {  // NOLINT(google-explicit-constructor)
    return Err(std::move(status));
  }
};
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& reason);
}  // namespace internal

#define DI_RETURN_IF_ERROR(expression)                                                      \
  do {                                                                                      \
    ::deepinfer::Status di_status_ = (expression);                                          \
    if (!di_status_.ok()) return ::deepinfer::internal::ErrorReturn{std::move(di_status_)}; \
  } while (false)

#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)
#define DI_ASSIGN_OR_RETURN(lhs, expression) DI_ASSIGN_OR_RETURN_IMPL(DI_CONCAT(di_result_, __LINE__), lhs, expression)
#define DI_ASSIGN_OR_RETURN_IMPL(result, lhs, expression)                            \
  auto result = (expression);                                                        \
  if (!result) return ::deepinfer::internal::ErrorReturn{std::move(result).error()}; \
  lhs = *std::move(result)

/// For invariants that no request, file or peer can break. Prints the reason and aborts.
#define DI_CHECK(condition, ...)                                                                                     \
  do {                                                                                                               \
    if (!(condition)) ::deepinfer::internal::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace deepinfer
