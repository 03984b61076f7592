#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "sampling/filters.h"

namespace deepinfer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

int32_t sample_once(const SamplingParams& params, std::vector<float> logits, int64_t position = 0,
                    const std::vector<uint32_t>& mask = {}) {
  Sampler sampler(params, static_cast<int64_t>(logits.size()));
  return sampler.sample(logits, position, mask);
}

/// The tokens that come at all in 2000 positions.
std::set<int32_t> reachable(const SamplingParams& params, const std::vector<float>& logits,
                            const std::vector<uint32_t>& mask = {}) {
  std::set<int32_t> tokens;
  for (int64_t position = 0; position < 2000; ++position) tokens.insert(sample_once(params, logits, position, mask));
  return tokens;
}

TEST(Greedy, LargestLogitAndLowestIdOnTies) {
  EXPECT_EQ(sample_once(greedy(), {1, 5, 3, 5, 5}), 1);
  EXPECT_EQ(sample_once(greedy(), {-3, -2, -2}), 1);
  std::vector<float> logits(1000, 0.0f);
  logits[777] = logits[999] = 2.0f;
  EXPECT_EQ(sample_once(greedy(), logits), 777);
}

TEST(Greedy, BelowTheTemperatureLimitFiltersHaveNoEffect) {
  SamplingParams params;
  params.temperature = 1e-6f;
  params.top_k = 1;
  params.top_p = 1e-6f;
  params.min_p = 1.0f;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 100; ++round) {
    std::vector<float> logits(500);
    for (float& z : logits) z = normal(random);
    const auto largest = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(sample_once(params, logits, round), largest);
  }
}

TEST(Greedy, NanCountsAsMinusInfinity) {
  EXPECT_EQ(sample_once(greedy(), {kNan, -1e30f, kNan}), 1);
  EXPECT_EQ(sample_once(SamplingParams{}, {kNan, -1e30f, kNan}), 1);
}

TEST(Greedy, PlusInfinityWins) {
  EXPECT_EQ(sample_once(greedy(), {0, kInf, 1, kInf}), 1);
  SamplingParams params;
  params.top_p = 0.9f;
  params.min_p = 0.1f;
  EXPECT_EQ(sample_once(params, {0, kInf, 1, kInf}), 1);
}

TEST(Filters, MinPIsALogitThreshold) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(300);
    for (float& z : logits) z = normal(random);
    const float z_max = max_logit(logits);
    const auto min_p = std::uniform_real_distribution<float>(1e-4f, 1.0f)(random);
    const Border border = min_p_border(z_max, min_p);
    double total = 0.0;
    for (const float z : logits) total += std::exp(static_cast<double>(z));
    for (int32_t v = 0; v < 300; ++v) {
      const double p = std::exp(static_cast<double>(logits[v])) / total;
      const double p_max = std::exp(static_cast<double>(z_max)) / total;
      if (std::fabs(p / (min_p * p_max) - 1.0) < 1e-12) continue;  // at the border the two forms round differently
      EXPECT_EQ(border.keeps(logits[v], v), p >= min_p * p_max);
    }
  }
}

TEST(Filters, MinPOneKeepsTheTiesOfTheLargest) {
  SamplingParams params;
  params.min_p = 1.0f;
  EXPECT_EQ(reachable(params, {1, 4, 4, 3.9999f, 4}), (std::set<int32_t>{1, 2, 4}));
}

TEST(Filters, TopKBreaksTiesByLowestId) {
  SamplingParams params;
  params.top_k = 3;
  EXPECT_EQ(reachable(params, {1, 2, 3, 2, 2, 1}), (std::set<int32_t>{1, 2, 3}));
  params.top_k = 1;
  EXPECT_EQ(reachable(params, {1, 2, 2, 2}), (std::set<int32_t>{1}));
}

TEST(Filters, TopKOff) {
  for (const int64_t k : {int64_t{0}, int64_t{-1}, int64_t{4}, std::numeric_limits<int64_t>::max()}) {
    SamplingParams params;
    params.top_k = k;
    EXPECT_EQ(reachable(params, {1, 1, 1, 1}).size(), 4u);
  }
}

TEST(Filters, TopPKeepsAtLeastOne) {
  for (const float top_p : {1e-6f, 1e-38f, std::numeric_limits<float>::denorm_min()}) {
    SamplingParams params;
    params.top_p = top_p;
    EXPECT_EQ(reachable(params, {1, 2, 3, 3}), (std::set<int32_t>{2}));
  }
}

