#include "sampling/sampler.h"

#include <algorithm>
#include <limits>

#include "sampling/filters.h"

namespace deepinfer {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

bool mask_allows(std::span<const uint32_t> mask, int32_t id) {
  return ((mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32)) & 1u) != 0;
}

template <typename T>
void sort_unique(std::vector<T>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

/// The place of `id` in counts sorted by id.
auto find_count(std::vector<std::pair<int32_t, int32_t>>& counts, int32_t id) {
  return std::lower_bound(counts.begin(), counts.end(), id, [](const auto& entry, int32_t value) { return entry.first < value; });
}

/// Step 2.
void apply_mask(std::span<float> logits, std::span<const uint32_t> mask) {
  for (size_t begin = 0; begin < logits.size(); begin += 32) {
    const uint32_t word = mask[begin / 32];
    if (word == 0xffffffffu) continue;
    const size_t end = std::min(logits.size(), begin + 32);
    for (size_t v = begin; v < end; ++v) {
      if (((word >> (v - begin)) & 1u) == 0) logits[v] = kMinusInfinity;
    }
  }
}

void penalise_repetition(float& z, float penalty) { z = z > 0.0f ? z / penalty : z * penalty; }

}  // namespace

Sampler::Sampler(SamplingParams params, int64_t vocab_size) : params_(std::move(params)), vocab_size_(vocab_size) {
  DI_CHECK(vocab_size > 0 && vocab_size <= std::numeric_limits<int32_t>::max(), "vocabulary of {}", vocab_size);
  const Status status = params_.validate(vocab_size);
  DI_CHECK(status.ok(), "parameters must be validated first: {}", status.message());
  sort_unique(params_.stop_token_ids);
  sort_unique(params_.allowed_token_ids);
  // Room for the worst case now, so that drawing never allocates. Pages that are never touched cost no memory.
  const auto vocab = static_cast<size_t>(vocab_size);
  sort_unique(params_.bad_words);
  saved_.reserve(std::max({params_.stop_token_ids.size(), params_.allowed_token_ids.size(), params_.bad_words.size()}));
  banned_.reserve(params_.bad_words.size());
  if (params_.top_k > 0 || params_.top_p < 1.0f) scratch_.reserve(vocab);
  if (counts_outputs()) output_counts_.reserve(vocab);
  if (params_.repetition_penalty != 1.0f) prompt_ids_.reserve(vocab);
}

bool Sampler::counts_outputs() const {
  return params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
}

bool Sampler::draws_from_raw_logits() const {
  return params_.allowed_token_ids.empty() && params_.bad_words.empty() && params_.logit_bias.empty() && !counts_outputs() &&
         (params_.stop_token_ids.empty() || generated_ >= params_.min_tokens);
}

void Sampler::add_prompt(std::span<const int32_t> ids) {
  if (params_.repetition_penalty == 1.0f) return;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(prompt_ids_),
               [this](int32_t id) { return id >= 0 && id < vocab_size_; });
  sort_unique(prompt_ids_);
}

void Sampler::add_output(int32_t id) {
  DI_CHECK(id >= 0 && id < vocab_size_, "token {} of a vocabulary of {}", id, vocab_size_);
  ++generated_;
  if (!params_.bad_words.empty()) answer_.push_back(id);
  if (!counts_outputs()) return;
  const auto place = find_count(output_counts_, id);
  if (place != output_counts_.end() && place->first == id) {
    ++place->second;
  } else {
    output_counts_.insert(place, {id, 1});
  }
}

void Sampler::remove_output(int32_t id) {
  DI_CHECK(generated_ > 0, "no output to take back");
  --generated_;
  if (!params_.bad_words.empty()) answer_.pop_back();
  if (!counts_outputs()) return;
  const auto place = find_count(output_counts_, id);
  DI_CHECK(place != output_counts_.end() && place->first == id, "token {} was not an output", id);
  if (--place->second == 0) output_counts_.erase(place);
}

void Sampler::apply_allowed(std::span<float> logits, std::span<const uint32_t> mask) {
  const auto& allowed = params_.allowed_token_ids;
  if (allowed.empty() || !allowed_meets(mask)) return;
  saved_.clear();
  for (const int32_t id : allowed) saved_.push_back(logits[static_cast<size_t>(id)]);
  std::fill(logits.begin(), logits.end(), kMinusInfinity);
  for (size_t i = 0; i < allowed.size(); ++i) logits[static_cast<size_t>(allowed[i])] = saved_[i];
}

