#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/gumbel_noise.h"
#include "base/status.h"
#include "deepinfer/logprobs.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer {

/// Word of the noise stream (spec/sampling §4.2). position: absolute index of the token being drawn.
uint32_t noise_word(uint64_t seed, int64_t position, int32_t token_id, NoiseStream stream = NoiseStream::kTarget,
                    uint32_t choice_index = 0);

/// log-softmax of raw logits at `token`, and the `top` largest (ties by id). spec/sampling §2.4.
TokenLogprob logprob_of(std::span<const float> logits, int32_t token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int64_t top);

/// Draws tokens for one sequence. Holds scratch and the token counts that penalties need; results depend on the arguments alone.
/// `sample`, `add_output` and `remove_output` never allocate, except that an answer with bad_words is remembered. One thread at a
/// time.
class Sampler {
 public:
  /// `params` must have passed `validate(vocab_size)`.
  Sampler(SamplingParams params, int64_t vocab_size);

  const SamplingParams& params() const { return params_; }
  /// Whether steps 2 to 6 of spec/sampling §2.2 leave an unmasked row as it is: what is drawn follows from `params`, the position
  /// and the logits, and from nothing that was drawn before. It stays so for the rest of an answer.
  bool draws_from_raw_logits() const;
  /// Tell it the prompt (for the repetition penalty) and each token that was emitted.
  void add_prompt(std::span<const int32_t> ids);
  void add_output(int32_t id);
  /// Takes back one add_output(id): a draft that was not accepted.
  void remove_output(int32_t id);

  /// The token at absolute index `position`, from raw fp32 logits [vocab], which are changed in place.
  /// `mask`, if not empty, is a bitmask of allowed ids, bit v%32 of word v/32 (grammars). NaN logits count as -inf.
  ///
  /// Where constraints exclude each other the grammar wins: allowed_token_ids without a token of the mask are ignored, and stop
  /// tokens are not held off when nothing else is left. If no allowed token has a logit above -inf (a broken row), the lowest
  /// allowed id is taken; an all-zero mask, which no live grammar gives, yields token 0.
  int32_t sample(std::span<float> logits, int64_t position, std::span<const uint32_t> mask = {});

 private:
  bool counts_outputs() const;
  bool allowed_meets(std::span<const uint32_t> mask) const;
  void apply_allowed(std::span<float> logits, std::span<const uint32_t> mask);
  void ban_words(std::span<float> logits);
  void hold_stops(std::span<float> logits);
  void suppress(std::span<float> logits, std::span<const int32_t> ids);
  void apply_penalties(std::span<float> logits) const;
  int32_t fallback(std::span<const uint32_t> mask) const;

  SamplingParams params_;
  int64_t vocab_size_;
  int64_t generated_ = 0;
  std::vector<std::pair<int32_t, int32_t>> output_counts_;  ///< sorted by id; used when a penalty is on
  std::vector<int32_t> prompt_ids_;                         ///< sorted, unique; used when the repetition penalty is on
  std::vector<std::pair<float, int32_t>> scratch_;          ///< candidates of the filters
  std::vector<float> saved_;                                ///< logits set aside by apply_allowed and suppress
  std::vector<int32_t> answer_;                             ///< so far; used when there are bad words
  std::vector<int32_t> banned_;                             ///< ids that would complete one
};

}  // namespace deepinfer
