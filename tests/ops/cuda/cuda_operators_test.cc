// Every operator case on the GPU: against the reference, and against itself for any number of rows, bitwise.

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/backends.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/host_pointers.h"
#include "ops/op_compare.h"
#include "ops/op_inputs.h"

namespace deepinfer {
namespace {

using testing::expect_close;
using testing::expect_same;
using testing::OpCase;
using testing::Outputs;
using testing::RunRows;

const std::vector<OpCase>& cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> v = testing::all_op_cases();
    for (OpCase& c : testing::large_op_cases()) v.push_back(std::move(c));
    return v;
  }();
  return all;
}

// One backend for all tests of the process: its scratch meets every order of sizes.
Backend* backend() {
  static const std::unique_ptr<Backend> gpu = []() -> std::unique_ptr<Backend> {
    const auto devices = cuda_devices();
    if (!devices) return nullptr;
    auto device = make_cuda_backend(devices->front().index);
    return device ? testing::make_host_pointer_backend(std::move(*device), false) : nullptr;
  }();
  return gpu.get();
}

class CudaOperator : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (backend() == nullptr) GTEST_SKIP() << cuda_devices().error().message();
  }
  const OpCase& op() const { return cases()[GetParam()]; }
};

TEST_P(CudaOperator, MatchesReference) {
  const RunRows run = op().make();
  testing::OwnedBackend reference = testing::reference_backend(available_threads());
  const Outputs want = run(*reference.backend, 0, op().rows());
  for (int64_t count : op().counts) {
    SCOPED_TRACE(count);
    const Outputs got = run(*backend(), 0, count);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], count);
  }
}

TEST_P(CudaOperator, RowsDoNotMatter) {
  const RunRows run = op().make();
  const int64_t rows = op().rows();
  const Outputs wanted = run(*backend(), 0, rows);
  for (int64_t count : op().counts) ASSERT_NO_FATAL_FAILURE(expect_same(run(*backend(), 0, count), wanted, 0, count));
  if (rows > 3) {
    ASSERT_NO_FATAL_FAILURE(expect_same(run(*backend(), 3, rows - 3), wanted, 3, rows - 3));
  }
  const int64_t step = rows > 64 ? 5 : 1;
  for (int64_t r = 0; r < rows; r += step) ASSERT_NO_FATAL_FAILURE(expect_same(run(*backend(), r, 1), wanted, r, 1));
}

INSTANTIATE_TEST_SUITE_P(All, CudaOperator, ::testing::Range<size_t>(0, cases().size()),
                         [](const auto& param) { return cases()[param.param].name; });

TEST(CudaBackendMemory, GathersBehindTwoToThe31Bytes) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  if (devices->front().memory_bytes < int64_t{16} << 30) GTEST_SKIP() << "a GPU of less than 16 GiB";
  auto device = make_cuda_backend(devices->front().index);
  ASSERT_TRUE(device);
  DeviceMemory& memory = (*device)->memory();
  constexpr int64_t kRows = 20'000'000;
  constexpr int64_t kDim = 256;
  auto* values = static_cast<uint8_t*>(memory.allocate(kRows * kDim));
  auto* scales = static_cast<uint8_t*>(memory.allocate(kRows * kDim / kScaleGroup));
  const std::vector<int64_t> ids = {0, 8'388'607, 8'388'608, 16'777'216, kRows - 1};
  for (size_t i = 0; i < ids.size(); ++i) {
    memory.fill(values + ids[i] * kDim, float_to_e4m3(static_cast<float>(i + 1)), kDim);
    memory.fill(scales + ids[i] * (kDim / kScaleGroup), 128, kDim / kScaleGroup);
  }
  const auto count = static_cast<int64_t>(ids.size());
  auto* device_ids = static_cast<int64_t*>(memory.allocate(count * 8));
  memory.upload(device_ids, ids.data(), count * 8);
  auto* e = static_cast<bf16*>(memory.allocate(count * kDim * 2));
  (*device)->engram_gather({values, scales, kRows, kDim}, device_ids, count, 1, e);
  std::vector<bf16> got(static_cast<size_t>(count * kDim));
  memory.download(got.data(), e, count * kDim * 2);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < kDim; ++d)
      ASSERT_EQ(to_float(got[static_cast<size_t>(i * kDim + d)]), 2.0f * static_cast<float>(i + 1)) << "row " << ids[static_cast<size_t>(i)];
  }
  for (void* data : {static_cast<void*>(values), static_cast<void*>(scales), static_cast<void*>(device_ids), static_cast<void*>(e)})
    memory.free(data);
}

TEST(CudaBackendMemory, CopiesRowsOfAnySizeAndAlignment) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  auto device = make_cuda_backend(devices->front().index);
  ASSERT_TRUE(device);
  DeviceMemory& memory = (*device)->memory();
  constexpr int64_t kBytes = 1 << 20;
  std::vector<uint8_t> source(kBytes), target(kBytes);
  testing::Random random(1);
  testing::fill_bytes(random, source);
  auto* from = static_cast<uint8_t*>(memory.allocate(kBytes));
  auto* to = static_cast<uint8_t*>(memory.allocate(kBytes));
  memory.upload(from, source.data(), kBytes);
  for (int64_t row_bytes : {1, 2, 3, 33, 66, 528, 4096, 40960}) {
    for (int64_t shift : {0, 1, 2, 16}) {
      memory.fill(to, 0xee, kBytes);
      std::vector<uint8_t> want(kBytes, 0xee);
      std::vector<DeviceMemory::RowCopy> rows;
      for (int64_t i = 0; i < 5; ++i) {
        const int64_t at = shift + i * row_bytes * 2;
        const int64_t source_at = 4 * row_bytes - i * row_bytes;
        rows.push_back({to + at, from + source_at});
        std::copy_n(source.begin() + source_at, row_bytes, want.begin() + at);
      }
      memory.copy_rows(rows, row_bytes);
      memory.download(target.data(), to, kBytes);
      ASSERT_TRUE(target == want) << row_bytes << " bytes, shifted by " << shift;
    }
  }
  memory.free(from);
  memory.free(to);
}

}  // namespace
}  // namespace deepinfer
