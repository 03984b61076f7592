// How blocks of the staged kernels divide their shared memory, on the host.

#include "ops/cuda/staged_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer::cuda {
namespace {

const std::vector<int> kInputs = {16, 32, 64, 96, 128};

TEST(StagedLayout, PartsLieBehindEachOtherInWhatABlockMayHave) {
  for (const int inputs : kInputs) {
    SCOPED_TRACE(inputs);
    const StagedLayout s = staged_layout(inputs);
    EXPECT_EQ(s.inputs, inputs);
    EXPECT_EQ(s.input_bytes % 1024, 0u);  // blocks of swizzled rows
    EXPECT_EQ(s.weights, static_cast<uint32_t>(s.input_stages) * s.input_bytes);
    EXPECT_EQ(s.scales, s.weights + static_cast<uint32_t>(s.weight_stages) * kStagedWeights);
    EXPECT_EQ(s.work, s.scales + static_cast<uint32_t>(s.weight_stages) * kStagedScales);
    EXPECT_EQ(s.rows, s.work + 2 * s.half_work);
    EXPECT_EQ(s.barriers, s.rows + 2 * 8 * static_cast<uint32_t>(inputs));
    EXPECT_EQ(s.bytes, s.barriers + 4 * 8 * kMostStages);
    EXPECT_LE(s.bytes, kMostShared);
    for (const uint32_t at : {s.weights, s.scales, s.work, s.half_work, s.rows}) EXPECT_EQ(at % 16, 0u);
    EXPECT_LE(s.weight_stages, kMostStages);
    EXPECT_LE(s.input_stages, kMostStages);
    // Outputs of a half, or what is not kept of the sums of every tile up to this size.
    EXPECT_GE(s.half_work, static_cast<uint32_t>(inputs * kStagedOutStride * 2));
    for (const int n : kInputs) {
      if (inputs <= kMostFewInputs || n > inputs) continue;
      EXPECT_GE(s.half_work, static_cast<uint32_t>(2 * n / 8 - kept_sums(2, n)) * 128 * 16);
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
  for (const int inputs : {16, 32})
    EXPECT_GE(static_cast<uint32_t>(staged_layout(inputs).weight_stages) * kStagedWeights, 96u << 10);
}

TEST(StagedLayout, CountsAreRoundedUpToKernels) {
  for (int count = 1; count <= kMostManyInputs; ++count) {
    EXPECT_GE(staged_inputs(count), count);
    EXPECT_EQ(staged_inputs(staged_inputs(count)), staged_inputs(count));
  }
  EXPECT_EQ(staged_inputs(kMostFewInputs), kMostFewInputs);
  EXPECT_EQ(staged_inputs(kMostManyInputs), kMostManyInputs);
  // Sums of few inputs stay in registers.
  for (const int inputs : {16, 32}) EXPECT_EQ(kept_sums(1, inputs), inputs / 8);
}

}  // namespace
}  // namespace deepinfer::cuda
