// Where the warpgroup kernels put things, against what the PTX manual says of the products' operands, on the host.

#include "ops/cuda/wide_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace deepinfer::cuda {
namespace {

// The manual's swizzle: bits 4 to 6 of an address are exchanged with bits 7 to 9 added without carry.
uint32_t swizzle(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

struct Field {
  uint32_t address, leading, stride, swizzle;
};
Field fields(uint64_t descriptor) {
  return {static_cast<uint32_t>(descriptor & 0x3fff) << 4, static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4,
          static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4, static_cast<uint32_t>(descriptor >> 62)};
}

// Where the units find column k of 16 of row n: rows of 128 bytes, eight of them together.
uint32_t along(uint64_t descriptor, uint32_t n, uint32_t k) {
  const Field f = fields(descriptor);
  return swizzle(f.address + n % 8 * 128 + n / 8 * f.stride + k * 2);
}
// The same if a row of 128 bytes has one of the 16 columns for 64 rows.
uint32_t across(uint64_t descriptor, uint32_t n, uint32_t k) {
  const Field f = fields(descriptor);
  return swizzle(f.address + n % 64 * 2 + n / 64 * f.leading + k % 8 * 128 + k / 8 * f.stride);
}

TEST(WideLayout, DescriptorHasTheManualsFields) {
  const Field f = fields(swizzled_matrix(0x2f40, kEightRows, 4096));
  EXPECT_EQ(f.address, 0x2f40u);
  EXPECT_EQ(f.leading, 4096u);
  EXPECT_EQ(f.stride, 1024u);
  EXPECT_EQ(f.swizzle, 1u);  // 128 bytes
  EXPECT_EQ(swizzled_matrix(227 << 10, kEightRows, 16) >> 14 & 3, 0u);
}

// The columns that lane t has in product `product` of a chunk of 128, in the order of its A registers: columns 2 t, 2 t + 1, 2 t
// + 8 and 2 t + 9 of the operand. A lane loads 16 bytes of a row: 16 columns of FP8 of each 64, 32 of FP4; of each eight it
// widens, the first product has 0 4 1 5 and the second 2 6 3 7.
std::vector<uint32_t> columns_of(bool fp8, uint32_t product, uint32_t t) {
  const uint32_t eight = fp8 ? product / 4 * 64 + t * 16 + product % 4 / 2 * 8 : t * 32 + product / 2 * 8;
  const uint32_t first = eight + product % 2 * 2;
  return {first, first + 4, first + 1, first + 5};
}

TEST(WideLayout, QueriesMeetTheColumnsOfTheirKeys) {
  for (const uint32_t rows : {64u, 128u}) {
    for (const bool fp8 : {false, true}) {
      // What order_queries writes: pairs of columns, by address.
      std::vector<int> memory(rows * 128, -1);  // bf16 places of both blocks
      for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t column = 0; column < 128; column += 8) {
          for (uint32_t pair = 0; pair < 4; ++pair) {
            const PairPlace p = pair_place(fp8, column, pair);
            const uint32_t at = p.block * rows * kSwizzledRow + swizzled_piece(row, p.piece) + p.word * 4;
            ASSERT_LT(at / 2 + 1, memory.size());
            ASSERT_EQ(memory[at / 2], -1);
            memory[at / 2] = static_cast<int>(row * 128 + column + pair);
            memory[at / 2 + 1] = static_cast<int>(row * 128 + column + pair + 4);
          }
        }
      }
      // What the units read.
      for (uint32_t product = 0; product < 8; ++product) {
        const uint64_t descriptor = swizzled_matrix(product_offset(product, rows), kEightRows, 16);
        for (uint32_t row = 0; row < rows; ++row) {
          for (uint32_t t = 0; t < 4; ++t) {
            const std::vector<uint32_t> columns = columns_of(fp8, product, t);
            for (uint32_t i = 0; i < 4; ++i) {
              const uint32_t k = 2 * t + i % 2 + i / 2 * 8;
              ASSERT_EQ(memory[along(descriptor, row, k) / 2], static_cast<int>(row * 128 + columns[i]))
                  << (fp8 ? "FP8" : "FP4") << " product " << product << ", row " << row << ", column " << k;
            }
          }
        }
      }
    }
  }
}

TEST(WideLayout, StoresOfQueriesMeetInFewBanks) {
  // As order_queries and load_rows hand eights to the lanes of a warp: four rows, eight eights of each.
  for (uint32_t part = 0; part < 2; ++part) {
    for (uint32_t pair = 0; pair < 4; ++pair) {
      std::set<uint32_t> fp4, fp8;
      for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t column = lane % 8 / 2 * 32 + part * 16 + lane % 2 * 8;
        const auto bank = [&](const PairPlace& p) { return (swizzled_piece(lane / 8, p.piece) + p.word * 4) / 4 % 32; };
        fp4.insert(bank(pair_place(false, column, pair)));
        fp8.insert(bank(pair_place(true, column, pair)));
      }
      EXPECT_EQ(fp4.size(), 32u);
      EXPECT_EQ(fp8.size(), 16u);
    }
  }
}

TEST(WideLayout, ValuesOfAStageAreFoundAcross) {
  // 32 keys by 256 dims, in blocks of 64 dims; two warpgroups have two blocks each; 16 keys a product.
  constexpr uint32_t kKeys = 32, kDims = 256, kBlock = kKeys * kSwizzledRow;
  std::vector<int> memory(kKeys * kDims, -1);
  for (uint32_t key = 0; key < kKeys; ++key) {
    for (uint32_t dim = 0; dim < kDims; dim += 8) {
      const uint32_t at = dim / 64 * kBlock + swizzled_piece(key, dim % 64 / 8);
      for (uint32_t i = 0; i < 8; ++i) {
        ASSERT_EQ(memory[at / 2 + i], -1);
        memory[at / 2 + i] = static_cast<int>(key * kDims + dim + i);
      }
    }
  }
  for (uint32_t group = 0; group < 2; ++group) {
    for (uint32_t step = 0; step < 2; ++step) {
      const uint64_t descriptor = swizzled_matrix(group * 2 * kBlock + step * 16 * kSwizzledRow, kEightRows, kBlock);
      for (uint32_t dim = 0; dim < 128; ++dim) {
        for (uint32_t k = 0; k < 16; ++k)
          ASSERT_EQ(memory[across(descriptor, dim, k) / 2], static_cast<int>((step * 16 + k) * kDims + group * 128 + dim));
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda
