#pragma once

// The keys of a query, which are its values too: where they lie, and how they are widened. Keys of the window are FP8, those
// behind it FP4 with an E4M3 scale for every 16 dims (spec/backbone §6.2, §6.3).

#include "ops/cuda/fragments.cuh"
#include "ops/ops.h"

namespace deepinfer::cuda {

__device__ inline int window_of(const AttentionQuery& a) { return static_cast<int>(a.window_last - a.window_first + 1); }
__device__ inline int count_of(const AttentionQuery& a) { return window_of(a) + static_cast<int>(a.chosen_count); }

/// Entry i of the row's list, one of the window; positions fit in 32 bits, whose divisions are quick.
__device__ inline const uint8_t* window_row(const AttentionQuery& a, int i) {
  const int64_t p = a.window_first + i;
  if (p >= a.window.start) return a.window.fresh + (p - a.window.start) * a.window.row_bytes;
  return a.window.ring + static_cast<uint32_t>(p) % static_cast<uint32_t>(a.window.capacity) * a.window.row_bytes;
}
/// A row that was chosen, and the page it lies in.
__device__ inline const uint8_t* page_of(const AttentionQuery& a, uint32_t row) {
  return a.compressed.pages[row / static_cast<uint32_t>(a.compressed.rows_per_page)];
}
__device__ inline const uint8_t* row_in_page(const AttentionQuery& a, const uint8_t* page, uint32_t row) {
  return page + a.compressed.offset + row % static_cast<uint32_t>(a.compressed.rows_per_page) * a.compressed.row_bytes;
}
/// Entry i of the row's list.
__device__ inline const uint8_t* key_row(const AttentionQuery& a, int i) {
  const int window = window_of(a);
  if (i < window) return window_row(a, i);
  const auto row = static_cast<uint32_t>(a.chosen[i - window]);
  return row_in_page(a, page_of(a, row), row);
}

/// Two E4M3 scales of a key, as they lie: both bytes in one load where `even`, an even address. Otherwise they are put together
/// at once, so the load is waited for.
__device__ inline uint32_t load_scales(const uint8_t* p, bool even) {
  if (even) return *reinterpret_cast<const uint16_t*>(p);
  return p[0] | static_cast<uint32_t>(p[1]) << 8;
}
/// Scale `which` of two as a bf16 pair, exact.
__device__ inline uint32_t scale_of(uint32_t scales, int which) {
  const uint32_t high = __byte_perm(scales, 0, which == 0 ? 0x0404 : 0x1414);
  const uint32_t pair = multiply_bf16x2(spread_fp8(high), 0x7b807b80u);  // 2^120
  return (high & 0x7f00u) == 0x7f00u ? 0x7fc07fc0u : pair;
}

/// 8 codes times an E4M3 scale, exact.
__device__ inline void widen_compressed(uint32_t word, uint32_t scale, uint32_t (&r)[4]) {
  widen_fp4(word, r);
#pragma unroll
  for (uint32_t& v : r) v = multiply_bf16x2(multiply_bf16x2(v, 0x7e807e80u), scale);  // 2^126
}

__device__ inline uintptr_t address_of(const uint8_t* p) { return reinterpret_cast<uintptr_t>(p); }
/// Whether the rows of all lanes begin at multiples of 16 bytes: 16 bytes of one are then one load. `rows`: the lane's addresses
/// or'ed.
__device__ inline bool whole_rows(uintptr_t rows) { return !__any_sync(0xffffffffu, rows % 16 != 0); }
__device__ inline uint4 load_row(const uint8_t* p, bool whole) {
  if (whole) return *reinterpret_cast<const uint4*>(p);
  return load_unaligned(p);
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
  const uint32_t scale = scale_of(piece.scale, 0);
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
