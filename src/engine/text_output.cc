#include "engine/text_output.h"

#include <algorithm>

namespace deepinfer {

TextOutput::TextOutput(std::shared_ptr<const Tokenizer> tokenizer, Options options) : options_(std::move(options)) {
  if (tokenizer != nullptr) detokenizer_.emplace(std::move(tokenizer), options_.skip_special);
  for (const std::string& s : options_.stop) longest_ = std::max(longest_, s.size());
}

bool TextOutput::push(int32_t token, std::string& text) {
  if (!detokenizer_.has_value() || found_.has_value()) return false;
  if (longest_ == 0) {
    text += detokenizer_->push(token);
    return false;
  }
  held_ += detokenizer_->push(token);
  return scan(text);
}

void TextOutput::finish(std::string& text) {
  if (!detokenizer_.has_value() || found_.has_value()) return;
  held_ += detokenizer_->finish();
  if (longest_ > 0 && scan(text)) return;
  text += held_;
  held_.clear();
}

bool TextOutput::scan(std::string& text) {
  // The first stop string to be complete wins; of several that begin earlier or later, the one that begins first.
  size_t at = std::string::npos;
  const std::string* which = nullptr;
  for (const std::string& s : options_.stop) {
    const size_t found = held_.find(s);
    if (found < at || (found == at && found != std::string::npos && s.size() < which->size())) {
      at = found;
      which = &s;
    }
  }
  if (which != nullptr) {
    text.append(held_, 0, at + (options_.include_stop_string ? which->size() : 0));
    held_.clear();
    found_ = *which;
    return true;
  }
  // Keep the longest suffix that begins a stop string.
  size_t keep = 0;
  for (const std::string& s : options_.stop) {
    for (size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, s, 0, n) == 0) keep = n;
    }
  }
  text.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

}  // namespace deepinfer
