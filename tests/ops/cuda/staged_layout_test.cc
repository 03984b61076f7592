// How blocks of the staged kernels divide their shared memory, on the host.

#include "ops/cuda/staged_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer::cuda {
namespace {

const std::vector<int> kInputs = {32, 64, 80, 96, 112, 128};

TEST(StagedLayout, PartsLieBehindEachOtherInWhatABlockMayHave) {
  for (const int inputs : kInputs) {
    SCOPED_TRACE(inputs);
    const StagedLayout s = staged_layout(inputs);
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
    for (const int n : kInputs) {
      if (n <= inputs) {
        EXPECT_GE(s.group_work, static_cast<uint32_t>(n / 4 - kept_sums(n)) * 128 * 16);
      }
    }
  }
}

// While a chunk is multiplied, the next one is on its way: FP4 has two stages of inputs to one of weights.
TEST(StagedLayout, AChunkOfEitherFormatFitsBesideTheOneAtWork) {
  for (const int inputs : kInputs) {
    const StagedLayout s = staged_layout(inputs);
    EXPECT_GE(s.weight_stages, 2) << inputs;
    EXPECT_GE(s.input_stages, 4) << inputs;
  }
  // With few inputs memory is the limit: what is under way of 132 blocks covers more than a microsecond of 4.3 TB/s.
  EXPECT_GE(static_cast<uint32_t>(staged_layout(32).weight_stages) * kStagedWeights, 96u << 10);
}

TEST(StagedLayout, CountsAreRoundedUpToKernels) {
  for (int count = 1; count <= kMostStagedInputs; ++count) {
    EXPECT_GE(staged_inputs(count), count);
    EXPECT_EQ(staged_inputs(staged_inputs(count)), staged_inputs(count));
  }
  EXPECT_EQ(staged_inputs(kMostStagedInputs), kMostStagedInputs);
  std::vector<int> sizes;
  for (int inputs = staged_inputs(1); inputs <= kMostStagedInputs; inputs = staged_inputs(inputs + 1)) sizes.push_back(inputs);
  EXPECT_EQ(sizes, kInputs);
  for (const int inputs : kInputs) {
    EXPECT_EQ(inputs % 16, 0);  // copies come in sixteens
    EXPECT_TRUE(kept_sums(inputs) > 0 && kept_sums(inputs) <= inputs / 4);
  }
}

}  // namespace
}  // namespace deepinfer::cuda
