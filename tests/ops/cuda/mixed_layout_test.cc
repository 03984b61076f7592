// How products of steps of some rows are cut, and what a block has room for, without a GPU.

#include "ops/cuda/mixed_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace deepinfer::cuda {
namespace {

TEST(MixedLayout, HasAtLeastThreeStagesInSharedMemory) {
  for (const bool bf16 : {false, true}) {
    for (const int inputs : kMixedInputs) {
      const MixedLayout s = mixed_layout(inputs, bf16);
      EXPECT_GE(s.stages, bf16 && inputs == 128 ? 2 : 3) << inputs;
      EXPECT_LE(s.bytes, WidenedLayout::kMost);
      EXPECT_EQ(s.weight_bytes % 1024, 0U);
      EXPECT_EQ(s.stage_bytes % 1024, 0U) << "the swizzle goes by addresses";
      EXPECT_EQ(inputs % 8, 0);
      EXPECT_GE(s.scales, static_cast<uint32_t>(s.stages) * s.stage_bytes);
      EXPECT_GE(s.outputs, s.scales + static_cast<uint32_t>(s.stages) * kMixedScales);
      EXPECT_EQ(s.outputs % 16, 0U);
      EXPECT_EQ(s.group_outputs % 16, 0U);
      EXPECT_GE(s.barriers, s.outputs + 2 * s.group_outputs);
      EXPECT_EQ(s.barriers % 8, 0U);
      EXPECT_EQ(s.bytes, s.barriers + static_cast<uint32_t>(s.stages) * 16);
    }
  }
}

TEST(MixedLayout, TilesAreOfSizesThatThereAreKernelsFor) {
  for (const bool bf16 : {false, true}) {
    for (const int64_t panels : {1, 10, 40, 64, 200, 256}) {
      for (int64_t rows = 1; rows < 800; ++rows) {
        const WidenedRows cut = mixed_rows(rows, panels, 5120, bf16);
        EXPECT_NE(std::find(std::begin(kMixedInputs), std::end(kMixedInputs), cut.inputs), std::end(kMixedInputs));
        EXPECT_LE(cut.block_rows, cut.inputs);
        EXPECT_EQ(cut.block_rows % 8, 0) << "rows of eight have one swizzle";
        EXPECT_GE(int64_t{cut.blocks} * cut.block_rows, rows);
        EXPECT_LT(int64_t{cut.blocks - 1} * cut.block_rows, rows) << "an empty tile";
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda
