#include "base/json_line.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <iterator>

#include "base/build_info.h"

namespace deepinfer {
namespace {

/// Length of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none (overlong forms, surrogates and values
/// above U+10FFFF are not well-formed).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto in = [&](size_t i, uint8_t low, uint8_t high) { return byte(i) >= low && byte(i) <= high; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return in(1, 0x80, 0xbf) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const uint8_t low = lead == 0xe0 ? 0xa0 : 0x80;
    const uint8_t high = lead == 0xed ? 0x9f : 0xbf;
    return in(1, low, high) && in(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const uint8_t low = lead == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xf4 ? 0x8f : 0xbf;
    return in(1, low, high) && in(2, 0x80, 0xbf) && in(3, 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

/// Shortest text that reads back as the same double; null where JSON has no number.
std::string json_number(double x) { return std::isfinite(x) ? fmt::format("{}", x) : "null"; }

}  // namespace

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
  return out;
}

std::string bench_line(std::string_view name, double value, std::string_view unit, std::optional<double> ceiling,
                       const BenchConditions& conditions) {
  const bool has_fraction = ceiling.has_value() && *ceiling > 0.0;
  std::string out = fmt::format(R"({{"name":{},"value":{},"unit":{},"ceiling":{},"fraction":{},"conditions":{{)",
                                json_quote(name), json_number(value), json_quote(unit), ceiling ? json_number(*ceiling) : "null",
                                has_fraction ? json_number(value / *ceiling) : "null");
  const char* separator = "";
  for (const auto& [key, text] : conditions) {
    fmt::format_to(std::back_inserter(out), "{}{}:{}", separator, json_quote(key), json_quote(text));
    separator = ",";
  }
  fmt::format_to(std::back_inserter(out), R"(}},"commit":{}}})", json_quote(build_commit()));
  return out;
}

void print_bench_line(std::FILE* out, std::string_view name, double value, std::string_view unit, std::optional<double> ceiling,
                      const BenchConditions& conditions) {
  const std::string line = bench_line(name, value, unit, ceiling, conditions) + "\n";
  std::fwrite(line.data(), 1, line.size(), out);
  std::fflush(out);
}

}  // namespace deepinfer
