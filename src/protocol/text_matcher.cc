#include "protocol/text_matcher.h"

#include <algorithm>

namespace deepinfer {

TextPattern TextPattern::Literal(std::string_view text) {
  TextPattern p;
  p.text_ = text;
  p.border_.assign(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    size_t k = p.border_[i - 1];
    while (k > 0 && text[i] != text[k]) k = p.border_[k - 1];
    p.border_[i] = static_cast<uint32_t>(text[i] == text[k] ? k + 1 : k);
  }
  return p;
}

TextPattern TextPattern::AfterNewlines(std::string_view text, size_t newlines) {
  TextPattern p = Literal(text);
  p.kind_ = Kind::kAfterNewlines;
  p.max_newlines_ = newlines;
  return p;
}

TextPattern TextPattern::First(char byte) {
  TextPattern p = Literal(std::string_view(&byte, 1));
  p.kind_ = Kind::kFirst;
  return p;
}

void TextMatcher::reset() {
  matched_ = 0;
  newlines_ = 0;
  started_ = false;
}

bool TextMatcher::push(uint8_t byte) {
  const char c = static_cast<char>(byte);
  const TextPattern& p = *pattern_;
  if (p.kind_ == TextPattern::Kind::kFirst) {
    if (started_) return false;
    started_ = true;
    matched_ = c == p.text_[0] ? 1 : 0;
    return matched_ == 1;
  }
  if (p.kind_ == TextPattern::Kind::kAfterNewlines && matched_ == 0 && c == '\n') {
    newlines_ = std::min(newlines_ + 1, p.max_newlines_);
    return false;
  }
  const size_t before = matched_;
  while (matched_ > 0 && p.text_[matched_] != c) matched_ = p.border_[matched_ - 1];
  if (p.text_[matched_] == c) ++matched_;
  if (matched_ <= before) newlines_ = 0;
  return matched_ == p.text_.size();
}

size_t TextMatcher::span() const { return pattern_->kind_ == TextPattern::Kind::kFirst ? 0 : newlines_ + matched_; }

}  // namespace deepinfer
