// Scratch that launches use and plans count, without a GPU.

#include "ops/cuda/scratch_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/staged_layout.h"

namespace deepinfer::cuda {
namespace {

const std::vector<ExpertShape> kShapes = {{384, 6, 5120, 2304}, {384, 6, 5120, 288}, {16, 2, 256, 64},
                                          {4, 4, 64, 32},       {300, 6, 160, 96},   {1, 1, 32, 32}};

// Every pair has a place, whoever chooses which expert.
TEST(ScratchSizes, TilesHoldEveryPair) {
  for (const ExpertShape& shape : kShapes) {
    for (int64_t rows = 1; rows < 3000; rows += rows < 200 ? 1 : 37) {
      const ExpertSizes s = expert_sizes(shape, rows);
      EXPECT_EQ(s.pairs, rows * (shape.topk + 1));
      // At worst every expert in use has a last tile with one pair in it.
      const int64_t routed = rows * shape.topk;
      const int64_t used = std::min(shape.experts, routed);
      const int64_t worst = used + (routed - used) / s.tile_inputs + (rows + s.tile_inputs - 1) / s.tile_inputs;
      EXPECT_GE(s.tile_count, worst) << rows << " rows";
      EXPECT_GE(s.shared_tiles * s.tile_inputs, rows);
      EXPECT_GE(s.input_values, rows * shape.hidden * (s.wide ? 2 : 1));
      EXPECT_GE(s.hidden_values, s.pairs * shape.inner);
      EXPECT_EQ(s.output_values, s.pairs * shape.hidden);
    }
  }
}

// The same of the kernels for weights in panels, before the others or beside them.
TEST(ScratchSizes, PanelTilesHoldEveryPair) {
  bool some = false;
  for (const ExpertShape& shape : kShapes) {
    for (int64_t rows = 1; rows < 9000; rows += rows < 600 ? 1 : 61) {
      const ExpertSizes s = expert_sizes(shape, rows, true, true, true);
      some |= s.panels;
      if (!s.panels) {
        EXPECT_EQ(s.tile_inputs, expert_sizes(shape, rows, true, true).tile_inputs);
        continue;
      }
      EXPECT_TRUE(s.staged && s.wide && !s.streamed);
      EXPECT_NE(std::ranges::find(kPanelInputs, s.tile_inputs), std::end(kPanelInputs)) << "no such kernel";
      EXPECT_EQ(s.shared_inputs, staged_inputs(s.shared_inputs, true)) << "no such kernel";
      EXPECT_LE(rows * shape.topk / shape.experts, s.tile_inputs) << "most experts have two tiles";
      const int64_t routed = rows * shape.topk;
      const int64_t used = std::min(shape.experts, routed);
      EXPECT_GE(s.tile_count, used + (routed - used) / s.tile_inputs + s.shared_tiles);
      EXPECT_GE(s.shared_tiles * s.shared_inputs, rows);
    }
    const ExpertSizes most = most_expert_sizes(shape, 1200, true, true, true);
    for (int64_t rows = 1; rows <= 1200; ++rows) {
      const ExpertSizes s = expert_sizes(shape, rows, true, true, true);
      EXPECT_TRUE(most.tile_count >= s.tile_count && most.input_values >= s.input_values && most.hidden_values >= s.hidden_values)
          << rows << " rows";
    }
  }
  EXPECT_TRUE(some);
  EXPECT_TRUE(expert_sizes(kShapes[0], 256, true, true, true).streamed);
  EXPECT_EQ(expert_sizes(kShapes[0], 512, true, true, true).tile_inputs, kPanelInputs[0]);
  EXPECT_EQ(expert_sizes(kShapes[0], 4096, true, true, true).tile_inputs, kPanelInputs[1]);
  EXPECT_EQ(expert_sizes(kShapes[0], 8192, true, true, true).tile_inputs, kPanelInputs[2]);
}

TEST(ScratchSizes, StagedTilesHoldEveryPair) {
  bool some = false;
  bool none = false;
  for (const ExpertShape& shape : kShapes) {
    for (int64_t rows = 1; rows < 9000; rows += rows < 200 ? 1 : 61) {
      const ExpertSizes s = expert_sizes(shape, rows, true);
      (s.staged ? some : none) = true;
      if (!s.staged) {
        EXPECT_EQ(s.tile_inputs, expert_sizes(shape, rows).tile_inputs);
        continue;
      }
      EXPECT_TRUE(s.wide);
      EXPECT_EQ(s.tile_inputs, staged_inputs(s.tile_inputs, false)) << "no such kernel";
      EXPECT_EQ(s.shared_inputs, staged_inputs(s.shared_inputs, true)) << "no such kernel";
      EXPECT_GE(s.shared_tiles * s.shared_inputs, rows);
      const int64_t routed = rows * shape.topk;
      const int64_t used = std::min(shape.experts, routed);
      EXPECT_GE(s.tile_count, used + (routed - used) / s.tile_inputs + s.shared_tiles);
      EXPECT_GE(s.input_values, 2 * rows * shape.hidden);
      const ExpertSizes most = rows < 600 ? most_expert_sizes(shape, rows, true) : s;
      EXPECT_GE(most.tile_count, s.tile_count);
      EXPECT_GE(most.input_values, s.input_values);
    }
  }
  EXPECT_TRUE(some && none);
  EXPECT_FALSE(expert_sizes(kShapes[0], 1, true).staged);
  EXPECT_FALSE(expert_sizes(kShapes[0], 512, true).staged);  // few pairs an expert
  EXPECT_TRUE(expert_sizes(kShapes[0], 1024, true).staged);
}

// The same of the kernels for experts of a few tokens each, alone and before staged ones.
TEST(ScratchSizes, StreamedTilesHoldEveryPair) {
  bool some = false;
  for (const ExpertShape& shape : kShapes) {
    for (int64_t rows = 1; rows < 3000; rows += rows < 200 ? 1 : 37) {
      for (const bool staged : {false, true}) {
        const ExpertSizes s = expert_sizes(shape, rows, staged, true);
        some |= s.streamed;
        EXPECT_FALSE(s.streamed && (s.staged || s.wide));
        if (!s.streamed) {
          EXPECT_EQ(s.tile_inputs, expert_sizes(shape, rows, staged).tile_inputs);
          continue;
        }
        EXPECT_LE(rows * shape.topk / shape.experts, s.tile_inputs) << "most experts have two tiles";
        const int64_t routed = rows * shape.topk;
        const int64_t used = std::min(shape.experts, routed);
        EXPECT_GE(s.tile_count, used + (routed - used) / s.tile_inputs + s.shared_tiles);
        EXPECT_GE(s.shared_tiles * s.shared_inputs, rows);
        EXPECT_EQ(s.input_values, rows * shape.hidden);
        EXPECT_EQ(s.hidden_values, s.pairs * shape.inner);
      }
    }
    const ExpertSizes most = most_expert_sizes(shape, 600, true, true);
    for (int64_t rows = 1; rows <= 600; ++rows) {
      const ExpertSizes s = expert_sizes(shape, rows, true, true);
      EXPECT_TRUE(most.tile_count >= s.tile_count && most.input_values >= s.input_values && most.hidden_values >= s.hidden_values)
          << rows << " rows";
    }
  }
  EXPECT_TRUE(some);
  EXPECT_FALSE(expert_sizes(kShapes[0], 2, false, true).streamed);
  EXPECT_TRUE(expert_sizes(kShapes[0], 4, true, true).streamed);
  EXPECT_FALSE(expert_sizes(kShapes[1], 16, true, true).streamed);
  EXPECT_TRUE(expert_sizes(kShapes[1], 32, true, true).streamed);
  EXPECT_TRUE(expert_sizes(kShapes[0], 512, false, true).streamed);
  EXPECT_TRUE(expert_sizes(kShapes[0], 2048, true, true).staged);
}

// A step of fewer rows can have more tiles: room for the largest step alone would grow under way.
TEST(ScratchSizes, RoomForTheLargestStepIsRoomForAll) {
  const ExpertShape release = kShapes[0];
  EXPECT_GT(expert_sizes(release, 703).tile_count, expert_sizes(release, 8192).tile_count);
  for (const ExpertShape& shape : kShapes) {
    for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{512}, int64_t{2100}}) {
      const ExpertSizes most = most_expert_sizes(shape, rows);
      for (int64_t r = 1; r <= rows; ++r) {
        const ExpertSizes s = expert_sizes(shape, r);
        ASSERT_TRUE(most.pairs >= s.pairs && most.tile_count >= s.tile_count && most.input_values >= s.input_values &&
                    most.hidden_values >= s.hidden_values && most.output_values >= s.output_values)
            << r << " of " << rows << " rows";
      }
    }
  }
}

