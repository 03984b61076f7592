// Hyper-connections (spec/backbone §3.2). The coefficients are products in fp32: a weight is the sum of three bf16, so three
// exact bf16 products with fp32 sums are what one fp32 product is. Columns are cut into slices; a slice is one chain of mma, and
// slices are added in ascending order.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/fragments.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/row_math.cuh"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/scratch_sizes.h"

namespace deepinfer::cuda {
namespace {

constexpr int kSlice = static_cast<int>(kMixSlice);
constexpr int kOutputs = 24;                // of a block; each is three rows of the A operand
constexpr int kWeightTiles = 5;             // of 16 rows: 3 * 24 and some zeros
constexpr int kWeightStride = kSlice + 32;  // bf16: the rows of a load lie in different banks
constexpr int kInputTiles = 2;              // of 8 rows, of a warp
constexpr int kMixThreads = 256;
constexpr int kMixRows = kMixThreads / kWarp * kInputTiles * 8;  // of a block
constexpr int kMostStreams = 8;
constexpr size_t kMixShared = kWeightTiles * 16 * kWeightStride * sizeof(bf16);

// partial [rows][slices][outputs + 1]: the last is the sum of squares. Grid: slices, blocks of rows, groups of outputs.
__global__ void __launch_bounds__(kMixThreads, 2)
    mix_slices(const float* fn, const bf16* x, int64_t rows, int width, int outputs, float* partial) {
  let_next_begin();
  auto* weights = dynamic_shared<bf16>();
  const int begin = static_cast<int>(blockIdx.x) * kSlice;
  const int first_output = static_cast<int>(blockIdx.z) * kOutputs;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  for (int i = thread; i < 8 * kWeightStride; i += kMixThreads) weights[3 * kOutputs * kWeightStride + i] = bf16{};
#pragma unroll 4
  for (int i = thread; i < kOutputs * kSlice / 4; i += kMixThreads) {
    const int o = i / (kSlice / 4);
    const int column = i % (kSlice / 4) * 4;
    float4 f = make_float4(0, 0, 0, 0);
    if (first_output + o < outputs && begin + column < width)
      f = __ldg(reinterpret_cast<const float4*>(fn + static_cast<int64_t>(first_output + o) * width + begin + column));
    float rest[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const uint32_t low = narrow_pair(rest[0], rest[1]);
      const uint32_t high = narrow_pair(rest[2], rest[3]);
      *reinterpret_cast<uint2*>(weights + (part * kOutputs + o) * kWeightStride + column) = make_uint2(low, high);
      rest[0] -= widen_low(low), rest[1] -= widen_high(low), rest[2] -= widen_low(high), rest[3] -= widen_high(high);
    }
  }
  __syncthreads();
  wait_for_earlier();  // up to here these were weights alone
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kMixRows + warp * kInputTiles * 8;
  if (first_row >= rows) return;
  float c[kWeightTiles][kInputTiles][4] = {};
  float square[kInputTiles] = {};
  const bf16* row[kInputTiles];
#pragma unroll
  for (int n = 0; n < kInputTiles; ++n)
    row[n] = first_row + n * 8 + g < rows ? x + (first_row + n * 8 + g) * width + begin : nullptr;
#pragma unroll 4
  for (int column = t * 8; column < kSlice; column += 32) {
    uint4 v[kInputTiles];
#pragma unroll
    for (int n = 0; n < kInputTiles; ++n) {
      v[n] = row[n] != nullptr && begin + column < width ? load_again(row[n] + column) : make_uint4(0, 0, 0, 0);
      const uint32_t words[4] = {v[n].x, v[n].y, v[n].z, v[n].w};
#pragma unroll
      for (uint32_t w : words) {
        square[n] = fmaf(widen_low(w), widen_low(w), square[n]);
        square[n] = fmaf(widen_high(w), widen_high(w), square[n]);
      }
    }
#pragma unroll
    for (int m = 0; m < kWeightTiles; ++m) {
      const uint4 a = *reinterpret_cast<const uint4*>(weights + (m * 16 + g) * kWeightStride + column);
      const uint4 b = *reinterpret_cast<const uint4*>(weights + (m * 16 + g + 8) * kWeightStride + column);
      const uint32_t a0[4] = {a.x, b.x, a.y, b.y};
      const uint32_t a1[4] = {a.z, b.z, a.w, b.w};
#pragma unroll
      for (int n = 0; n < kInputTiles; ++n) {
        mma(c[m][n], a0, v[n].x, v[n].y);
        mma(c[m][n], a1, v[n].z, v[n].w);
      }
    }
  }
  const auto out_of = [&](int64_t r, int o) { return partial + (r * gridDim.x + blockIdx.x) * (outputs + 1) + o; };
#pragma unroll
  for (int n = 0; n < kInputTiles; ++n) {
    // Part p of output o is row p * 24 + o: tile (p * 24 + o) / 16. Rows 24 apart are 8 and 16 rows further on in the tiles, so a
    // lane has o, o + 24 and o + 48 at its g, at registers that are known here.
#pragma unroll
    for (int o8 = 0; o8 < kOutputs / 8; ++o8) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float sum[3];
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          const int row8 = part * (kOutputs / 8) + o8;  // eights of rows
          sum[part] = c[row8 / 2][n][row8 % 2 * 2 + j];
        }
        const int64_t r = first_row + n * 8 + t * 2 + j;
        const int o = first_output + o8 * 8 + g;
        if (r < rows && o < outputs) *out_of(r, o) = sum[0] + (sum[1] + sum[2]);
      }
    }
    square[n] += __shfl_xor_sync(0xffffffffu, square[n], 1);
    square[n] += __shfl_xor_sync(0xffffffffu, square[n], 2);
    const int64_t r = first_row + n * 8 + g;
    if (t == 0 && blockIdx.z == 0 && r < rows) *out_of(r, outputs) = square[n];
  }
}