TEST(Filters, TopPTiesByLowestId) {
  SamplingParams params;
  params.top_p = 0.5f;  // exactly the mass of the first two of four equal tokens: the third has .5 before it, which is not < .5
  EXPECT_EQ(reachable(params, {1, 1, 1, 1}), (std::set<int32_t>{0, 1}));
}

TEST(Filters, TopPOfAFlatRowNeedsTheWholeOrder) {
  SamplingParams params;
  params.top_p = 0.75f;
  const std::vector<float> logits(20000, 1.0f);
  std::vector<Candidate> scratch;
  const Border border = top_p_border(logits, Border{}, 1.0f, params.top_p, scratch);
  EXPECT_EQ(border.id, 14999);
}

TEST(Sampler, AllMinusInfinityExceptOne) {
  for (const float temperature : {0.0f, 1.0f, 0.3f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_p = 0.5f;
    params.top_k = 2;
    params.min_p = 0.1f;
    for (const int32_t v : {0, 70, 129}) {
      std::vector<float> logits(130, -kInf);
      logits[static_cast<size_t>(v)] = -1e30f;
      EXPECT_EQ(sample_once(params, logits), v);
    }
  }
}

TEST(Sampler, NothingLeftFallsBackToTheLowestAllowedId) {
  const std::vector<float> nothing(100, -kInf);
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_p = 0.5f;
    EXPECT_EQ(sample_once(params, nothing), 0);
    EXPECT_EQ(sample_once(params, nothing, 0, {0, 0x10, 0, 0}), 36);
    EXPECT_EQ(sample_once(params, nothing, 0, {0, 0, 0, 0xfffffff0u}), 0);  // bits beyond the vocabulary only
    params.allowed_token_ids = {80, 40, 36};
    EXPECT_EQ(sample_once(params, nothing), 36);
    EXPECT_EQ(sample_once(params, nothing, 0, {0, 0x101, 0, 0}), 40);
    EXPECT_EQ(sample_once(params, nothing, 0, {0, 0, 0, 0}), 0);
  }
}

TEST(Sampler, MaskRemovesTokens) {
  std::vector<float> logits(70, 0.0f);
  logits[0] = 50.0f;
  EXPECT_EQ(reachable(SamplingParams{}, logits, {0x6u, 0, 0x20u}), (std::set<int32_t>{1, 2, 69}));
}

TEST(Sampler, AllowedIds) {
  SamplingParams params;
  params.allowed_token_ids = {3, 1, 3};
  EXPECT_EQ(reachable(params, {9, 1, 9, 1, 9}), (std::set<int32_t>{1, 3}));
  // The grammar wins where the two exclude each other; otherwise both hold.
  EXPECT_EQ(reachable(params, {9, 1, 9, 1, 9}, {0b00101}), (std::set<int32_t>{0, 2}));
  EXPECT_EQ(reachable(params, {9, 1, 9, 1, 9}, {0b01001}), (std::set<int32_t>{3}));
}

TEST(Sampler, BadWordsAreNeverCompleted) {
  SamplingParams params = greedy();
  params.bad_words = {{0}, {1, 2}, {1, 2, 3}, {2, 1, 2}};
  Sampler sampler(params, 4);
  EXPECT_FALSE(sampler.draws_from_raw_logits());
  const auto next = [&](std::vector<float> logits) { return sampler.sample(logits, 0); };
  EXPECT_EQ(next({9, 3, 2, 1}), 1) << "one of one token never comes";
  sampler.add_prompt(std::vector<int32_t>{1});
  EXPECT_EQ(next({9, 3, 4, 1}), 2) << "the prompt is no part of the answer";
  sampler.add_output(1);
  EXPECT_EQ(next({9, 3, 4, 1}), 1);
  sampler.add_output(3);
  EXPECT_EQ(next({9, 3, 4, 1}), 2);
  sampler.remove_output(3);
  EXPECT_EQ(next({9, 3, 4, 1}), 1) << "as if the draft had never been";
  params.bad_words = {{0}, {1}};
  EXPECT_EQ(sample_once(params, {5, 9, 1}, 0, {0b011}), 1) << "a grammar wins";
  params.logit_bias = {{0, 100.0f}};
  EXPECT_EQ(sample_once(params, {5, 9, 1}), 2);
}

