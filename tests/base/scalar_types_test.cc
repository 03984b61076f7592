#include "base/scalar_types.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer {
namespace {

TEST(ScalarTypes, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie: even below
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie: even above
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(3.4e38f))));
}

TEST(ScalarTypes, E4m3EveryByteSurvivesARoundTrip) {
  for (int b = 0; b < 256; ++b) {
    if ((b & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4m3_to_float(static_cast<uint8_t>(b))));
      continue;
    }
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(static_cast<uint8_t>(b))), b);
  }
}

// Between two neighbours: the midpoint goes to the even code, everything else to the nearer one.
TEST(ScalarTypes, E4m3RoundsToNearestEven) {
  for (int b = 0; b < 0x7e; ++b) {
    const float lo = e4m3_to_float(static_cast<uint8_t>(b));
    const float hi = e4m3_to_float(static_cast<uint8_t>(b + 1));
    const float mid = 0.5f * (lo + hi);
    EXPECT_EQ(float_to_e4m3(mid), (b & 1) == 0 ? b : b + 1) << b;
    EXPECT_EQ(float_to_e4m3(std::nextafter(mid, 0.0f)), b) << b;
    EXPECT_EQ(float_to_e4m3(std::nextafter(mid, 1000.0f)), b + 1) << b;
    EXPECT_EQ(float_to_e4m3(-mid), ((b & 1) == 0 ? b : b + 1) | 0x80) << b;
  }
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-460.0f), 0xfe);
}

TEST(ScalarTypes, E2m1Midpoints) {
  EXPECT_EQ(float_to_e2m1(0.25f), 0);
  EXPECT_EQ(float_to_e2m1(0.75f), 2);
  EXPECT_EQ(float_to_e2m1(1.25f), 2);
  EXPECT_EQ(float_to_e2m1(1.75f), 4);
  EXPECT_EQ(float_to_e2m1(2.5f), 4);
  EXPECT_EQ(float_to_e2m1(3.5f), 6);
  EXPECT_EQ(float_to_e2m1(5.0f), 6);
  EXPECT_EQ(float_to_e2m1(-5.1f), 15);
  for (int c = 0; c < 16; ++c) EXPECT_EQ(float_to_e2m1(e2m1_to_float(static_cast<uint8_t>(c))), c);
}

TEST(ScalarTypes, E8m0) {
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(e8m0_to_float(0xff)));
  EXPECT_EQ(e8m0_ceil(1.0f), 127);
  EXPECT_EQ(e8m0_ceil(1.0001f), 128);
}

// spec/backbone §12.1.
TEST(ScalarTypes, QuantiserVectors) {
  const std::vector<float> x = {0,  0.050048828125f,   -0.30078125f, 0.75f, 1.25f,  -1.75f, 2.5f,   3.5f,
                                -5, 0.01300048828125f, -0.8984375f,  6,     -7.25f, 10,     -0.25f, 0.00099945068359375f};
  float amax = 0;
  for (float v : x) amax = std::fmax(amax, std::fabs(v));

  const uint8_t cache_scale = fp4_cache_scale(amax);
  EXPECT_EQ(e4m3_to_float(cache_scale), 1.625f);
  const std::vector<int> cache_codes = {0, 0, 8, 1, 2, 10, 3, 4, 13, 0, 9, 6, 14, 7, 8, 0};
  const std::vector<int> index_codes = {0, 0, 8, 1, 1, 10, 2, 4, 12, 0, 9, 5, 14, 6, 8, 0};
  const uint8_t index_scale = fp4_index_scale(amax);
  EXPECT_EQ(index_scale, 128);
  const uint8_t act_scale = fp8_group_scale(amax);
  EXPECT_EQ(act_scale, 122);
  const std::vector<float> act = {0,  .05078125f,   -.3125f, .75f, 1.25f, -1.75f, 2.5f,  3.5f,
                                  -5, .0126953125f, -.875f,  6,    -7,    10,     -.25f, .0009765625f};
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(float_to_e2m1(x[i] / e4m3_to_float(cache_scale)), cache_codes[i]) << i;
    EXPECT_EQ(float_to_e2m1(x[i] / e8m0_to_float(index_scale)), index_codes[i]) << i;
    EXPECT_EQ(e4m3_to_float(float_to_e4m3(x[i] / e8m0_to_float(act_scale))) * e8m0_to_float(act_scale), act[i]) << i;
  }
}

}  // namespace
}  // namespace deepinfer
