// The order of arranged FP4 weights: every word gives the numbers that it gives as it comes, and has a place of its own.

#include "ops/cuda/fp4_order.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

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

// Every group of columns and every scale has a place of its own; those of a panel lie where its rows would, those of whole chunks
// in the order of a lane's reads.
TEST(Fp4Order, ChunksOfPanelsLieInOnePiece) {
  for (const int64_t in : {32, 96, 128, 160, 288, 2304, 5120}) {
    const int64_t out = 96;
    std::vector<int> codes(static_cast<size_t>(out * in / 32)), scales(codes.size());
    for (int64_t row = 0; row < out; ++row) {
      for (int64_t group = 0; group < in / 32; ++group) {
        const int64_t place = fp4_codes_place(in, row, group);
        const int64_t scale = fp4_scale_place(in, row, group);
        ASSERT_EQ(place % 16, 0);
        ASSERT_EQ(place / (16 * in), row / 32);
        ASSERT_EQ(scale / in, row / 32);
        ++codes.at(static_cast<size_t>(place / 16));
        ++scales.at(static_cast<size_t>(scale));
        const int64_t chunk = group / 4, lane = row % 8 * 4 + group % 4;
        ASSERT_EQ(place % (16 * in) / kFp4ChunkBytes, chunk);
        ASSERT_EQ(scale % in / kFp4ChunkScales, chunk);
        if ((chunk + 1) * kFp4ChunkColumns > in) continue;
        EXPECT_EQ(place % (16 * in) % kFp4ChunkBytes, row % 32 / 8 * 512 + lane * 16);
        EXPECT_EQ(scale % in % kFp4ChunkScales, lane * 4 + row % 32 / 8);
      }
    }
    for (const int n : codes) ASSERT_EQ(n, 1);
    for (const int n : scales) ASSERT_EQ(n, 1);
  }
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
