// The order of arranged FP4 weights: every word gives the numbers that it gives as it comes.

#include "ops/cuda/fp4_order.h"

#include <gtest/gtest.h>

#include <bit>

#include "base/scalar_types.h"
#include "testing/random.h"

namespace deepinfer::cuda {
namespace {

void expect_same(uint32_t codes) {
  uint32_t want[4], got[4];
  spread_fp4(codes, want);
  spread_arranged_fp4(arrange_fp4(codes), got);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(got[i], want[i]) << std::hex << codes << ", pair " << i;
}

TEST(Fp4Order, GivesTheSameNumbers) {
  for (uint32_t half = 0; half < 1 << 16; ++half) {
    for (const uint32_t other : {0x0000u, 0xffffu, 0x8001u, 0x5a5au, half}) {
      ASSERT_NO_FATAL_FAILURE(expect_same(half | other << 16));
      ASSERT_NO_FATAL_FAILURE(expect_same(other | half << 16));
    }
  }
  testing::Random random(1);
  for (int i = 0; i < 1'000'000; ++i) ASSERT_NO_FATAL_FAILURE(expect_same(static_cast<uint32_t>(random.bits())));
}

TEST(Fp4Order, LosesNoBit) {
  uint32_t all = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const uint32_t out = arrange_fp4(uint32_t{1} << bit);
    EXPECT_EQ(std::popcount(out), 1);
    all |= out;
  }
  EXPECT_EQ(all, 0xffffffffu);
}

// Times 2^126, with which the products' scales begin, a spread code is its value.
TEST(Fp4Order, ASpreadCodeIsItsValue) {
  for (uint32_t code = 0; code < 16; ++code) {
    for (uint32_t place = 0; place < 8; ++place) {
      uint32_t r[4];
      spread_arranged_fp4(arrange_fp4(code << (4 * place)), r);
      const uint32_t bits = place < 4 ? r[place] & 0xffffu : r[place - 4] >> 16;
      EXPECT_EQ(std::bit_cast<float>(bits << 16) * 0x1p126f, e2m1_to_float(static_cast<uint8_t>(code)))
          << code << " at " << place;
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda
