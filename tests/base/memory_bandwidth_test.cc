#include "base/memory_bandwidth.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// Only the unit can be checked on a machine that is not known: between a floppy disk and the largest HBM.
TEST(MemoryBandwidth, IsPlausible) {
  EXPECT_GE(last_level_cache_bytes(), 0);
  EXPECT_LE(last_level_cache_bytes(), int64_t{1} << 36);
  ThreadPool pool(available_threads());
  const double rate = measure_read_bandwidth(pool, 0.01);
  if (rate == 0) GTEST_SKIP() << "too little memory for the measurement";
  EXPECT_GT(rate, 1e7);
  EXPECT_LT(rate, 1e14);
}

}  // namespace
}  // namespace deepinfer
