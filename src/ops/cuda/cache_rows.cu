// The packed rows of the caches (spec/backbone §6.2, §6.3).

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/row_ops.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }
__device__ int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

template <int kGroup>
__device__ float group_amax(const bf16* x) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) amax = fmaxf(amax, fabsf(widen(x[i])));
  return amax;
}

// One thread a group everywhere: these rows are few and short.
__global__ void window_kernel(const bf16* x, int64_t groups, int dim, uint8_t* packed) {
  take_turn();
  const int64_t at = thread_index();
  if (at >= groups) return;
  const int row_groups = dim / kScaleGroup;
  const int64_t row = at / row_groups;
  const auto g = static_cast<int>(at % row_groups);
  const bf16* v = x + at * kScaleGroup;
  uint8_t* out = packed + row * (dim + row_groups);
  const uint32_t byte = fp8_scale_bits(group_amax<kScaleGroup>(v));
  const float scale = e8m0_value(byte);
  out[dim + g] = static_cast<uint8_t>(byte);
  for (int i = 0; i < kScaleGroup; ++i) out[g * kScaleGroup + i] = static_cast<uint8_t>(e4m3_bits(widen(v[i]) / scale));
}

// kGroup 16: E4M3 scales; 32: E8M0 scales.
template <int kGroup>
__global__ void fp4_kernel(const bf16* x, int64_t groups, int dim, uint8_t* const* to) {
  take_turn();
  const int64_t at = thread_index();
  if (at >= groups) return;
  const int row_groups = dim / kGroup;
  const int64_t row = at / row_groups;
  const auto g = static_cast<int>(at % row_groups);
  const bf16* v = x + at * kGroup;
  uint8_t* out = to[row];
  if (out == nullptr) return;
  const float amax = group_amax<kGroup>(v);
  const uint32_t byte = kGroup == kCacheScaleGroup ? cache_scale_bits(amax) : index_scale_bits(amax);
  const float scale = kGroup == kCacheScaleGroup ? e4m3_value(byte) : e8m0_value(byte);
  out[dim / 2 + g] = static_cast<uint8_t>(byte);
  for (int i = 0; i < kGroup; i += 2) {
    out[(g * kGroup + i) / 2] = static_cast<uint8_t>(e2m1_bits(widen(v[i]) / scale) | e2m1_bits(widen(v[i + 1]) / scale) << 4);
  }
}

__global__ void round_kernel(bf16* x, int64_t groups) {
  take_turn();
  const int64_t at = thread_index();
  if (at >= groups) return;
  bf16* v = x + at * kScaleGroup;
  const float scale = e8m0_value(index_scale_bits(group_amax<kScaleGroup>(v)));
  for (int i = 0; i < kScaleGroup; ++i) v[i] = narrow(e2m1_value(e2m1_bits(widen(v[i]) / scale)) * scale);
}

}  // namespace

void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed, LaunchStream& stream) {
  const int64_t groups = rows * dim / kScaleGroup;
  if (groups == 0) return;
  stream.launch(window_kernel, blocks(groups), kThreads, 0, x, groups, static_cast<int>(dim), packed);
}

void pack_compressed(const bf16* x, int64_t rows, int64_t dim, uint8_t* const* to, LaunchStream& stream) {
  const int64_t groups = rows * dim / kCacheScaleGroup;
  if (groups == 0) return;
  stream.launch(fp4_kernel<kCacheScaleGroup>, blocks(groups), kThreads, 0, x, groups, static_cast<int>(dim), to);
}

void pack_index_keys(const bf16* x, int64_t rows, int64_t dim, uint8_t* const* to, LaunchStream& stream) {
  const int64_t groups = rows * dim / kScaleGroup;
  if (groups == 0) return;
  stream.launch(fp4_kernel<kScaleGroup>, blocks(groups), kThreads, 0, x, groups, static_cast<int>(dim), to);
}

void round_index_queries(bf16* x, int64_t rows, int64_t dim, LaunchStream& stream) {
  const int64_t groups = rows * dim / kScaleGroup;
  if (groups == 0) return;
  stream.launch(round_kernel, blocks(groups), kThreads, 0, x, groups);
}

}  // namespace deepinfer::cuda
