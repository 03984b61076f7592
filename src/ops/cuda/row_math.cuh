#pragma once

// What kernels that go row by row do with a few columns: written once, so that a fused kernel has the bits of those it stands
// for. A block of kRowThreads has a row; a thread its columns 4 t .. 4 t + 3, and those kRowThreads * 4 further on, whatever the
// kernel.

#include "ops/cuda/device_math.cuh"

namespace deepinfer::cuda {

inline constexpr int kRowThreads = 256;

/// Squares of four columns, added to the thread's.
__device__ inline float add_squares(const uint2& v, float square) {
  const float a = widen_low(v.x), b = widen_high(v.x), c = widen_low(v.y), d = widen_high(v.y);
  return fmaf(d, d, fmaf(c, c, fmaf(b, b, fmaf(a, a, square))));
}
/// From the squares of the thread's columns: the factor of the row's norm (spec/backbone §3.3). `scratch`: as of block_sum.
__device__ inline float norm_scale(float square, int dim, float eps, float* scratch) {
  return 1.0f / sqrtf(block_sum<kRowThreads>(square, scratch) / static_cast<float>(dim) + eps);
}
__device__ inline uint2 normalize_four(const uint2& v, const uint2& w, float scale) {
  return make_uint2(narrow_pair(widen_low(w.x) * (widen_low(v.x) * scale), widen_high(w.x) * (widen_high(v.x) * scale)),
                    narrow_pair(widen_low(w.y) * (widen_low(v.y) * scale), widen_high(w.y) * (widen_high(v.y) * scale)));
}

/// Adds four columns of a stream, times p, to those of the collapsed streams.
__device__ inline void add_stream(const uint2& v, float p, float (&sum)[4]) {
  sum[0] += p * widen_low(v.x), sum[1] += p * widen_high(v.x), sum[2] += p * widen_low(v.y), sum[3] += p * widen_high(v.y);
}
/// Four columns of a stream after a sublayer (spec/backbone §3.2): its output times `post`, and the streams before, stream s
/// times mix(s).
template <int kStreams, typename Mix>
__device__ inline uint2 expand_four(const uint2& out, const uint2 (&old)[kStreams], float post, const Mix& mix) {
  float sum[4] = {};
#pragma unroll
  for (int s = 0; s < kStreams; ++s) add_stream(old[s], mix(s), sum);
  return make_uint2(narrow_pair(post * widen_low(out.x) + sum[0], post * widen_high(out.x) + sum[1]),
                    narrow_pair(post * widen_low(out.y) + sum[2], post * widen_high(out.y) + sum[3]));
}

/// Four columns of a row's collapsed streams (spec/backbone §3.2). `x`: the first stream's, `pre`: the row's.
__device__ inline uint2 collapse_four(const bf16* x, const float* pre, int streams, int hidden) {
  float sum[4] = {};
  for (int s = 0; s < streams; ++s) {
    const uint2 v = *reinterpret_cast<const uint2*>(x + static_cast<int64_t>(s) * hidden);
    add_stream(v, pre[s], sum);
  }
  return make_uint2(narrow_pair(sum[0], sum[1]), narrow_pair(sum[2], sum[3]));
}

/// A pair of dims, rotated (spec/backbone §3.4).
__device__ inline uint32_t rotate_pair(uint32_t pair, float c, float s) {
  const float a = widen_low(pair);
  const float b = widen_high(pair);
  return narrow_pair(a * c - b * s, a * s + b * c);
}

}  // namespace deepinfer::cuda
