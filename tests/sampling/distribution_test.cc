// Chi-square of the sampler and of each filter against the exact distribution. Noise is a function of the seed, so a run either
// always passes or always fails; the thresholds are the 99.99 % points.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sampling/sampler.h"

namespace deepinfer {
namespace {

constexpr int64_t kDraws = 100000;
/// 99.99 % points of chi-square by degrees of freedom; index 0 is unused.
constexpr double kChiSquareLimit[] = {0, 15.14, 18.42, 21.11, 23.51, 25.74, 27.86, 29.88, 31.83, 33.72};

const std::vector<double> kProbabilities = {0.02, 0.3, 0.07, 0.0005, 0.2, 0.1, 0.0095, 0.25, 0.03, 0.02};

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 3.0f);
  return logits;
}

/// Draws at kDraws positions; a token of weight 0 must never come, the rest in proportion to `weights`.
void expect_distribution(const SamplingParams& params, const std::vector<double>& weights) {
  const auto vocab = static_cast<int64_t>(weights.size());
  const std::vector<float> logits = logits_of(kProbabilities);
  Sampler sampler(params, vocab);
  std::vector<double> seen(weights.size(), 0.0);
  std::vector<float> row;
  for (int64_t position = 0; position < kDraws; ++position) {
    row = logits;
    seen[static_cast<size_t>(sampler.sample(row, position))] += 1.0;
  }
  double total = 0.0;
  for (const double w : weights) total += w;
  double chi_square = 0.0;
  size_t cells = 0;
  for (size_t v = 0; v < weights.size(); ++v) {
    const double expected = weights[v] / total * static_cast<double>(kDraws);
    if (expected == 0.0) {
      EXPECT_EQ(seen[v], 0.0) << "token " << v << " should have been filtered";
      continue;
    }
    ++cells;
    chi_square += (seen[v] - expected) * (seen[v] - expected) / expected;
  }
  ASSERT_GE(cells, 2u);
  EXPECT_LT(chi_square, kChiSquareLimit[cells - 1]);
}

/// kProbabilities with all but `kept` set to zero.
std::vector<double> only(std::initializer_list<size_t> kept) {
  std::vector<double> weights(kProbabilities.size(), 0.0);
  for (const size_t v : kept) weights[v] = kProbabilities[v];
  return weights;
}

TEST(Distribution, Plain) {
  for (const uint64_t seed : {0ull, 1ull, 0xffffffffffffffffull}) {
    SamplingParams params;
    params.seed = seed;
    expect_distribution(params, kProbabilities);
  }
}

TEST(Distribution, ChoiceIndex) {
  SamplingParams params;
  params.choice_index = 3;
  expect_distribution(params, kProbabilities);
}

TEST(Distribution, Temperature) {
  for (const float temperature : {0.5f, 2.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    std::vector<double> weights = kProbabilities;
    for (double& w : weights) w = std::pow(w, 1.0 / static_cast<double>(temperature));
    expect_distribution(params, weights);
  }
}

TEST(Distribution, TopK) {
  SamplingParams params;
  params.top_k = 4;
  expect_distribution(params, only({1, 7, 4, 5}));
}

TEST(Distribution, TopP) {
  SamplingParams params;
  params.top_p = 0.76f;  // .30 .25 .20 are .75, so the fourth still enters
  expect_distribution(params, only({1, 7, 4, 5}));
  params.top_p = 0.74f;
  expect_distribution(params, only({1, 7, 4}));
}

TEST(Distribution, MinP) {
  SamplingParams params;
  params.min_p = 0.2f;  // .06
  expect_distribution(params, only({1, 7, 4, 5, 2}));
}

TEST(Distribution, TopPIsOverWhatTopKLeaves) {
  SamplingParams params;
  params.top_k = 3;
  params.top_p = 0.72f;  // of .75: .30 .25 are .733
  expect_distribution(params, only({1, 7}));
}

TEST(Distribution, AllFilters) {
  SamplingParams params;
  params.min_p = 0.3f;  // .09: keeps 1 7 4 5
  params.top_k = 4;
  params.top_p = 0.9f;  // of .85: .30 .25 .20 are .882
  params.seed = 99;
  expect_distribution(params, only({1, 7, 4, 5}));
}

// Adjacent positions are independent: pairs of tokens follow the product.
TEST(Distribution, AdjacentPositionsAreIndependent) {
  const std::vector<double> p = {0.5, 0.3, 0.2};
  const std::vector<float> logits = logits_of(p);
  Sampler sampler(SamplingParams{}, 3);
  double seen[3][3] = {};
  int32_t last = -1;
  std::vector<float> row;
  for (int64_t position = 0; position <= kDraws; ++position) {
    row = logits;
    const int32_t token = sampler.sample(row, position);
    if (last >= 0) seen[last][token] += 1.0;
    last = token;
  }
  double chi_square = 0.0;
  for (size_t a = 0; a < 3; ++a) {
    for (size_t b = 0; b < 3; ++b) {
      const double expected = p[a] * p[b] * static_cast<double>(kDraws);
      chi_square += (seen[a][b] - expected) * (seen[a][b] - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, kChiSquareLimit[8]);
}

}  // namespace
}  // namespace deepinfer
