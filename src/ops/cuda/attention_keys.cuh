#pragma once

// The keys of a query, which are its values too: where they lie, and how they are widened. Keys of the window are FP8, those
// behind it FP4 with an E4M3 scale for every 16 dims (spec/backbone §6.2, §6.3).

#include "ops/cuda/fragments.cuh"
#include "ops/ops.h"

namespace deepinfer::cuda {

__device__ inline int window_of(const AttentionQuery& a) { return static_cast<int>(a.window_last - a.window_first + 1); }
__device__ inline int count_of(const AttentionQuery& a) { return window_of(a) + static_cast<int>(a.chosen_count); }

/// Entry i of the row's list.
__device__ inline const uint8_t* key_row(const AttentionQuery& a, int i) {
  const int window = window_of(a);
  if (i < window) {
    const int64_t p = a.window_first + i;
    return p >= a.window.start ? a.window.fresh + (p - a.window.start) * a.window.row_bytes
                               : a.window.ring + p % a.window.capacity * a.window.row_bytes;
  }
  const auto j = static_cast<uint32_t>(a.chosen[i - window]);
  const auto rows_per_page = static_cast<uint32_t>(a.compressed.rows_per_page);  // 64-bit divisions are slow
  return a.compressed.pages[j / rows_per_page] + a.compressed.offset +
         static_cast<int64_t>(j % rows_per_page) * a.compressed.row_bytes;
}

__device__ inline uint32_t same_pair(float v) { return static_cast<uint32_t>(bf16_bits(v)) * 0x10001u; }

/// 8 codes times an E4M3 scale, exact.
__device__ inline void widen_compressed(uint32_t word, uint32_t scale, uint32_t (&r)[4]) {
  widen_fp4(word, r);
#pragma unroll
  for (uint32_t& v : r) v = multiply_bf16x2(multiply_bf16x2(v, 0x7e807e80u), scale);  // 2^126
}

/// 16 dims of one key on their way to shared memory.
struct ValuePiece {
  uint4 data;
  uint32_t scale;
};

/// In natural order.
__device__ inline void widen_values(const ValuePiece& piece, bool window, uint32_t (&r)[8]) {
  if (window) {
    uint32_t half[4];
    const uint32_t scale = scale_pair(piece.scale, kFp8Bias);
    const uint32_t excess = excess_pair(piece.scale, kFp8Bias);
    widen_fp8(piece.data.x, piece.data.y, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = multiply_bf16x2(multiply_bf16x2(half[i], scale), excess);
    widen_fp8(piece.data.z, piece.data.w, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) r[4 + i] = multiply_bf16x2(multiply_bf16x2(half[i], scale), excess);
    return;
  }
  const uint32_t scale = same_pair(e4m3_value(piece.scale));
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    uint32_t q[4];  // (0, 4), (1, 5), (2, 6), (3, 7)
    widen_compressed(w == 0 ? piece.data.x : piece.data.y, scale, q);
    r[4 * w] = __byte_perm(q[0], q[1], 0x5410);
    r[4 * w + 1] = __byte_perm(q[2], q[3], 0x5410);
    r[4 * w + 2] = __byte_perm(q[0], q[1], 0x7632);
    r[4 * w + 3] = __byte_perm(q[2], q[3], 0x7632);
  }
}

}  // namespace deepinfer::cuda
