#include "protocol/custom_tool_input.h"

#include <array>
#include <cstdint>
#include <optional>

#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

constexpr std::array<std::string_view, 4> kPrefix = {"{", "\"input\"", ":", "\""};

std::optional<uint32_t> hex4(std::string_view digits) {
  uint32_t value = 0;
  for (const char c : digits) {
    const uint32_t digit = c >= '0' && c <= '9'   ? static_cast<uint32_t>(c - '0')
                           : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                           : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                                  : 16;
    if (digit == 16) return std::nullopt;
    value = value << 4 | digit;
  }
  return value;
}

}  // namespace

std::string CustomToolInput::push(std::string_view fragment) {
  std::string out;
  for (const char c : fragment) {
    switch (state_) {
      case State::kPrefix:
        prefix(c, out);
        break;
      case State::kValue:
        value(c, out);
        break;
      case State::kDone:
        break;
      case State::kVerbatim:
        out += c;
        break;
    }
  }
  return out;
}

std::string CustomToolInput::finish() {
  std::string out = state_ == State::kPrefix ? std::move(seen_) : std::move(held_);
  seen_.clear();
  held_.clear();
  state_ = State::kDone;
  return out;
}

void CustomToolInput::prefix(char c, std::string& out) {
  seen_ += c;
  if (token_byte_ == 0 && (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f')) return;
  if (c != kPrefix[token_][token_byte_]) {
    state_ = State::kVerbatim;
    out += seen_;
    seen_.clear();
    return;
  }
  if (++token_byte_ < kPrefix[token_].size()) return;
  token_byte_ = 0;
  if (++token_ == kPrefix.size()) {
    state_ = State::kValue;
    seen_.clear();
  }
}

void CustomToolInput::value(char c, std::string& out) {
  if (held_.empty()) {
    if (c == '"') {
      state_ = State::kDone;
    } else if (c == '\\') {
      held_ += c;
    } else {
      out += c;
    }
    return;
  }
  // A high surrogate waits for "\u" and four digits; anything else leaves it as it was written.
  if (held_.size() == 6 && c != '\\') {
    out += held_;
    held_.clear();
    value(c, out);
    return;
  }
  held_ += c;
  escape(out);
}

void CustomToolInput::escape(std::string& out) {
  const auto raw = [&] {
    out += held_;
    held_.clear();
  };
  if (held_.size() == 2) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (held_[1] == 'u') return;
    const size_t at = kNames.find(held_[1]);
    if (at == std::string_view::npos) return raw();
    out += kValues[at];
    held_.clear();
    return;
  }
  if (held_.size() == 6) {
    const std::optional<uint32_t> unit = hex4(std::string_view(held_).substr(2));
    if (!unit.has_value() || (*unit >= 0xDC00 && *unit < 0xE000)) return raw();
    if (*unit >= 0xD800 && *unit < 0xDC00) return;
    utf8_append(*unit, out);
    held_.clear();
    return;
  }
  if (held_.size() < 6) return;
  // "\uD8xx" and then "\" and more.
  if (held_.size() == 8 && held_[7] != 'u') {
    const std::string second = held_.substr(6);
    held_.resize(6);
    raw();
    held_ = second;
    escape(out);
    return;
  }
  if (held_.size() < 12) return;
  const std::optional<uint32_t> high = hex4(std::string_view(held_).substr(2, 4));
  const std::optional<uint32_t> low = hex4(std::string_view(held_).substr(8, 4));
  if (high.has_value() && low.has_value() && *low >= 0xDC00 && *low < 0xE000) {
    utf8_append(0x10000 + ((*high - 0xD800) << 10) + (*low - 0xDC00), out);
    held_.clear();
    return;
  }
  const std::string second = held_.substr(6);
  held_.resize(6);
  raw();
  held_ = second;
  escape(out);
}

}  // namespace deepinfer
