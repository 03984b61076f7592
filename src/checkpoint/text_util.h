#pragma once

#include <string>
#include <string_view>

namespace deepinfer::internal {

/// Hostile text for an error message: one line, printable ASCII, at most `limit` bytes of it.
inline std::string printable(std::string_view text, size_t limit = 160) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char ch : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(ch);
    if (byte >= 0x20 && byte < 0x7f) {
      out += ch;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

/// A path, which may be long.
inline std::string printable_path(std::string_view path) { return printable(path, 4096); }

}  // namespace deepinfer::internal
