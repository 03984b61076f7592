// Hyper-connections (spec/backbone §3.2). The coefficients are products in true fp32: columns are cut into slices, every slice is
// added by one warp in a fixed pattern, and slices in ascending order.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/row_ops.h"

namespace deepinfer::cuda {
namespace {

constexpr int kSlice = 512;        // columns
constexpr int kRowsAtOnce = 4;     // that share a load of the weights
constexpr int kOutputsAtOnce = 3;  // of one warp
constexpr int kMixThreads = 256;
constexpr int kMostStreams = 8;

// partial [rows][slices][outputs + 1]: the last is the sum of squares. Grid: slices, blocks of kRowsAtOnce rows.
__global__ void __launch_bounds__(kMixThreads)
    mix_slices(const float* fn, const bf16* x, int64_t rows, int width, int outputs, float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int begin = static_cast<int>(blockIdx.x) * kSlice;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRowsAtOnce;
  constexpr int kSteps = kSlice / (kWarp * 4);
  float v[kRowsAtOnce][kSteps][4];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = begin + s * kWarp * 4 + lane * 4;
      uint2 pair = make_uint2(0, 0);
      if (first_row + r < rows && at < width) pair = __ldg(reinterpret_cast<const uint2*>(x + (first_row + r) * width + at));
      v[r][s][0] = widen_low(pair.x), v[r][s][1] = widen_high(pair.x);
      v[r][s][2] = widen_low(pair.y), v[r][s][3] = widen_high(pair.y);
    }
  }
  const auto store = [&](int r, int o, float sum) {
    if (lane == 0 && first_row + r < rows) partial[((first_row + r) * gridDim.x + blockIdx.x) * (outputs + 1) + o] = sum;
  };
  for (int o = warp * kOutputsAtOnce; o < outputs; o += kMixThreads / kWarp * kOutputsAtOnce) {
    float sum[kOutputsAtOnce][kRowsAtOnce] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = begin + s * kWarp * 4 + lane * 4;
#pragma unroll
      for (int i = 0; i < kOutputsAtOnce; ++i) {
        float4 f = make_float4(0, 0, 0, 0);
        if (o + i < outputs && at < width) f = __ldg(reinterpret_cast<const float4*>(fn + static_cast<int64_t>(o + i) * width + at));
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          sum[i][r] = fmaf(f.x, v[r][s][0], sum[i][r]);
          sum[i][r] = fmaf(f.y, v[r][s][1], sum[i][r]);
          sum[i][r] = fmaf(f.z, v[r][s][2], sum[i][r]);
          sum[i][r] = fmaf(f.w, v[r][s][3], sum[i][r]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kOutputsAtOnce; ++i) {
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const float total = warp_sum(sum[i][r]);
        if (o + i < outputs) store(r, o + i, total);
      }
    }
  }
  if (warp != 0) return;
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    float square = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) square = fmaf(v[r][s][i], v[r][s][i], square);
    }
    store(r, outputs, warp_sum(square));
  }
}

// One block a row; thread (i, j) holds one element of the combination matrix.
__global__ void finish_mix(const HyperMixWeights w, const float* partial, int slices, float* pre, float* post, float* comb) {
  __shared__ float m[kMostStreams * (kMostStreams + 2) + 1];
  __shared__ float c[kMostStreams * kMostStreams];
  const int n = static_cast<int>(w.n);
  const int outputs = (2 + n) * n;
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x);
  for (int o = t; o <= outputs; o += static_cast<int>(blockDim.x)) {
    const float* p = partial + row * slices * (outputs + 1) + o;
    float sum = 0;
    for (int s = 0; s < slices; ++s) sum += p[static_cast<int64_t>(s) * (outputs + 1)];
    m[o] = sum;
  }
  __syncthreads();
  const float scale = 1.0f / sqrtf(m[outputs] / static_cast<float>(n * w.hidden) + w.rms_eps);
  if (t < n) {
    pre[row * n + t] = sigmoid(m[t] * scale * w.scale[0] + w.base[t]) + w.eps;
    post[row * n + t] = 2.0f * sigmoid(m[n + t] * scale * w.scale[1] + w.base[n + t]);
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
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (at >= count) return;
  const int64_t row = at / hidden;
  const int64_t d = at % hidden;
  float sum[4] = {};
  for (int s = 0; s < n; ++s) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(x + (row * n + s) * hidden + d));
    const float p = pre[row * n + s];
    sum[0] += p * widen_low(v.x), sum[1] += p * widen_high(v.x), sum[2] += p * widen_low(v.y), sum[3] += p * widen_high(v.y);
  }
  *reinterpret_cast<uint2*>(y + at) = make_uint2(narrow_pair(sum[0], sum[1]), narrow_pair(sum[2], sum[3]));
}

