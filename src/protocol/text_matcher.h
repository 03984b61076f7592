#pragma once

// Incremental search for one marker in a stream of bytes (spec/protocol §7.1).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

/// A marker, prepared for matching. Immutable: any number of matchers may use it at once.
class TextPattern {
 public:
  /// All of `text`; a failed start resumes at the longest border (KMP). The span is the text.
  static TextPattern Literal(std::string_view text);
  /// The same with the line feeds directly in front, of which at most `newlines` count.
  static TextPattern AfterNewlines(std::string_view text, size_t newlines = SIZE_MAX);
  /// One byte, and only as the first since the matcher's start.
  static TextPattern First(char byte);

 private:
  friend class TextMatcher;
  enum class Kind : uint8_t { kLiteral, kAfterNewlines, kFirst } kind_ = Kind::kLiteral;
  std::string text_;
  std::vector<uint32_t> border_;  ///< of each prefix
  size_t max_newlines_ = SIZE_MAX;
};

/// The state of the search for one pattern, which outlives it.
class TextMatcher {
 public:
  explicit TextMatcher(const TextPattern& pattern) : pattern_(&pattern) {}

  void reset();
  /// True when the marker is complete with this byte.
  bool push(uint8_t byte);
  /// Bytes at the end of the input that belong to the marker, or may.
  size_t span() const;

 private:
  const TextPattern* pattern_;
  size_t matched_ = 0;
  size_t newlines_ = 0;
  bool started_ = false;
};

}  // namespace deepinfer
