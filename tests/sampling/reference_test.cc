// The sampler against the plainest reading of spec/sampling §2.2: full sorts, the library's exp and log, noise for every token.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "sampling/sampler.h"

namespace deepinfer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t reference_filter_and_draw(std::vector<float> z, const SamplingParams& params, int64_t position) {
  const auto n = static_cast<int64_t>(z.size());
  for (float& x : z) x = std::isnan(x) ? -kInf : x / params.temperature;
  const double z_max = *std::max_element(z.begin(), z.end());
  std::vector<int32_t> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return z[a] > z[b]; });
  std::erase_if(order, [&](int32_t v) { return z[v] == -kInf; });
  if (params.min_p > 0.0f) {
    std::erase_if(order,
                  [&](int32_t v) { return static_cast<double>(z[v]) < z_max + std::log(static_cast<double>(params.min_p)); });
  }
  if (params.top_k > 0 && params.top_k < n) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  if (params.top_p < 1.0f) {
    double total = 0.0;
    for (const int32_t v : order) total += std::exp(static_cast<double>(z[v]) - z_max);
    double before = 0.0;
    size_t kept = 0;
    while (kept < order.size() && before < static_cast<double>(params.top_p) * total) {
      before += std::exp(static_cast<double>(z[order[kept]]) - z_max);
      ++kept;
    }
    order.resize(kept);
  }
  std::sort(order.begin(), order.end());
  int32_t winner = -1;
  float best = -kInf;
  for (const int32_t v : order) {
    const float score = z[v] + gumbel(noise_word(params.seed, position, v, NoiseStream::kTarget, params.choice_index));
    if (score > best) {
      best = score;
      winner = v;
    }
  }
  return winner;
}

std::vector<float> random_logits(std::mt19937& random, int64_t vocab) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  const float spread = std::uniform_real_distribution<float>(0.0f, 8.0f)(random);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  const bool coarse = random() % 3 == 0;  // many ties
  for (float& z : logits) {
    z = normal(random) * spread;
    if (coarse) z = std::round(z);
    if (random() % 50 == 0) z = random() % 2 == 0 ? -kInf : std::numeric_limits<float>::quiet_NaN();
  }
  if (random() % 3 == 0) std::sort(logits.begin(), logits.end());  // the slowest order for skipping
  return logits;
}

void compare(std::mt19937& random, int64_t vocab, int rounds) {
  const auto uniform = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); };
  for (int round = 0; round < rounds; ++round) {
    SamplingParams params;
    if (random() % 2 == 0) params.temperature = uniform(0.05f, 3.0f);
    if (random() % 2 == 0) params.top_p = uniform(0.01f, 1.0f);
    if (random() % 2 == 0) params.top_k = static_cast<int64_t>(random() % static_cast<uint64_t>(vocab + 5));
    if (random() % 3 == 0) params.top_k = static_cast<int64_t>(random() % 20);
    if (random() % 3 == 0) params.min_p = uniform(0.0f, 1.0f) * uniform(0.0f, 0.5f);
    params.seed = (static_cast<uint64_t>(random()) << 32) | random();
    params.choice_index = random() % 4;
    const auto position = static_cast<int64_t>(random());
    std::vector<float> logits = random_logits(random, vocab);
    const int32_t expected = reference_filter_and_draw(logits, params, position);
    if (expected < 0) continue;
    Sampler sampler(params, vocab);
    EXPECT_EQ(sampler.sample(logits, position), expected)
        << "vocab " << vocab << " round " << round << " T " << params.temperature << " top_p " << params.top_p << " top_k "
        << params.top_k << " min_p " << params.min_p;
  }
}

TEST(Sampler, AgreesWithTheReferenceOnSmallRows) {
  std::mt19937 random(11);
  for (const int64_t vocab : {1, 2, 3, 5, 63, 64, 65, 127, 1000}) compare(random, vocab, 200);
}

TEST(Sampler, AgreesWithTheReferenceOnMediumRows) {
  std::mt19937 random(12);
  compare(random, 10007, 60);
}

TEST(Sampler, AgreesWithTheReferenceOnTheFullVocabulary) {
  std::mt19937 random(13);
  compare(random, 129280, 12);
}

}  // namespace
}  // namespace deepinfer
