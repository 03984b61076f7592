#include "cuda/kernel_gaps.h"

#include <gtest/gtest.h>

namespace deepinfer::bench {
namespace {

TEST(KernelGaps, NothingRanNothingIsBetween) {
  EXPECT_EQ(find_gaps({}).share(), 0);
  const DeviceGaps one = find_gaps({{"a", 1000, 3000}});
  EXPECT_EQ(one.spans, 1);
  EXPECT_EQ(one.total_us, 2);
  EXPECT_EQ(one.gap_us, 0);
}

// 0..2 us, 1..3, a gap of 1, 4..5 with 4..4.5 inside it, a gap of 3, 8..10.
TEST(KernelGaps, AreWhatNoSpanCovers) {
  const DeviceGaps gaps =
      find_gaps({{"e", 8000, 10000}, {"b", 1000, 3000}, {"a", 0, 2000}, {"d", 4000, 4500}, {"c", 4000, 5000}});
  EXPECT_EQ(gaps.spans, 5);
  EXPECT_DOUBLE_EQ(gaps.total_us, 10);
  EXPECT_DOUBLE_EQ(gaps.gap_us, 4);
  EXPECT_DOUBLE_EQ(gaps.longest_us, 3);
  EXPECT_DOUBLE_EQ(gaps.overlap_us, 1.5);
  EXPECT_DOUBLE_EQ(gaps.share(), 0.4);
}

// A kernel that goes on behind others: what comes within it leaves no gap.
TEST(KernelGaps, ALongSpanCoversShortOnes) {
  const DeviceGaps gaps = find_gaps({{"long", 0, 10000}, {"x", 1000, 2000}, {"y", 3000, 4000}, {"z", 11000, 12000}});
  EXPECT_DOUBLE_EQ(gaps.gap_us, 1);
  EXPECT_DOUBLE_EQ(gaps.overlap_us, 2);
}

}  // namespace
}  // namespace deepinfer::bench
