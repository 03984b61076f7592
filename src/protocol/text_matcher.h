#pragma once

// Incremental search for one marker in a stream of bytes (spec/protocol §7.1).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

class TextMatcher {
 public:
  /// All of `pattern`; a failed start resumes at the longest border (KMP). The span is the pattern.
  static TextMatcher Literal(std::string_view pattern);
  /// The same with the line feeds directly in front, of which at most `newlines` count.
  static TextMatcher AfterNewlines(std::string_view pattern, size_t newlines = SIZE_MAX);
  /// One byte, and only as the first since reset().
  static TextMatcher First(char byte);

  void reset();
  /// True when the marker is complete with this byte.
  bool push(uint8_t byte);
  /// Bytes at the end of the input that belong to the marker, or may.
  size_t span() const;

 private:
  enum class Kind : uint8_t { kLiteral, kAfterNewlines, kFirst } kind_ = Kind::kLiteral;
  std::string pattern_;
  std::vector<uint32_t> border_;  ///< of each prefix
  size_t matched_ = 0;
  size_t newlines_ = 0;
  size_t max_newlines_ = SIZE_MAX;
  bool started_ = false;
};

}  // namespace deepinfer
