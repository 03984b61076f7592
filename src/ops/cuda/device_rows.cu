#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_rows.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 128;

// Grid: rows, parts of a row. The widest access that both addresses and the size allow.
__global__ void copy_kernel(const DeviceMemory::RowCopy* copies, int64_t row_bytes) {
  const DeviceMemory::RowCopy copy = copies[blockIdx.x];
  const uintptr_t odd =
      reinterpret_cast<uintptr_t>(copy.to) | reinterpret_cast<uintptr_t>(copy.from) | static_cast<uintptr_t>(row_bytes);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kThreads;
  if (odd % 16 == 0) {
    for (int64_t i = first; i < row_bytes / 16; i += step)
      static_cast<uint4*>(copy.to)[i] = static_cast<const uint4*>(copy.from)[i];
  } else if (odd % 2 == 0) {
    for (int64_t i = first; i < row_bytes / 2; i += step)
      static_cast<uint16_t*>(copy.to)[i] = static_cast<const uint16_t*>(copy.from)[i];
  } else {
    for (int64_t i = first; i < row_bytes; i += step)
      static_cast<uint8_t*>(copy.to)[i] = static_cast<const uint8_t*>(copy.from)[i];
  }
}

}  // namespace

void copy_rows(const DeviceMemory::RowCopy* copies, int64_t count, int64_t row_bytes, cudaStream_t stream) {
  if (count == 0 || row_bytes == 0) return;
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(std::clamp<int64_t>(row_bytes / (kThreads * 16), 1, 16)));
  copy_kernel<<<grid, kThreads, 0, stream>>>(copies, row_bytes);
  DI_CUDA_LAUNCHED();
}

}  // namespace deepinfer::cuda
