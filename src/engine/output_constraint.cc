#include "engine/output_constraint.h"

#include <algorithm>
#include <bit>

#include "base/status.h"

namespace deepinfer {

OutputConstraint::OutputConstraint(std::shared_ptr<const CompiledForm> form)
    : form_(std::move(form)), matcher_(form_->grammar), started_(!form_->start_after.has_value()) {
  if (form_->prefix.empty()) return;
  DI_CHECK(matcher_.accept_bytes(form_->prefix), "a prefix that its grammar refuses was checked before");
  prefix_steps_ = matcher_.accepted_tokens();
}

void OutputConstraint::fill_mask(std::span<uint32_t> mask) {
  if (started_) {
    matcher_.fill_mask(mask);  // without a bit for ids that the tokenizer does not have
    return;
  }
  std::fill(mask.begin(), mask.end(), ~0u);
  if (form_->vocab_size % 32 != 0) mask[mask_words() - 1] = (1u << (form_->vocab_size % 32)) - 1;
  for (const int32_t id : form_->barred) mask[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
}

bool OutputConstraint::accept(int32_t token) {
  if (started_) return matcher_.accept(token);
  if (token < 0 || token >= form_->vocab_size || std::binary_search(form_->barred.begin(), form_->barred.end(), token))
    return false;
  ++free_tokens_;
  started_ = token == form_->start_after;
  return true;
}

void OutputConstraint::rollback(int64_t tokens) {
  tokens = std::clamp<int64_t>(tokens, 0, accepted_tokens());
  const int64_t formed = std::min(tokens, formed_tokens());
  matcher_.rollback(formed);
  if (tokens == formed) return;
  free_tokens_ -= tokens - formed;
  started_ = false;  // the token that began the form is among those that go
}

int64_t OutputConstraint::fill_draft_masks(std::span<const int32_t> drafts, std::span<uint32_t> masks) {
  const size_t words = mask_words();
  DI_CHECK(masks.size() >= (drafts.size() + 1) * words, "{} mask words for {} rows", masks.size(), drafts.size() + 1);
  int64_t valid = 0;
  fill_mask(masks.first(words));
  while (valid < static_cast<int64_t>(drafts.size()) && accept(drafts[static_cast<size_t>(valid)])) {
    ++valid;
    fill_mask(masks.subspan(static_cast<size_t>(valid) * words, words));
  }
  const auto rest = masks.subspan(static_cast<size_t>(valid + 1) * words);
  std::fill(rest.begin(), rest.end(), ~0u);
  rollback(valid);
  return valid;
}

std::optional<int32_t> OutputConstraint::forced_token() {
  if (!started_ || ended()) return std::nullopt;
  return matcher_.forced_token();
}

std::optional<int32_t> only_token(std::span<const uint32_t> mask) {
  std::optional<int32_t> only;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    if (only.has_value() || !std::has_single_bit(mask[i])) return std::nullopt;
    only = static_cast<int32_t>(i * 32) + std::countr_zero(mask[i]);
  }
  return only;
}

}  // namespace deepinfer