// The combination matrix of four streams, lane 4 i + j its element (i, j): exponentials of each row, then rows and columns
// divided by their sums in turn.
__device__ float balance_four(float own, int64_t iterations, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto in_row = [&](float v, int k) { return __shfl_sync(0xffffffffu, v, (lane & ~3) + k); };
  const auto row_sum = [&](float v) { return ((in_row(v, 0) + in_row(v, 1)) + in_row(v, 2)) + in_row(v, 3); };
  const auto in_column = [&](float v, int k) { return __shfl_sync(0xffffffffu, v, (lane & 19) + 4 * k); };
  const auto column_sum = [&](float v) { return ((in_column(v, 0) + in_column(v, 1)) + in_column(v, 2)) + in_column(v, 3); };
  const float top = fmaxf(fmaxf(in_row(own, 0), in_row(own, 1)), fmaxf(in_row(own, 2), in_row(own, 3)));
  own = expf(own - top);
  own = own / row_sum(own) + eps;
  own /= column_sum(own) + eps;
  for (int64_t step = 1; step < iterations; ++step) {
    own /= row_sum(own) + eps;
    own /= column_sum(own) + eps;
  }
  return own;
}

// One block a row; thread (i, j) holds one element of the combination matrix.
__global__ void finish_mix(const HyperMixWeights w, const float* partial, int slices, float* pre, float* post, float* comb) {
  take_turn();
  __shared__ float m[kMostStreams * (kMostStreams + 2) + 1];
  __shared__ float c[kMostStreams * kMostStreams];
  const int n = static_cast<int>(w.n);
  const int outputs = (2 + n) * n;
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x);
  auto* parts = dynamic_shared_behind<float>();  // [slices][outputs + 1]: all on their way at once
  for (int i = t; i < slices * (outputs + 1); i += static_cast<int>(blockDim.x))
    parts[i] = partial[row * slices * (outputs + 1) + i];
  __syncthreads();
  for (int o = t; o <= outputs; o += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int s = 0; s < slices; ++s) sum += parts[s * (outputs + 1) + o];
    m[o] = sum;
  }
  __syncthreads();
  const float scale = 1.0f / sqrtf(m[outputs] / static_cast<float>(n * w.hidden) + w.rms_eps);
  if (t < n) {
    pre[row * n + t] = sigmoid(m[t] * scale * w.scale[0] + w.base[t]) + w.eps;
    post[row * n + t] = 2.0f * sigmoid(m[n + t] * scale * w.scale[1] + w.base[n + t]);
  }
  // A warp that holds the whole matrix needs no barriers; the sums are the same.
  if (n == 4) {
    if (t < kWarp) {
      const float own = balance_four(t < 16 ? m[8 + t] * scale * w.scale[2] + w.base[8 + t] : 0.0f, w.sinkhorn_iters, w.eps);
      if (t < 16) comb[row * 16 + t] = own;
    }
    return;
  }
  const bool mine = t < n * n;
  const int i = mine ? t / n : 0;
  const int j = mine ? t % n : 0;
  const auto row_sum = [&] {
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += c[i * n + k];
    return sum;
  };
  const auto column_sum = [&] {
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += c[k * n + j];
    return sum;
  };
  float own = 0;
  const auto publish = [&] {
    __syncthreads();
    if (mine) c[t] = own;
    __syncthreads();
  };
  if (mine) own = m[2 * n + t] * scale * w.scale[2] + w.base[2 * n + t];
  publish();
  float top = c[i * n];
  for (int k = 1; k < n; ++k) top = fmaxf(top, c[i * n + k]);
  own = expf(own - top);
  publish();
  own = own / row_sum() + w.eps;
  publish();
  own /= column_sum() + w.eps;
  for (int64_t step = 1; step < w.sinkhorn_iters; ++step) {
    publish();
    own /= row_sum() + w.eps;
    publish();
    own /= column_sum() + w.eps;
  }
  if (mine) comb[row * n * n + t] = own;
}

