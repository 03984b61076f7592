#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/fixed_math.h"
#include "base/philox.h"
#include "sampling/sampler.h"

namespace deepinfer {
namespace {

// Golden words and Gumbels: spec/sampling §4.2.
TEST(Noise, GoldenWords) {
  const uint32_t position0[] = {0x2090b348, 0xda7cf0ab, 0x4401906f, 0xcbca470e, 0x9eeede35, 0x1cbe137c, 0xfa277093, 0x147edd50};
  const uint32_t position1[] = {0x70c51b59, 0x3fbee9a5, 0x3a338d15, 0x56fb64a6, 0x81327a55, 0xc78135df, 0x21721524, 0x5bf2ff8b};
  const uint32_t far[] = {0x8a635606, 0xea1fff3b, 0xd2654d51, 0xe2d6287d, 0xf58d783d, 0xd5feec6c, 0x52e901de, 0xedb4a37d};
  for (int32_t id = 0; id < 8; ++id) {
    EXPECT_EQ(noise_word(1234, 0, id), position0[id]) << id;
    EXPECT_EQ(noise_word(1234, 1, id), position1[id]) << id;
    EXPECT_EQ(noise_word(0xdeadbeef12345678, 5000000000, id), far[id]) << id;
  }
  EXPECT_EQ(noise_word(1234, 7, 129279), 0xe4394ceau);
  EXPECT_EQ(noise_word(1234, 7, 0, NoiseStream::kAcceptance), 0xb606f69au);
}

TEST(Noise, GoldenGumbels) {
  const double expected[] = {1.994674, -0.652595, 1.175165, -0.463675, 0.030689, 2.127845, -1.329573, 2.483535};
  for (int32_t id = 0; id < 8; ++id) EXPECT_NEAR(gumbel(noise_word(1234, 0, id)), expected[id], 6e-7) << id;
}

TEST(Noise, GumbelAtTheEnds) {
  EXPECT_NEAR(gumbel(0), 22.8738, 1e-3);                         // the largest
  EXPECT_NEAR(gumbel(0xffffffffu), -std::log(24 * kLn2), 1e-5);  // u floored at 1 - 2^-24
  EXPECT_EQ(gumbel(0xffffffffu), gumbel(0xffffff80u));
  float last = gumbel(0);
  for (uint64_t w = 1; w < (1ull << 32); w += 9999991) {
    const float g = gumbel(static_cast<uint32_t>(w));
    EXPECT_LE(g, last);
    last = g;
  }
}

TEST(Noise, StreamsAndChoicesDiffer) {
  for (int32_t id = 0; id < 100; ++id) {
    EXPECT_NE(noise_word(1, 5, id), noise_word(1, 5, id, NoiseStream::kDraft));
    EXPECT_NE(noise_word(1, 5, id), noise_word(1, 5, id, NoiseStream::kTarget, 1));
    EXPECT_NE(noise_word(1, 5, id, NoiseStream::kDraft), noise_word(1, 5, id, NoiseStream::kTarget, 1));
  }
}

TEST(FixedMath, AgreesWithTheLibrary) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    const double u = std::ldexp(static_cast<double>(random() >> 31) + 0.5, -33 - static_cast<int>(random() % 30));
    EXPECT_NEAR(fixed_log(u), std::log(u), 1e-15 * std::fabs(std::log(u)));
    const double v = 1.0 - std::ldexp(static_cast<double>(random() >> 31) + 0.5, -34);  // close to 1 as well
    EXPECT_NEAR(fixed_log(v), std::log1p(v - 1.0), 1e-15 * std::fabs(std::log(v)));
    const double x = -700.0 * static_cast<double>(random() >> 11) * 0x1p-53;
    EXPECT_NEAR(fixed_exp(x), std::exp(x), 1e-15 * std::exp(x));
    EXPECT_NEAR(fixed_exp(x * 0.01), std::exp(x * 0.01), 1e-15 * std::exp(x * 0.01));
  }
  EXPECT_EQ(fixed_log(1.0), 0.0);
  EXPECT_EQ(fixed_exp(0.0), 1.0);
  EXPECT_EQ(fixed_exp(-1e9), 0.0);
  EXPECT_EQ(fixed_exp(-std::numeric_limits<double>::infinity()), 0.0);
}

}  // namespace
}  // namespace deepinfer
