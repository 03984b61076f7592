// Raw log-probabilities (spec/sampling §2.4): of the logits as the model gave them.

#include <algorithm>

#include "base/fixed_math.h"
#include "sampling/filters.h"

namespace deepinfer {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// The parts of a log-softmax that all tokens of a row share.
struct Normaliser {
  float z_max;
  double log_mass;  ///< log(sum exp(z - z_max)); unused when z_max is -inf

  explicit Normaliser(std::span<const float> logits) : z_max(max_logit(logits)), log_mass(0.0) {
    if (z_max > kMinusInfinity) log_mass = fixed_log(softmax_mass(logits, Border{}, z_max));
  }

  float logprob(float z) const {
    if (!(z > kMinusInfinity)) return kMinusInfinity;
    const double below = z == z_max ? 0.0 : static_cast<double>(z) - static_cast<double>(z_max);
    return static_cast<float>(below - log_mass);
  }
};

/// 1 + number of strictly greater logits; NaN is as low as -inf.
int64_t rank_of(std::span<const float> logits, float z) {
  if (!(z > kMinusInfinity)) z = kMinusInfinity;
  return 1 + std::count_if(logits.begin(), logits.end(), [z](float other) { return other > z; });
}

}  // namespace

TokenLogprob logprob_of(std::span<const float> logits, int32_t token) {
  DI_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size(), "token {} of {} logits", token, logits.size());
  const float z = logits[static_cast<size_t>(token)];
  return {token, Normaliser(logits).logprob(z), rank_of(logits, z)};
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int64_t top) {
  const auto n = static_cast<int64_t>(logits.size());
  top = std::clamp<int64_t>(top, 0, n);
  if (top == 0) return {};
  std::vector<Candidate> best;
  select_largest(logits, Border{}, top, best);
  std::sort(best.begin(), best.end(), ranks_before);
  // Tokens at -inf fill up what is missing, lowest ids first.
  for (int32_t v = 0; static_cast<int64_t>(best.size()) < top; ++v) {
    if (!(logits[static_cast<size_t>(v)] > kMinusInfinity)) best.emplace_back(kMinusInfinity, v);
  }
  const Normaliser normaliser(logits);
  std::vector<TokenLogprob> result;
  result.reserve(best.size());
  for (size_t i = 0; i < best.size(); ++i) {
    const bool tied = i > 0 && best[i].first == best[i - 1].first;
    result.push_back(
        {best[i].second, normaliser.logprob(best[i].first), tied ? result.back().rank : static_cast<int64_t>(i) + 1});
  }
  return result;
}

}  // namespace deepinfer
