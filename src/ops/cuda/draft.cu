// Ends of a draft block (dspark.md §3.4).

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/row_ops.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

__global__ void append_kernel(const bf16* x, int64_t hidden, const int32_t* ids, const bf16* table, int64_t rank, int64_t count,
                              bf16* y) {
  take_turn();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const int64_t row = at / (hidden + rank);
  const int64_t i = at % (hidden + rank);
  y[at] = i < hidden ? x[row * hidden + i] : table[ids[row] * rank + i - hidden];
}

__global__ void add_kernel(const float* base, int64_t stride, int64_t count, int64_t width, float* y) {
  take_turn();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count) y[at] += base[at / width * stride + at % width];
}

}  // namespace

void append_embedding(const bf16* x, int64_t hidden, const int32_t* ids, const bf16* table, int64_t rank, int64_t rows, bf16* y,
                      LaunchStream& stream) {
  const int64_t count = rows * (hidden + rank);
  if (count == 0) return;
  stream.launch(append_kernel, blocks(count), kThreads, 0, x, hidden, ids, table, rank, count, y);
}

void add_rows(const float* base, int64_t stride, int64_t rows, int64_t width, float* y, LaunchStream& stream) {
  const int64_t count = rows * width;
  if (count == 0) return;
  stream.launch(add_kernel, blocks(count), kThreads, 0, base, stride, count, width, y);
}

}  // namespace deepinfer::cuda
