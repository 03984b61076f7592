#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "sampling/sampler.h"

namespace deepinfer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Logprobs, AgreesWithADirectSum) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 5.0f);
  std::vector<float> logits(1003);
  for (float& z : logits) z = normal(random);
  double sum = 0.0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z));
  for (const int32_t v : {0, 17, 1002}) {
    EXPECT_NEAR(logprob_of(logits, v).logprob, static_cast<double>(logits[v]) - std::log(sum), 1e-6);
    EXPECT_EQ(logprob_of(logits, v).token, v);
  }
  const auto all = top_logprobs(logits, 1003);
  ASSERT_EQ(all.size(), 1003u);
  double mass = 0.0;
  for (size_t i = 0; i < all.size(); ++i) {
    const TokenLogprob one = logprob_of(logits, all[i].token);
    EXPECT_EQ(one.logprob, all[i].logprob);
    EXPECT_EQ(one.rank, all[i].rank);
    EXPECT_GE(all[i == 0 ? 0 : i - 1].logprob, all[i].logprob);
    mass += std::exp(static_cast<double>(all[i].logprob));
  }
  EXPECT_NEAR(mass, 1.0, 1e-6);
}

TEST(Logprobs, RanksAndTies) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -kInf, kNan, 2.0f};
  const auto top = top_logprobs(logits, 5);
  const int32_t tokens[] = {1, 3, 2, 6, 0};
  const int64_t ranks[] = {1, 1, 3, 3, 5};
  ASSERT_EQ(top.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(top[i].token, tokens[i]);
    EXPECT_EQ(top[i].rank, ranks[i]);
    EXPECT_EQ(logprob_of(logits, tokens[i]).rank, ranks[i]);
  }
  EXPECT_EQ(logprob_of(logits, 4).logprob, -kInf);
  EXPECT_EQ(logprob_of(logits, 4).rank, 6);
  EXPECT_EQ(logprob_of(logits, 5).logprob, -kInf);
  EXPECT_EQ(logprob_of(logits, 5).rank, 6);
}

TEST(Logprobs, Extremes) {
  EXPECT_TRUE(top_logprobs(std::vector<float>{1.0f}, 0).empty());
  EXPECT_TRUE(top_logprobs(std::vector<float>{1.0f}, -1).empty());
  EXPECT_TRUE(top_logprobs({}, 5).empty());
  const auto one = top_logprobs(std::vector<float>{1.0f}, 20);  // more than there are
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].logprob, 0.0f);

  const std::vector<float> nothing(10, -kInf);
  const auto none = top_logprobs(nothing, 3);
  ASSERT_EQ(none.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(none[static_cast<size_t>(i)].token, i);
    EXPECT_EQ(none[static_cast<size_t>(i)].logprob, -kInf);
    EXPECT_EQ(none[static_cast<size_t>(i)].rank, 1);
  }
  EXPECT_EQ(logprob_of(std::vector<float>{3e38f, -3e38f}, 0).logprob, 0.0f);
  EXPECT_NEAR(logprob_of(std::vector<float>{kInf, 0.0f, kInf}, 2).logprob, std::log(0.5), 1e-7);
}

}  // namespace
}  // namespace deepinfer
