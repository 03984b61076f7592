#include "protocol/text_matcher.h"

#include <algorithm>

namespace deepinfer {

TextMatcher TextMatcher::Literal(std::string_view pattern) {
  TextMatcher m;
  m.pattern_ = pattern;
  m.border_.assign(pattern.size(), 0);
  for (size_t i = 1; i < pattern.size(); ++i) {
    size_t k = m.border_[i - 1];
    while (k > 0 && pattern[i] != pattern[k]) k = m.border_[k - 1];
    m.border_[i] = static_cast<uint32_t>(pattern[i] == pattern[k] ? k + 1 : k);
  }
  return m;
}

TextMatcher TextMatcher::AfterNewlines(std::string_view pattern, size_t newlines) {
  TextMatcher m = Literal(pattern);
  m.kind_ = Kind::kAfterNewlines;
  m.max_newlines_ = newlines;
  return m;
}

TextMatcher TextMatcher::First(char byte) {
  TextMatcher m = Literal(std::string_view(&byte, 1));
  m.kind_ = Kind::kFirst;
  return m;
}

void TextMatcher::reset() {
  matched_ = 0;
  newlines_ = 0;
  started_ = false;
}

bool TextMatcher::push(uint8_t byte) {
  const char c = static_cast<char>(byte);
  if (kind_ == Kind::kFirst) {
    if (started_) return false;
    started_ = true;
    matched_ = c == pattern_[0] ? 1 : 0;
    return matched_ == 1;
  }
  if (kind_ == Kind::kAfterNewlines && matched_ == 0 && c == '\n') {
    newlines_ = std::min(newlines_ + 1, max_newlines_);
    return false;
  }
  const size_t before = matched_;
  while (matched_ > 0 && pattern_[matched_] != c) matched_ = border_[matched_ - 1];
  if (pattern_[matched_] == c) ++matched_;
  if (matched_ <= before) newlines_ = 0;
  return matched_ == pattern_.size();
}

size_t TextMatcher::span() const { return kind_ == Kind::kFirst ? 0 : newlines_ + matched_; }

}  // namespace deepinfer
