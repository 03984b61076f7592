#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace deepinfer {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  pending_.append(tokenizer_->token_bytes(id));
  // What a byte turns into depends on nothing before the character it lies in, so cutting between characters is exact.
  pending_.erase(0, utf8_append_lossy(pending_, /*last=*/false, text));
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  utf8_append_lossy(pending_, /*last=*/true, text);
  pending_.clear();
  return text;
}

}  // namespace deepinfer
