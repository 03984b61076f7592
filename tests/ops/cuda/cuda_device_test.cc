#include "ops/cuda/cuda_device.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(CudaDevice, IsFoundOrSaysWhyNot) {
  const auto devices = cuda_devices();
  if (!devices) {
    EXPECT_NE(devices.error().message().find("CUDA: "), std::string::npos);
    GTEST_SKIP() << devices.error().message();
  }
  ASSERT_FALSE(devices->empty());
  for (const CudaDevice& d : *devices) {
    EXPECT_EQ(d.compute_major, 9);
    EXPECT_GT(d.memory_bytes, int64_t{1} << 30);
    EXPECT_GT(d.multiprocessors, 0);
  }
}

}  // namespace
}  // namespace deepinfer
