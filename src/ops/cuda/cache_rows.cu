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

constexpr int kOwn = 8;  // columns of a thread; those of a group of scales lie in neighbouring lanes

// What a thread has of row at / (dim / kOwn); nothing behind the last one. All lanes of a warp are here.
template <int kGroup>
struct OwnColumns {
  float values[kOwn];
  float amax;  // of the group
  __device__ OwnColumns(const bf16* x, int64_t at, int64_t count) {
    const uint4 v = at < count ? *reinterpret_cast<const uint4*>(x + at * kOwn) : make_uint4(0, 0, 0, 0);
    amax = widen_eight(v, values);
#pragma unroll
    for (int step = 1; step < kGroup / kOwn; step <<= 1) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
  }
};

// count: of threads with columns.
__global__ void window_kernel(const bf16* x, int64_t count, int dim, uint8_t* packed) {
  take_turn();
  const int64_t at = thread_index();
  const OwnColumns<kScaleGroup> own(x, at, count);
  if (at >= count) return;
  const int row_threads = dim / kOwn;
  const int column = static_cast<int>(at % row_threads) * kOwn;
  uint8_t* out = packed + at / row_threads * (dim + dim / kScaleGroup);
  const uint32_t byte = fp8_scale_bits(own.amax);
  const float scale = e8m0_value(byte);
  if (column % kScaleGroup == 0) out[dim + column / kScaleGroup] = static_cast<uint8_t>(byte);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) out[column + i] = static_cast<uint8_t>(e4m3_bits(own.values[i] / scale));
}

// kGroup 16: E4M3 scales; 32: E8M0 scales.
template <int kGroup>
__global__ void fp4_kernel(const bf16* x, int64_t count, int dim, uint8_t* const* to) {
  take_turn();
  const int64_t at = thread_index();
  const OwnColumns<kGroup> own(x, at, count);
  if (at >= count) return;
  const int row_threads = dim / kOwn;
  const int column = static_cast<int>(at % row_threads) * kOwn;
  uint8_t* out = to[at / row_threads];
  if (out == nullptr) return;
  const uint32_t byte = kGroup == kCacheScaleGroup ? cache_scale_bits(own.amax) : index_scale_bits(own.amax);
  const float scale = kGroup == kCacheScaleGroup ? e4m3_value(byte) : e8m0_value(byte);
  if (column % kGroup == 0) out[dim / 2 + column / kGroup] = static_cast<uint8_t>(byte);
#pragma unroll
  for (int i = 0; i < kOwn; i += 2) {
    out[(column + i) / 2] = static_cast<uint8_t>(e2m1_bits(own.values[i] / scale) | e2m1_bits(own.values[i + 1] / scale) << 4);
  }
}

__global__ void round_kernel(bf16* x, int64_t count) {
  take_turn();
  const int64_t at = thread_index();
  const OwnColumns<kScaleGroup> own(x, at, count);
  if (at >= count) return;
  const float scale = e8m0_value(index_scale_bits(own.amax));
  const auto round = [&](int i) { return e2m1_value(e2m1_bits(own.values[i] / scale)) * scale; };
  *reinterpret_cast<uint4*>(x + at * kOwn) = make_uint4(narrow_pair(round(0), round(1)), narrow_pair(round(2), round(3)),
                                                        narrow_pair(round(4), round(5)), narrow_pair(round(6), round(7)));
}

}  // namespace

void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed, LaunchStream& stream) {
  const int64_t count = rows * dim / kOwn;
  if (count == 0) return;
  stream.launch(window_kernel, blocks(count), kThreads, 0, x, count, static_cast<int>(dim), packed);
}

void pack_compressed(const bf16* x, int64_t rows, int64_t dim, uint8_t* const* to, LaunchStream& stream) {
  const int64_t count = rows * dim / kOwn;
  if (count == 0) return;
  stream.launch(fp4_kernel<kCacheScaleGroup>, blocks(count), kThreads, 0, x, count, static_cast<int>(dim), to);
}

void pack_index_keys(const bf16* x, int64_t rows, int64_t dim, uint8_t* const* to, LaunchStream& stream) {
  const int64_t count = rows * dim / kOwn;
  if (count == 0) return;
  stream.launch(fp4_kernel<kScaleGroup>, blocks(count), kThreads, 0, x, count, static_cast<int>(dim), to);
}

void round_index_queries(bf16* x, int64_t rows, int64_t dim, LaunchStream& stream) {
  const int64_t count = rows * dim / kOwn;
  if (count == 0) return;
  stream.launch(round_kernel, blocks(count), kThreads, 0, x, count);
}

}  // namespace deepinfer::cuda