__global__ void mean_kernel(const bf16* x, int64_t count, int n, int hidden, bf16* y) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (at >= count) return;
  const int64_t row = at / hidden;
  const int64_t d = at % hidden;
  float sum[4] = {};
  for (int s = 0; s < n; ++s) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(x + (row * n + s) * hidden + d));
    sum[0] += widen_low(v.x), sum[1] += widen_high(v.x), sum[2] += widen_low(v.y), sum[3] += widen_high(v.y);
  }
  const auto streams = static_cast<float>(n);
  *reinterpret_cast<uint2*>(y + at) =
      make_uint2(narrow_pair(sum[0] / streams, sum[1] / streams), narrow_pair(sum[2] / streams, sum[3] / streams));
}

__global__ void expand_kernel(const bf16* o, const float* post, const float* comb, int64_t count, int n, int hidden, bf16* x) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 2;
  if (at >= count) return;
  const int64_t row = at / hidden;
  const int64_t d = at % hidden;
  float old[kMostStreams][2];
#pragma unroll
  for (int i = 0; i < kMostStreams; ++i) {
    if (i >= n) break;
    const uint32_t v = *reinterpret_cast<const uint32_t*>(x + (row * n + i) * hidden + d);
    old[i][0] = widen_low(v), old[i][1] = widen_high(v);
  }
  const uint32_t out = __ldg(reinterpret_cast<const uint32_t*>(o + at));
  for (int j = 0; j < n; ++j) {
    float low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < kMostStreams; ++i) {
      if (i >= n) break;
      const float c = comb[(row * n + i) * n + j];
      low += c * old[i][0], high += c * old[i][1];
    }
    const float p = post[row * n + j];
    *reinterpret_cast<uint32_t*>(x + (row * n + j) * hidden + d) = narrow_pair(p * widen_low(out) + low, p * widen_high(out) + high);
  }
}

unsigned blocks(int64_t items, int64_t per_thread) {
  return static_cast<unsigned>((items + kThreads * per_thread - 1) / (kThreads * per_thread));
}

int64_t slices_of(const HyperMixWeights& w) { return (w.n * w.hidden + kSlice - 1) / kSlice; }

}  // namespace

int64_t hyper_mix_scratch(const HyperMixWeights& w, int64_t rows) { return rows * slices_of(w) * ((2 + w.n) * w.n + 1); }

void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* scratch, float* pre, float* post, float* comb,
               cudaStream_t stream) {
  if (rows == 0) return;
  if (w.n > kMostStreams) cuda_failed(__FILE__, __LINE__, "hyper_mix", "more than 8 streams");
  const auto outputs = static_cast<int>((2 + w.n) * w.n);
  const dim3 grid(static_cast<unsigned>(slices_of(w)), static_cast<unsigned>((rows + kRowsAtOnce - 1) / kRowsAtOnce));
  mix_slices<<<grid, kMixThreads, 0, stream>>>(w.fn, x, rows, static_cast<int>(w.n * w.hidden), outputs, scratch);
  finish_mix<<<static_cast<unsigned>(rows), 64, 0, stream>>>(w, scratch, static_cast<int>(slices_of(w)), pre, post, comb);
  DI_CUDA_LAUNCHED();
}

void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y, cudaStream_t stream) {
  if (rows == 0) return;
  collapse_kernel<<<blocks(rows * hidden, 4), kThreads, 0, stream>>>(x, pre, rows * hidden, static_cast<int>(n),
                                                                     static_cast<int>(hidden), y);
  DI_CUDA_LAUNCHED();
}

void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden, bf16* x,
                  cudaStream_t stream) {
  if (rows == 0) return;
  if (n > kMostStreams) cuda_failed(__FILE__, __LINE__, "hyper_expand", "more than 8 streams");
  expand_kernel<<<blocks(rows * hidden, 2), kThreads, 0, stream>>>(o, post, comb, rows * hidden, static_cast<int>(n),
                                                                   static_cast<int>(hidden), x);
  DI_CUDA_LAUNCHED();
}

void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y, cudaStream_t stream) {
  if (rows == 0) return;
  mean_kernel<<<blocks(rows * hidden, 4), kThreads, 0, stream>>>(x, rows * hidden, static_cast<int>(n), static_cast<int>(hidden), y);
  DI_CUDA_LAUNCHED();
}

}  // namespace deepinfer::cuda
