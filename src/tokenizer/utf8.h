#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

enum class Utf8Kind : uint8_t {
  kValid,       ///< a whole character
  kInvalid,     ///< a maximal ill-formed subpart: one U+FFFD stands for it
  kIncomplete,  ///< the bytes end inside a character that is well-formed so far
};

struct Utf8Step {
  Utf8Kind kind;
  uint8_t length;
  uint32_t code_point;  ///< of a valid character
};

/// The character (or broken piece of one) at the start of `p`, `n` > 0 bytes. Broken pieces are the maximal subparts of the
/// Unicode standard (section 3.9), as in Rust's String::from_utf8_lossy and Python's errors="replace".
Utf8Step utf8_step(const uint8_t* p, size_t n);

/// Length of the longest prefix that is valid UTF-8.
size_t utf8_valid_prefix(std::string_view bytes);

/// Appends `bytes` with every broken piece replaced by U+FFFD. With `last` false an unfinished character at the end is left
/// alone. Returns how many bytes were consumed.
size_t utf8_append_lossy(std::string_view bytes, bool last, std::string& out);

void utf8_append(uint32_t code_point, std::string& out);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Code point at `p` in text known to be valid; `length` receives its number of bytes.
inline uint32_t utf8_decode_valid(const uint8_t* p, uint32_t& length) {
  const uint32_t b = p[0];
  if (b < 0x80) {
    length = 1;
    return b;
  }
  if (b < 0xE0) {
    length = 2;
    return (b & 0x1F) << 6 | (p[1] & 0x3Fu);
  }
  if (b < 0xF0) {
    length = 3;
    return (b & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
  }
  length = 4;
  return (b & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

}  // namespace deepinfer