TEST(ScratchSizes, ProductsAndCoefficientsGrowWithTheRows) {
  EXPECT_EQ(fp8_scratch(3, 8, 4096), 3 * 8 * 4096);  // output_lora of the release: 64 KiB a row
  EXPECT_EQ(fp8_scratch(2, 1, 130), 2 * 256);
  EXPECT_EQ(mix_slices_of(4, 5120), 40);
  EXPECT_EQ(hyper_mix_scratch(4, 5120, 7), 7 * 40 * 25);
  EXPECT_EQ(mix_slices_of(1, 32), 1);
  EXPECT_EQ(ordered_columns(InputOrder::kLanes, 130), 130);
  EXPECT_EQ(ordered_columns(InputOrder::kWideFp4, 130), 256);
}

// Launches have room for their sums, and a step of fewer rows wants no more.
TEST(ScratchSizes, SplitProductsAreCutToTheirRoom) {
  EXPECT_EQ(split_pass_rows(320 * 16), 128);  // wo_b of the release
  EXPECT_EQ(split_pass_rows(80 * 10), 960);   // wq_a
  EXPECT_EQ(split_pass_rows(1600 * 12), 0);   // the Engram's keys and values
  EXPECT_EQ(split_scratch(17, 320 * 16), 24 * 16 * 320 * 16);
  for (int64_t parts : {1, 132, 800, 4096, 5120, 12'288, 12'289, 100'000}) {
    int64_t most = 0;
    for (int64_t rows = 1; rows < 600; ++rows) {
      const int64_t size = split_scratch(rows, parts);
      EXPECT_GE(size, most) << rows << " rows, " << parts << " parts";
      EXPECT_LE(size, kMostSplitFloats);
      EXPECT_GE(size, std::min({rows, kMostSplitRows, split_pass_rows(parts)}) * 16 * parts);
      most = size;
    }
  }
  EXPECT_GT(split_scratch(1, 12'288), 0);
  EXPECT_EQ(split_scratch(256, 12'289), 0);
}

// A rehearsal asks for the most rows alone, though few rows want the sums of every segment.
TEST(ScratchSizes, TheRouterNeverWantsMoreForFewerRows) {
  for (int64_t hidden : {64, 512, 513, 5120, 8192}) {
    int64_t most = 0;
    for (int64_t rows = 1; rows < 300; ++rows) {
      const int64_t size = route_scratch(rows, 384, hidden);
      EXPECT_GE(size, most) << rows << " rows of " << hidden;
      EXPECT_GE(size, 384 * rows * (rows <= kFewRows ? segment_count(hidden) : 1)) << rows << " rows of " << hidden;
      most = size;
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda
