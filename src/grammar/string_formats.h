#pragma once

#include <optional>
#include <string_view>

namespace deepinfer::grammar {

/// The pattern (whole text) of a `format` of JSON Schema that is enforced.
std::optional<std::string_view> format_pattern(std::string_view format);
/// A format of JSON Schema that no pattern describes well enough: can't be enforced.
bool is_unsupported_format(std::string_view format);

}  // namespace deepinfer::grammar
