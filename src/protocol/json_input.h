#pragma once

// Hostile JSON: parsing under limits, and access that checks types and ranges and names the place.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/api_error.h"

namespace deepinfer {

/// Objects keep the order of their keys; of duplicate keys the last value stands at the place of the first.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  int64_t max_bytes = int64_t{64} << 20;
  int64_t max_depth = 128;
  int64_t max_values = 1'000'000;
};

/// Strict JSON text: valid UTF-8, no lone surrogates, no trailing bytes, finite numbers. Linear time and memory in its length.
ApiResult<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

/// "a number", "a string", "null", ...
std::string_view json_type(const Json& value);
/// A value for an error message: short, one line.
std::string json_excerpt(const Json& value);

/// An object of a request and where it stands. Absent and null are the same: no value. The value must outlive this.
class ObjectInput {
 public:
  /// `value` must be an object; an error names `path` ("the request" if empty).
  static ApiResult<ObjectInput> Of(const Json& value, std::string path);

  const std::string& path() const { return path_; }
  /// "path.key", or "key" at the top.
  std::string at(std::string_view key) const;
  /// Null if absent or null.
  const Json* find(std::string_view key) const;

  ApiResult<std::optional<std::string>> string(std::string_view key) const;
  ApiResult<std::string> required_string(std::string_view key) const;
  ApiResult<std::optional<bool>> boolean(std::string_view key) const;
  /// A whole number in [low, high].
  ApiResult<std::optional<int64_t>> integer(std::string_view key, int64_t low, int64_t high) const;
  /// A number; the caller checks its range.
  ApiResult<std::optional<double>> number(std::string_view key) const;
  /// A number in [low, high].
  ApiResult<std::optional<double>> number(std::string_view key, double low, double high) const;
  /// An array of at most `limit` elements.
  ApiResult<const Json*> array(std::string_view key, int64_t limit) const;
  ApiResult<std::optional<ObjectInput>> object(std::string_view key) const;

 private:
  ObjectInput(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}
  const Json* value_;
  std::string path_;
};

/// The error for a value of the wrong type.
ApiError wrong_type(std::string_view path, std::string_view expected, const Json& got);

/// JSON inside prompts (§4.5): ", " and ": ", non-ASCII as it is, numbers in shortest form.
std::string prompt_json(const Json& value);
void append_prompt_json(const Json& value, std::string& out);
/// `text` as the inside of a JSON string: quote, backslash and control characters escaped.
void append_json_escaped(std::string_view text, std::string& out);
/// One line of compact JSON for the wire; invalid UTF-8 becomes U+FFFD.
std::string wire_json(const Json& value);

}  // namespace deepinfer
