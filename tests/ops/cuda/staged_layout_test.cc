// How blocks of the staged kernels divide their shared memory, on the host.

#include "ops/cuda/staged_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer::cuda {
namespace {

std::vector<int> sizes(bool fp8) {
  std::vector<int> all;
  for (int inputs = staged_inputs(1, fp8);; inputs = staged_inputs(inputs + 1, fp8)) {
    all.push_back(inputs);
    if (inputs == most_staged_inputs(fp8)) return all;
  }
}

TEST(StagedLayout, PartsLieBehindEachOtherInWhatABlockMayHave) {
  for (const bool fp8 : {false, true}) {
    for (const int inputs : sizes(fp8)) {
      SCOPED_TRACE(inputs);
      const StagedLayout s = staged_layout(inputs, fp8);
      EXPECT_EQ(s.inputs, inputs);
      EXPECT_EQ(s.input_bytes % 1024, 0u);  // blocks of swizzled rows
      EXPECT_EQ(s.weights, static_cast<uint32_t>(s.input_stages) * s.input_bytes);
      EXPECT_EQ(s.scales, s.weights + static_cast<uint32_t>(s.weight_stages) * kStagedWeights);
      EXPECT_EQ(s.work, s.scales + static_cast<uint32_t>(s.weight_stages) * kStagedScales);
      EXPECT_EQ(s.barriers, s.work + 2 * s.group_work);
      EXPECT_EQ(s.bytes, s.barriers + 4 * 8 * kMostStages);
      EXPECT_LE(s.bytes, kMostShared);
      for (const uint32_t at : {s.weights, s.scales, s.work, s.group_work, s.barriers}) EXPECT_EQ(at % 16, 0u);
      EXPECT_LE(s.weight_stages, kMostStages);
      EXPECT_LE(s.input_stages, kMostStages);
      // Outputs of a warpgroup, or what is not kept of the sums of every tile up to this size.
      EXPECT_GE(s.group_work, static_cast<uint32_t>(inputs * kStagedOutStride * 2));
      for (const int n : sizes(fp8)) {
        if (n <= inputs) {
          EXPECT_GE(s.group_work, static_cast<uint32_t>(n / 4 - kept_sums(n)) * 128 * 16);
        }
      }
    }
  }
}

// While a chunk is multiplied, others are on their way: more than what memory takes until it answers.
TEST(StagedLayout, ChunksFitBesideTheOneAtWork) {
  for (const bool fp8 : {false, true}) {
    for (const int inputs : sizes(fp8)) {
      const StagedLayout s = staged_layout(inputs, fp8);
      EXPECT_GE(s.weight_stages, 3) << inputs;
      EXPECT_EQ(s.input_stages, (fp8 ? 1 : 2) * s.weight_stages) << inputs;
      EXPECT_GE(static_cast<uint32_t>(s.weight_stages) * kStagedWeights + static_cast<uint32_t>(s.input_stages) * s.input_bytes,
                96u << 10);
    }
  }
}

TEST(StagedLayout, CountsAreRoundedUpToKernels) {
  for (const bool fp8 : {false, true}) {
    for (int count = 1; count <= most_staged_inputs(fp8); ++count) {
      EXPECT_GE(staged_inputs(count, fp8), count);
      EXPECT_EQ(staged_inputs(staged_inputs(count, fp8), fp8), staged_inputs(count, fp8));
    }
    EXPECT_EQ(staged_inputs(most_staged_inputs(fp8), fp8), most_staged_inputs(fp8));
    for (const int inputs : sizes(fp8)) {
      EXPECT_EQ(inputs % 16, 0);  // copies come in sixteens
      EXPECT_TRUE(kept_sums(inputs) > 0 && kept_sums(inputs) <= inputs / 4);
    }
  }
}

TEST(StagedLayout, TilesOfManyRowsAreLargeAndThoseOfFewAreAsTheyAre) {
  EXPECT_EQ(staged_fp8_tile(8192, 128), most_staged_inputs(true));
  EXPECT_EQ(staged_fp8_tile(20, 128), 32);
  EXPECT_EQ(staged_fp8_tile(60, 100), 64);  // one of 64 for every panel at once
}

}  // namespace
}  // namespace deepinfer::cuda
