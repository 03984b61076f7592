#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer {

/// Raw log-softmax value of a token (spec/sampling §2.4).
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
  int64_t rank = 0;  ///< 1 + number of strictly greater logits
};

/// Log-probs of one position: the chosen token, and the best ones (ties by id).
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

}  // namespace deepinfer
