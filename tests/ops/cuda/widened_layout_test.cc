// How products of many rows are cut, and where their operands lie, without a GPU.

#include "ops/cuda/widened_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace deepinfer::cuda {
namespace {

TEST(WidenedLayout, FillsSharedMemoryWithAtLeastFourStages) {
  for (const int inputs : kWidenedInputs) {
    const WidenedLayout s = widened_layout(inputs);
    EXPECT_GE(s.stages, 4) << inputs;
    EXPECT_LE(s.bytes, WidenedLayout::kMost);
    EXPECT_EQ(s.stage_bytes % 1024, 0U) << "the swizzle goes by addresses";
    EXPECT_EQ(s.outputs, static_cast<uint32_t>(s.stages) * s.stage_bytes);
    EXPECT_EQ(s.barriers, s.outputs + 2 * s.group_outputs);
    EXPECT_LE(s.barriers + static_cast<uint32_t>(s.stages) * 16, s.bytes);
    EXPECT_EQ(s.group_outputs % 16, 0U);
  }
}

TEST(WidenedLayout, RowsAreCutIntoEqualTiles) {
  for (int64_t rows = 1; rows < 9000; rows += rows < 300 ? 1 : 53) {
    for (const int inputs : kWidenedInputs) {
      const WidenedRows cut = cut_rows(rows, inputs);
      EXPECT_LE(cut.block_rows, inputs);
      EXPECT_EQ(cut.block_rows % 8, 0) << "rows of eight have one swizzle";
      EXPECT_GE(int64_t{cut.blocks} * cut.block_rows, rows);
      EXPECT_LT(int64_t{cut.blocks - 1} * cut.block_rows, rows) << "an empty tile";
    }
    const WidenedRows chosen = widened_rows(rows, 40, 8192);
    EXPECT_NE(std::find(std::begin(kWidenedInputs), std::end(kWidenedInputs), chosen.inputs), std::end(kWidenedInputs));
  }
}

// Every column of a row has a place of its own, and those of a product lie in its 32 bytes.
TEST(WidenedLayout, ProductsHaveTheirColumnsTogether) {
  std::set<uint32_t> places;
  for (uint32_t quarter = 0; quarter < 4; ++quarter) {
    for (uint32_t product = 0; product < 4; ++product) {
      const uint32_t at = widened_place(quarter, product);
      EXPECT_EQ(at / 32, product);
      EXPECT_EQ(at % 8, 0U);
      places.insert(at);
    }
  }
  EXPECT_EQ(places.size(), 16U);
}

}  // namespace
}  // namespace deepinfer::cuda
