#include "sampling/sampler.h"

namespace deepinfer {
namespace {

/// Written so that NaN fails.
Status check_range(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return Status::Ok();
  return Status::OutOfRange("{} is {}, must be from {} to {}", field, value, low, high);
}

/// For ranges that leave out their lower end, zero.
Status check_positive(const char* field, double value, double high) {
  if (value > 0.0 && value <= high) return Status::Ok();
  return Status::OutOfRange("{} is {}, must be above 0 and at most {}", field, value, high);
}

Status check_count(const char* field, size_t count, size_t limit) {
  if (count <= limit) return Status::Ok();
  return Status::OutOfRange("{} has {} entries, at most {} are allowed", field, count, limit);
}

Status check_token(const char* field, int32_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return Status::Ok();
  return Status::OutOfRange("{} has token id {}, must be from 0 to {}", field, id, vocab_size - 1);
}

}  // namespace

Status SamplingParams::validate(int64_t vocab_size) const {
  DI_RETURN_IF_ERROR(check_range("temperature", temperature, 0.0, 100.0));
  DI_RETURN_IF_ERROR(check_positive("top_p", top_p, 1.0));
  DI_RETURN_IF_ERROR(check_range("min_p", min_p, 0.0, 1.0));
  DI_RETURN_IF_ERROR(check_positive("repetition_penalty", repetition_penalty, 100.0));
  DI_RETURN_IF_ERROR(check_range("presence_penalty", presence_penalty, -2.0, 2.0));
  DI_RETURN_IF_ERROR(check_range("frequency_penalty", frequency_penalty, -2.0, 2.0));
  // The noise counter has 24 bits for the choice (spec/sampling §4.2).
  if (choice_index > kMaxChoiceIndex) {
    return Status::OutOfRange("choice_index is {}, must be from 0 to {}", choice_index, kMaxChoiceIndex);
  }
  if (min_tokens < 0 || min_tokens > kMaxMinTokens) {
    return Status::OutOfRange("min_tokens is {}, must be from 0 to {}", min_tokens, kMaxMinTokens);
  }
  DI_RETURN_IF_ERROR(check_count("stop_token_ids", stop_token_ids.size(), kMaxStopTokenIds));
  DI_RETURN_IF_ERROR(check_count("logit_bias", logit_bias.size(), kMaxLogitBias));
  DI_RETURN_IF_ERROR(check_count("allowed_token_ids", allowed_token_ids.size(), kMaxAllowedTokenIds));
  for (const int32_t id : stop_token_ids) DI_RETURN_IF_ERROR(check_token("stop_token_ids", id, vocab_size));
  for (const auto& [id, bias] : logit_bias) {
    DI_RETURN_IF_ERROR(check_token("logit_bias", id, vocab_size));
    if (!(bias >= -100.0f && bias <= 100.0f)) {
      return Status::OutOfRange("logit_bias of token id {} is {}, must be from -100 to 100", id, bias);
    }
  }
  for (const int32_t id : allowed_token_ids) DI_RETURN_IF_ERROR(check_token("allowed_token_ids", id, vocab_size));
  DI_RETURN_IF_ERROR(check_count("bad_words", bad_words.size(), kMaxBadWords));
  for (const std::vector<int32_t>& word : bad_words) {
    if (word.empty() || word.size() > kMaxBadWordTokens)
      return Status::OutOfRange("bad_words has one of {} tokens, must be from 1 to {}", word.size(), kMaxBadWordTokens);
    for (const int32_t id : word) DI_RETURN_IF_ERROR(check_token("bad_words", id, vocab_size));
  }
  return Status::Ok();
}

}  // namespace deepinfer
