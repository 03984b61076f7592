#include <algorithm>
#include <type_traits>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/row_math.cuh"
#include "ops/cuda/row_ops.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = kRowThreads;

unsigned blocks(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }
__device__ int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

// 8 columns a thread.
__global__ void embed_kernel(const int32_t* ids, int64_t count, const bf16* table, int64_t hidden, int64_t streams, bf16* x) {
  take_turn();
  const int64_t at = thread_index() * 8;
  if (at >= count) return;
  const int64_t row = at / (hidden * streams);
  *reinterpret_cast<uint4*>(x + at) = __ldg(reinterpret_cast<const uint4*>(table + ids[row] * hidden + at % hidden));
}

// One block a row. In place is allowed: a thread reads only what it writes.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const bf16* x, const bf16* w, float eps, int dim, bf16* y) {
  take_turn();
  __shared__ float scratch[kThreads / kWarp];
  const bf16* row = x + static_cast<int64_t>(blockIdx.x) * dim;
  bf16* out = y + static_cast<int64_t>(blockIdx.x) * dim;
  float square = 0;
  for (int i = static_cast<int>(threadIdx.x) * 4; i < dim; i += kThreads * 4)
    square = add_squares(*reinterpret_cast<const uint2*>(row + i), square);
  const float scale = norm_scale(square, dim, eps, scratch);
  for (int i = static_cast<int>(threadIdx.x) * 4; i < dim; i += kThreads * 4) {
    *reinterpret_cast<uint2*>(out + i) =
        normalize_four(*reinterpret_cast<const uint2*>(row + i), __ldg(reinterpret_cast<const uint2*>(w + i)), scale);
  }
}

__global__ void scale_kernel(bf16* x, int64_t count, float factor) {
  take_turn();
  const int64_t at = thread_index();
  if (at < count) x[at] = narrow(widen(x[at]) * factor);
}

// One thread a pair.
// kPairs pairs a thread, which lie in a row of memory.
template <int kPairs>
__global__ void rope_kernel(bf16* x, const RopeRows rotation, int64_t count, int heads, int dim, float sign) {
  take_turn();
  const int64_t at = thread_index();
  if (at >= count) return;
  const auto pairs = static_cast<uint32_t>(rotation.pairs);
  const auto threads = pairs / kPairs;  // of a head
  const auto head = static_cast<uint32_t>(at / threads);
  const uint32_t k = (static_cast<uint32_t>(at) - head * threads) * kPairs;
  const int64_t row = head / static_cast<uint32_t>(heads);
  using Words = std::conditional_t<kPairs == 4, uint4, uint32_t>;
  using Factors = std::conditional_t<kPairs == 4, float4, float>;
  union Rotated {
    Words all;
    uint32_t pair[kPairs];
  };
  union Angles {
    Factors all;
    float pair[kPairs];
  };
  auto* place = reinterpret_cast<Words*>(x + (int64_t{head} + 1) * dim - 2 * rotation.pairs + 2 * k);
  Rotated v;
  Angles c, s;
  v.all = *place;
  c.all = *reinterpret_cast<const Factors*>(rotation.cos + row * pairs + k);
  s.all = *reinterpret_cast<const Factors*>(rotation.sin + row * pairs + k);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) v.pair[i] = rotate_pair(v.pair[i], c.pair[i], sign * s.pair[i]);
  *place = v.all;
}

__global__ void pool_kernel(const float* const* kv, const float* const* gate, int64_t count, int64_t dim, bf16* latent) {
  take_turn();
  const int64_t at = thread_index();
  if (at >= count) return;
  const int64_t g = at / dim;
  const int64_t c = at % dim;
  const float g0 = gate[2 * g][c];
  const float g1 = gate[2 * g + 1][c];
  const float top = fmaxf(g0, g1);
  const float e0 = expf(g0 - top);
  const float e1 = expf(g1 - top);
  latent[at] = narrow(kv[2 * g][c] * (e0 / (e0 + e1)) + kv[2 * g + 1][c] * (e1 / (e0 + e1)));
}

// kColumns columns a thread at a time. Rows mostly come from the host's memory, which more threads than these do not make faster:
// few blocks, so that other kernels find room beside them.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) gather_kernel(const EngramTable table, const int64_t* ids, int64_t count, bf16* e) {
  take_turn();
  using Codes = std::conditional_t<kColumns == 16, uint4, uint32_t>;
  union {
    Codes all;
    uint32_t words[kColumns / 4];
  } v;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kColumns;
#pragma unroll 2
  for (int64_t at = thread_index() * kColumns; at < count; at += step) {
    const int64_t id = ids[at / table.dim];
    const int64_t d = at % table.dim;
    v.all = __ldg(reinterpret_cast<const Codes*>(table.values + id * table.dim + d));
    const float scale = e8m0_value(__ldg(table.scales + id * (table.dim / kScaleGroup) + d / kScaleGroup));
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const uint32_t w = v.words[i];
      reinterpret_cast<uint2*>(e + at)[i] =
          make_uint2(narrow_pair(e4m3_value(w & 255) * scale, e4m3_value(w >> 8 & 255) * scale),
                     narrow_pair(e4m3_value(w >> 16 & 255) * scale, e4m3_value(w >> 24) * scale));
    }
  }
}

