#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_rows.h"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 128;

// A share of the copy: that of block `part` of `parts`. The widest access that both addresses and the size allow.
__device__ void copy_share(void* to, const void* from, int64_t bytes, unsigned part, unsigned parts) {
  const uintptr_t odd = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(bytes);
  const int64_t first = static_cast<int64_t>(part) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(parts) * kThreads;
  if (odd % 16 == 0) {
    for (int64_t i = first; i < bytes / 16; i += step) static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
  } else if (odd % 2 == 0) {
    for (int64_t i = first; i < bytes / 2; i += step) static_cast<uint16_t*>(to)[i] = static_cast<const uint16_t*>(from)[i];
  } else {
    for (int64_t i = first; i < bytes; i += step) static_cast<uint8_t*>(to)[i] = static_cast<const uint8_t*>(from)[i];
  }
}

// Grid: rows, parts of a row.
__global__ void copy_kernel(const DeviceMemory::RowCopy* copies, int64_t row_bytes) {
  take_turn();
  const DeviceMemory::RowCopy copy = copies[blockIdx.x];
  if (copy.to == nullptr) return;
  copy_share(copy.to, copy.from, row_bytes, blockIdx.y, gridDim.y);
}

// Grid: segments, parts of a segment.
__global__ void segment_kernel(const Segment* segments) {
  take_turn();
  const Segment& s = segments[blockIdx.x];
  copy_share(s.to, s.from, s.bytes, blockIdx.y, gridDim.y);
}

}  // namespace

void copy_rows(const DeviceMemory::RowCopy* copies, int64_t count, int64_t row_bytes, LaunchStream& stream) {
  if (count == 0 || row_bytes == 0) return;
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(std::clamp<int64_t>(row_bytes / (kThreads * 16), 1, 16)));
  stream.launch(copy_kernel, grid, kThreads, 0, copies, row_bytes);
}

void copy_segments(const Segment* segments, int64_t count, LaunchStream& stream) {
  if (count == 0) return;
  constexpr unsigned kParts = 8;
  stream.launch(segment_kernel, dim3(static_cast<unsigned>(count), kParts), kThreads, 0, segments);
}

}  // namespace deepinfer::cuda
