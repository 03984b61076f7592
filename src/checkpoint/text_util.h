#pragma once

#include <string>
#include <string_view>

namespace deepinfer::internal {

/// A hostile name for an error message: one line, printable, at most 160 bytes.
inline std::string printable(std::string_view text) {
  constexpr size_t kLimit = 160;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char ch : text.substr(0, kLimit)) {
    const auto byte = static_cast<unsigned char>(ch);
    if (byte >= 0x20 && byte < 0x7f) {
      out += ch;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  if (text.size() > kLimit) out += "...";
  return out;
}

}  // namespace deepinfer::internal
