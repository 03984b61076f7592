#include "tokenizer/utf8.h"

#include <cstring>

namespace deepinfer {

Utf8Step utf8_step(const uint8_t* p, size_t n) {
  const uint8_t first = p[0];
  if (first < 0x80) return {Utf8Kind::kValid, 1, first};
  if (first < 0xC2 || first > 0xF4) return {Utf8Kind::kInvalid, 1, 0};
  const uint8_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte alone decides about overlong forms, surrogates and values above U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  uint32_t code_point = first & (0x7Fu >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (i >= n) return {Utf8Kind::kIncomplete, i, 0};
    if (p[i] < low || p[i] > high) return {Utf8Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (p[i] & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kValid, length, code_point};
}

size_t utf8_valid_prefix(std::string_view bytes) {
  const auto* p = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t n = bytes.size();
  size_t i = 0;
  while (i < n) {
    if (i + 8 <= n) {
      uint64_t word;
      std::memcpy(&word, p + i, 8);
      if ((word & 0x8080808080808080u) == 0) {
        i += 8;
        continue;
      }
    }
    const Utf8Step step = utf8_step(p + i, n - i);
    if (step.kind != Utf8Kind::kValid) return i;
    i += step.length;
  }
  return n;
}

size_t utf8_append_lossy(std::string_view bytes, bool last, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t valid = utf8_valid_prefix(bytes.substr(at));
    out.append(bytes.substr(at, valid));
    at += valid;
    if (at == bytes.size()) break;
    const Utf8Step step = utf8_step(reinterpret_cast<const uint8_t*>(bytes.data()) + at, bytes.size() - at);
    if (step.kind == Utf8Kind::kIncomplete && !last) break;
    out.append(kReplacementCharacter);
    at += step.length;
  }
  return at;
}

void utf8_append(uint32_t code_point, std::string& out) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace deepinfer
