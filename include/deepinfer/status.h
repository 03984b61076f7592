#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace deepinfer {

enum class StatusCode {
  kOk,
  kInvalidArgument,     ///< a request, flag or file content is wrong; retrying does not help
  kNotFound,            ///< a file, tensor or id does not exist
  kOutOfRange,          ///< a value or length is outside a stated limit
  kDataLoss,            ///< a file is truncated or contradicts itself
  kFailedPrecondition,  ///< right call, wrong state
  kResourceExhausted,   ///< memory, pages or a budget ran out
  kUnavailable,         ///< no room for it now (a full queue); the same later may succeed
  kUnimplemented,       ///< valid, but not supported here
  kCancelled,           ///< stopped by the user
  kInternal,            ///< a defect of ours
};

std::string_view status_code_name(StatusCode code);

/// What went wrong, for people: the message names the offending file or field, its value and the limit, in one line.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

#define DI_STATUS_CONSTRUCTOR(NAME)                                                 \
  template <typename... Args>                                                       \
  static Status NAME(fmt::format_string<Args...> format, Args&&... args) {          \
    return {StatusCode::k##NAME, fmt::format(format, std::forward<Args>(args)...)}; \
  }
  DI_STATUS_CONSTRUCTOR(InvalidArgument)
  DI_STATUS_CONSTRUCTOR(NotFound)
  DI_STATUS_CONSTRUCTOR(OutOfRange)
  DI_STATUS_CONSTRUCTOR(DataLoss)
  DI_STATUS_CONSTRUCTOR(FailedPrecondition)
  DI_STATUS_CONSTRUCTOR(ResourceExhausted)
  DI_STATUS_CONSTRUCTOR(Unavailable)
  DI_STATUS_CONSTRUCTOR(Unimplemented)
  DI_STATUS_CONSTRUCTOR(Cancelled)
  DI_STATUS_CONSTRUCTOR(Internal)
#undef DI_STATUS_CONSTRUCTOR

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same status with "context: " in front of the message.
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value or the reason why there is none.
template <typename T>
using Result = tl::expected<T, Status>;

/// Turns a Status into the error side of any Result.
inline tl::unexpected<Status> Err(Status status) { return tl::unexpected<Status>(std::move(status)); }

}  // namespace deepinfer