TEST(Sampler, BiasIsAddedBeforeTheChoice) {
  SamplingParams params = greedy();
  params.logit_bias = {{2, 3.5f}, {0, -100.0f}};
  EXPECT_EQ(sample_once(params, {9, 3, 0}), 2);
  params.logit_bias = {{2, 2.0f}, {2, 2.0f}};
  EXPECT_EQ(sample_once(params, {1, 3, 0}), 2);
  EXPECT_EQ(sample_once(params, {1, 3, 0}, 0, {0b011}), 1);  // a bias does not bring back what the grammar forbids
}

TEST(Sampler, MinTokensHoldsStopsOff) {
  SamplingParams params = greedy();
  params.min_tokens = 2;
  params.stop_token_ids = {1, 1};
  Sampler sampler(params, 3);
  const auto next = [&](const std::vector<uint32_t>& mask = {}) {
    std::vector<float> logits = {0, 9, 5};
    return sampler.sample(logits, 0, mask);
  };
  EXPECT_EQ(next(), 2);
  EXPECT_EQ(next({0b010}), 1);  // the grammar allows the stop token alone: it wins
  sampler.add_output(2);
  EXPECT_EQ(next(), 2);
  sampler.add_output(2);
  EXPECT_EQ(next(), 1);
  sampler.remove_output(2);
  EXPECT_EQ(next(), 2);
}

TEST(Sampler, PenaltyArithmetic) {
  SamplingParams params = greedy();
  params.repetition_penalty = 2.0f;
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.25f;
  Sampler sampler(params, 6);
  sampler.add_prompt(std::vector<int32_t>{1, 0, 0, 2, -5, 77});  // ids outside the vocabulary are ignored
  for (const int32_t id : {2, 3, 3, 4}) sampler.add_output(id);
  std::vector<float> logits = {4.0f, -4.0f, 4.0f, -4.0f, 0.0f, 4.0f};
  sampler.sample(logits, 0);
  EXPECT_EQ(logits[0], 2.0f);                  // prompt only: no count
  EXPECT_EQ(logits[1], -8.0f);                 // negative: multiplied
  EXPECT_EQ(logits[2], 2.0f - 0.5f - 0.25f);   // prompt and output: penalised once
  EXPECT_EQ(logits[3], -8.0f - 1.0f - 0.25f);  // twice in the output
  EXPECT_EQ(logits[4], 0.0f - 0.5f - 0.25f);
  EXPECT_EQ(logits[5], 4.0f);

  sampler.remove_output(3);
  sampler.remove_output(4);
  logits = {4.0f, -4.0f, 4.0f, -4.0f, 0.0f, 4.0f};
  sampler.sample(logits, 0);
  EXPECT_EQ(logits[3], -8.0f - 0.5f - 0.25f);
  EXPECT_EQ(logits[4], 0.0f);
}

TEST(Sampler, PenaltiesWithoutRepetitionLeaveThePromptAlone) {
  SamplingParams params = greedy();
  params.presence_penalty = -1.5f;
  Sampler sampler(params, 3);
  sampler.add_prompt(std::vector<int32_t>{0});
  sampler.add_output(2);
  std::vector<float> logits = {1.0f, 0.0f, -0.25f};
  EXPECT_EQ(sampler.sample(logits, 0), 2);
  EXPECT_EQ(logits[0], 1.0f);
  EXPECT_EQ(logits[2], 1.25f);
}

TEST(Sampler, TokenDependsOnSeedPositionAndChoiceAlone) {
  std::mt19937 random(23);
  std::normal_distribution<float> normal;
  std::vector<float> logits(2000);
  for (float& z : logits) z = normal(random);
  SamplingParams params;
  params.seed = 42;
  // A sampler with a history, and one that is asked out of order, agree with a fresh one.
  Sampler used(params, 2000);
  int different = 0;
  for (int64_t position = 99; position >= 0; --position) {
    std::vector<float> row = logits;
    const int32_t token = used.sample(row, position);
    used.add_output(token);
    EXPECT_EQ(token, sample_once(params, logits, position));
    SamplingParams other = params;
    other.choice_index = 1;
    if (sample_once(other, logits, position) != token) ++different;
    other = params;
    other.seed = 43;
    if (sample_once(other, logits, position) != token) ++different;
  }
  EXPECT_GT(different, 180);
}

}  // namespace
}  // namespace deepinfer