bool Sampler::allowed_meets(std::span<const uint32_t> mask) const {
  const auto& allowed = params_.allowed_token_ids;
  return mask.empty() || std::any_of(allowed.begin(), allowed.end(), [mask](int32_t id) { return mask_allows(mask, id); });
}

void Sampler::ban_words(std::span<float> logits) {
  banned_.clear();
  for (const std::vector<int32_t>& word : params_.bad_words) {
    const size_t before = word.size() - 1;
    if (before <= answer_.size() && std::equal(word.begin(), word.end() - 1, answer_.end() - static_cast<ptrdiff_t>(before)))
      banned_.push_back(word.back());
  }
  sort_unique(banned_);
  suppress(logits, banned_);
}

void Sampler::hold_stops(std::span<float> logits) {
  if (generated_ < params_.min_tokens) suppress(logits, params_.stop_token_ids);
}

/// `ids` without repetition.
void Sampler::suppress(std::span<float> logits, std::span<const int32_t> ids) {
  if (ids.empty()) return;
  saved_.clear();
  for (const int32_t id : ids) {
    saved_.push_back(logits[static_cast<size_t>(id)]);
    logits[static_cast<size_t>(id)] = kMinusInfinity;
  }
  // Nothing left: a grammar that has come to its end, say, allows stop tokens alone, and it wins over min_tokens.
  if (std::any_of(logits.begin(), logits.end(), [](float z) { return z > kMinusInfinity; })) return;
  for (size_t i = 0; i < ids.size(); ++i) logits[static_cast<size_t>(ids[i])] = saved_[i];
}

void Sampler::apply_penalties(std::span<float> logits) const {
  const float repetition = params_.repetition_penalty;
  if (repetition != 1.0f) {
    auto output = output_counts_.begin();
    for (const int32_t id : prompt_ids_) {
      while (output != output_counts_.end() && output->first < id) ++output;
      const bool in_output = output != output_counts_.end() && output->first == id;
      if (!in_output) penalise_repetition(logits[static_cast<size_t>(id)], repetition);
    }
  }
  for (const auto& [id, count] : output_counts_) {
    float& z = logits[static_cast<size_t>(id)];
    if (repetition != 1.0f) penalise_repetition(z, repetition);
    z -= params_.frequency_penalty * static_cast<float>(count);
    z -= params_.presence_penalty;
  }
}

int32_t Sampler::fallback(std::span<const uint32_t> mask) const {
  const auto& allowed = params_.allowed_token_ids;
  if (!allowed.empty() && allowed_meets(mask)) {
    return *std::find_if(allowed.begin(), allowed.end(), [mask](int32_t id) { return mask.empty() || mask_allows(mask, id); });
  }
  for (int32_t id = 0; !mask.empty() && id < vocab_size_; ++id) {
    if (mask_allows(mask, id)) return id;
  }
  return 0;
}

int32_t Sampler::sample(std::span<float> logits, int64_t position, std::span<const uint32_t> mask) {
  DI_CHECK(static_cast<int64_t>(logits.size()) == vocab_size_, "{} logits for a vocabulary of {}", logits.size(), vocab_size_);
  DI_CHECK(mask.empty() || mask.size() >= (logits.size() + 31) / 32, "{} mask words for a vocabulary of {}", mask.size(),
           vocab_size_);

  // The numbers are the steps of spec/sampling §2.2.
  if (!mask.empty()) apply_mask(logits, mask);  // 2
  apply_allowed(logits, mask);                  // 3
  ban_words(logits);                            // not in the spec: before biases, which leave -inf as it is
  for (const auto& [id, bias] : params_.logit_bias) logits[static_cast<size_t>(id)] += bias;  // 4
  hold_stops(logits);                                                                         // 5
  apply_penalties(logits);                                                                    // 6

  int32_t token = kNoToken;
  if (params_.temperature < kGreedyTemperature) {  // 7
    token = argmax(logits);
  } else {
    if (params_.temperature != 1.0f) {
      for (float& z : logits) z /= params_.temperature;
    }
    Border border;
    const bool top_p_on = params_.top_p < 1.0f;
    if (params_.min_p > 0.0f || top_p_on) {
      const float z_max = max_logit(logits);
      border = min_p_border(z_max, params_.min_p);                            // 8
      border = top_k_border(logits, border, params_.top_k, scratch_);         // 9
      border = top_p_border(logits, border, z_max, params_.top_p, scratch_);  // 10
    } else {
      border = top_k_border(logits, border, params_.top_k, scratch_);  // 9
    }
    token = draw(logits, border, {params_.seed, position, NoiseStream::kTarget, params_.choice_index});  // 11
  }
  return token == kNoToken ? fallback(mask) : token;
}

}  // namespace deepinfer