// One block a (row, stream).
__global__ void __launch_bounds__(kThreads) gate_kernel(const bf16* kv, const bf16* q_weight, const bf16* k_weight,
                                                        const uint8_t* image, float eps, int n, int hidden, bf16* x) {
  take_turn();
  __shared__ float scratch[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  const int s = static_cast<int>(blockIdx.y);
  if (image != nullptr && image[row] != 0) return;
  const bf16* key = kv + (row * (n + 1) + s) * hidden;
  const bf16* value = kv + (row * (n + 1) + n) * hidden;
  bf16* stream = x + (row * n + s) * hidden;
  q_weight += static_cast<int64_t>(s) * hidden;
  k_weight += static_cast<int64_t>(s) * hidden;
  float dots = 0, xx = 0, kk = 0;
  for (int d = static_cast<int>(threadIdx.x) * 2; d < hidden; d += kThreads * 2) {
    const uint32_t a = *reinterpret_cast<const uint32_t*>(stream + d);
    const uint32_t k = *reinterpret_cast<const uint32_t*>(key + d);
    const uint32_t q = __ldg(reinterpret_cast<const uint32_t*>(q_weight + d));
    const uint32_t w = __ldg(reinterpret_cast<const uint32_t*>(k_weight + d));
    dots = fmaf(widen_low(a) * (widen_low(q) * widen_low(w)), widen_low(k), dots);
    dots = fmaf(widen_high(a) * (widen_high(q) * widen_high(w)), widen_high(k), dots);
    xx = fmaf(widen_low(a), widen_low(a), xx), xx = fmaf(widen_high(a), widen_high(a), xx);
    kk = fmaf(widen_low(k), widen_low(k), kk), kk = fmaf(widen_high(k), widen_high(k), kk);
  }
  dots = block_sum<kThreads>(dots, scratch);
  xx = block_sum<kThreads>(xx, scratch);
  kk = block_sum<kThreads>(kk, scratch);
  const auto width = static_cast<float>(hidden);
  const float norm = (1.0f / sqrtf(xx / width + eps)) * (1.0f / sqrtf(kk / width + eps));
  const float dot = dots * norm * (1.0f / sqrtf(width));
  const float g = sigmoid(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot));
  for (int d = static_cast<int>(threadIdx.x) * 2; d < hidden; d += kThreads * 2) {
    const uint32_t a = *reinterpret_cast<const uint32_t*>(stream + d);
    const uint32_t v = *reinterpret_cast<const uint32_t*>(value + d);
    *reinterpret_cast<uint32_t*>(stream + d) = narrow_pair(widen_low(a) + g * widen_low(v), widen_high(a) + g * widen_high(v));
  }
}

}  // namespace

void embed(const int32_t* ids, int64_t rows, const bf16* table, int64_t hidden, int64_t streams, bf16* x, LaunchStream& stream) {
  const int64_t count = rows * streams * hidden;
  if (count == 0) return;
  stream.launch(embed_kernel, blocks(count / 8), kThreads, 0, ids, count, table, hidden, streams, x);
}

void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y, LaunchStream& stream) {
  if (rows == 0) return;
  stream.launch(rms_norm_kernel, static_cast<unsigned>(rows), kThreads, 0, x, w, eps, static_cast<int>(dim), y);
}

void scale(bf16* x, int64_t count, float factor, LaunchStream& stream) {
  if (count == 0) return;
  stream.launch(scale_kernel, blocks(count), kThreads, 0, x, count, factor);
}

void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse, LaunchStream& stream) {
  const int64_t count = rows * heads * rotation.pairs;
  if (count == 0) return;
  if (count > INT32_MAX) cuda_failed(__FILE__, __LINE__, "rope", "more than 2^31 pairs");
  const auto launch = [&](auto kernel, int64_t pairs) {
    stream.launch(kernel, blocks(count / pairs), kThreads, 0, x, rotation, count / pairs, static_cast<int>(heads),
                  static_cast<int>(dim), inverse ? -1.0f : 1.0f);
  };
  const auto places =
      reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(rotation.cos) | reinterpret_cast<uintptr_t>(rotation.sin);
  if (rotation.pairs % 4 == 0 && dim % 8 == 0 && places % 16 == 0) {
    launch(rope_kernel<4>, 4);
  } else {
    launch(rope_kernel<1>, 1);
  }
}

void compress_pool(const float* const* kv, const float* const* gate, int64_t groups, int64_t dim, bf16* latent,
                   LaunchStream& stream) {
  if (groups == 0) return;
  stream.launch(pool_kernel, blocks(groups * dim), kThreads, 0, kv, gate, groups * dim, dim, latent);
}

void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e, LaunchStream& stream) {
  const int64_t count = rows * columns * table.dim;
  if (count == 0) return;
  constexpr unsigned kMostBlocks = 2 * 132;
  const auto launch = [&](auto kernel, int64_t each) {
    stream.launch(kernel, std::min(blocks(count / each), kMostBlocks), kThreads, 0, table, ids, count, e);
  };
  if (table.dim % 16 == 0 && reinterpret_cast<uintptr_t>(table.values) % 16 == 0) {
    launch(gather_kernel<16>, 16);
  } else {
    launch(gather_kernel<4>, 4);
  }
}

void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                 int64_t n, int64_t hidden, bf16* x, LaunchStream& stream) {
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(n));
  stream.launch(gate_kernel, grid, kThreads, 0, kv, q_weight, k_weight, image, eps, static_cast<int>(n), static_cast<int>(hidden),
                x);
}

}  // namespace deepinfer::cuda