constexpr int kThreads = 256;

// Every thread: 4 columns of one row.
__global__ void collapse_kernel(const bf16* x, const float* pre, int64_t count, int n, int hidden, bf16* y) {
  take_turn();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (at >= count) return;
  const int64_t row = at / hidden;
  const int64_t d = at % hidden;
  *reinterpret_cast<uint2*>(y + at) = collapse_four(x + row * n * hidden + d, pre + row * n, n, hidden);
}

__global__ void mean_kernel(const bf16* x, int64_t count, int n, int hidden, bf16* y) {
  take_turn();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (at >= count) return;
  const int64_t row = at / hidden;
  const int64_t d = at % hidden;
  float sum[4] = {};
  for (int s = 0; s < n; ++s) {
    const uint2 v = *reinterpret_cast<const uint2*>(x + (row * n + s) * hidden + d);
    sum[0] += widen_low(v.x), sum[1] += widen_high(v.x), sum[2] += widen_low(v.y), sum[3] += widen_high(v.y);
  }
  const auto streams = static_cast<float>(n);
  *reinterpret_cast<uint2*>(y + at) =
      make_uint2(narrow_pair(sum[0] / streams, sum[1] / streams), narrow_pair(sum[2] / streams, sum[3] / streams));
}

// kColumns columns of one row a thread, all streams of it.
template <int kN, int kColumns>
__global__ void expand_kernel(const bf16* o, const float* post, const float* comb, int64_t count, int streams, int hidden,
                              bf16* x) {
  take_turn();
  constexpr int kMost = kN > 0 ? kN : kMostStreams;
  const int n = kN > 0 ? kN : streams;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kColumns;
  if (at >= count) return;
  const int64_t row = at / hidden;
  const int64_t d = at % hidden;
  union Columns {
    uint4 four;
    uint32_t words[kColumns / 2];
  };
  const auto load = [](const bf16* p) {
    Columns v;
    if constexpr (kColumns == 8) {
      v.four = *reinterpret_cast<const uint4*>(p);
    } else {
      v.words[0] = *reinterpret_cast<const uint32_t*>(p);
    }
    return v;
  };
  Columns old[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < n) old[i] = load(x + (row * n + i) * hidden + d);
  }
  const Columns out = load(o + at);
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    if (j >= n) break;
    const float p = post[row * n + j];
    Columns y;
