#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

inline constexpr float kGreedyTemperature = 1e-5f;  ///< below it: greedy
inline constexpr uint32_t kMaxChoiceIndex = (1u << 24) - 1;
inline constexpr int64_t kMaxMinTokens = std::numeric_limits<int32_t>::max();
inline constexpr size_t kMaxStopTokenIds = 128;
inline constexpr size_t kMaxLogitBias = 1024;
inline constexpr size_t kMaxAllowedTokenIds = 1024;
inline constexpr size_t kMaxBadWords = 1024;
inline constexpr size_t kMaxBadWordTokens = 64;

/// How the next token is chosen. Defaults are the release's; ranges are checked by `validate` (spec/sampling §2.2-2.3).
struct SamplingParams {
  float temperature = 1.0f;         ///< [0, 100]; below 1e-5: greedy
  float top_p = 1.0f;               ///< (0, 1]; 1 is off
  int64_t top_k = 0;                ///< <= 0 or >= vocabulary: off
  float min_p = 0.0f;               ///< [0, 1]
  float repetition_penalty = 1.0f;  ///< (0, 100]
  float presence_penalty = 0.0f;    ///< [-2, 2]
  float frequency_penalty = 0.0f;   ///< [-2, 2]
  uint64_t seed = 0;
  uint32_t choice_index = 0;  ///< which of `n` choices, part of the noise key
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_token_ids;  ///< at most 128, EOS among them; held off while fewer than min_tokens were made
  std::vector<std::pair<int32_t, float>> logit_bias;  ///< at most 1024, each in [-100, 100]; equal ids add up
  std::vector<int32_t> allowed_token_ids;             ///< at most 1024; empty: all
  /// At most 1024 sequences of 1 to 64 ids; none is in the answer, unless a grammar leaves nothing else.
  std::vector<std::vector<int32_t>> bad_words;

  /// The first field outside its limits, with its value and the limit.
  Status validate(int64_t vocab_size) const;
};

}  // namespace deepinfer