#pragma unroll
    for (int w = 0; w < kColumns / 2; ++w) {
      float low = 0, high = 0;
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        if (i >= n) break;
        const float c = comb[(row * n + i) * n + j];
        low += c * widen_low(old[i].words[w]), high += c * widen_high(old[i].words[w]);
      }
      y.words[w] = narrow_pair(p * widen_low(out.words[w]) + low, p * widen_high(out.words[w]) + high);
    }
    bf16* to = x + (row * n + j) * hidden + d;
    if constexpr (kColumns == 8) {
      *reinterpret_cast<uint4*>(to) = y.four;
    } else {
      *reinterpret_cast<uint32_t*>(to) = y.words[0];
    }
  }
}

unsigned blocks(int64_t items, int64_t per_thread) {
  return static_cast<unsigned>((items + kThreads * per_thread - 1) / (kThreads * per_thread));
}

int64_t slices_of(const HyperMixWeights& w) { return mix_slices_of(w.n, w.hidden); }

}  // namespace

void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* scratch, float* pre, float* post, float* comb,
               LaunchStream& stream) {
  if (rows == 0) return;
  if (w.n > kMostStreams) cuda_failed(__FILE__, __LINE__, "hyper_mix", "more than 8 streams");
  const auto outputs = static_cast<int>((2 + w.n) * w.n);
  const dim3 grid(static_cast<unsigned>(slices_of(w)), static_cast<unsigned>((rows + kMixRows - 1) / kMixRows),
                  static_cast<unsigned>((outputs + kOutputs - 1) / kOutputs));
  stream.launch(mix_slices, grid, kMixThreads, kMixShared, w.fn, x, rows, static_cast<int>(w.n * w.hidden), outputs, scratch);
  const size_t parts = static_cast<size_t>(slices_of(w) * (outputs + 1)) * sizeof(float);
  if (parts > 48 << 10) cuda_failed(__FILE__, __LINE__, "hyper_mix", "too many columns");
  stream.launch(finish_mix, static_cast<unsigned>(rows), 128, parts, w, scratch, static_cast<int>(slices_of(w)), pre, post, comb);
}

void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y, LaunchStream& stream) {
  if (rows == 0) return;
  stream.launch(collapse_kernel, blocks(rows * hidden, 4), kThreads, 0, x, pre, rows * hidden, static_cast<int>(n),
                static_cast<int>(hidden), y);
}

void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden, bf16* x,
                  LaunchStream& stream) {
  if (rows == 0) return;
  if (n > kMostStreams) cuda_failed(__FILE__, __LINE__, "hyper_expand", "more than 8 streams");
  const int64_t count = rows * hidden;
  if (n == 4) {
    stream.launch(expand_kernel<4, 8>, blocks(count, 8), kThreads, 0, o, post, comb, count, 4, static_cast<int>(hidden), x);
  } else {
    stream.launch(expand_kernel<0, 2>, blocks(count, 2), kThreads, 0, o, post, comb, count, static_cast<int>(n),
                  static_cast<int>(hidden), x);
  }
}

void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y, LaunchStream& stream) {
  if (rows == 0) return;
  stream.launch(mean_kernel, blocks(rows * hidden, 4), kThreads, 0, x, rows * hidden, static_cast<int>(n),
                static_cast<int>(hidden), y);
}

}  // namespace deepinfer::cuda
