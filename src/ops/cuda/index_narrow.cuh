#pragma once

// Dots of index keys and queries as products of E4M3. FP4 codes are E4M3 numbers: their three bits, two places higher, are
// 2^-6 of their number, those of no exponent included. A group of 32 columns is a product, and its sum a multiple of a unit that
// has no more than 13 bits: at most 32 x 12 x 15 units. So it is exact, as is what the four groups add up to after their scales,
// as long as these lie close together: 128 x 12 x 15 x 2^spread < 2^24, where the spread is that of the keys' scales and that of
// the queries'. Then the chain of bf16 products has no rounding either, and this has its bits.

#include <cuda_fp8.h>

#include "ops/cuda/index_wide.cuh"
#include "ops/cuda/narrow_products.cuh"

namespace deepinfer::cuda::wide_index {

inline constexpr uint32_t kNarrowGroups = kDim / kScaleGroup;
static_assert(kNarrowGroups == 4 && kDim == kSwizzledRow);

struct NarrowQueries {
  uint8_t queries[kHeads * kSwizzledRow];  // E4M3, rows of 128 columns in the order of a lane's codes
  uint2 weights[4][kHeads / 16];           // of a lane of four: pairs, times what the head's queries were divided by
  uint8_t level[kThreads / kWarp];         // of a warp's queries
};

// What the scales of keys may be for given queries: `mask` of their distance to the lowest one.
struct NarrowLimits {
  uint32_t mask;
  uint32_t below;  // of the scale that lies in the middle
  bool never;
};
inline constexpr uint32_t kNarrowLowest = 64, kNarrowHighest = 180;

// Queries that are multiples of an eighth of their group's highest power of two, as FP4 with any scale are. Level 0: the powers
// of a head's groups are within 2^2, level 1: within 2^6, 2: no such queries.
__device__ inline void load_narrow(const ScoreArgs& args, int64_t r, NarrowQueries& s) {
  bool wide = false;
  bool never = false;
  for (uint32_t i = threadIdx.x; i < kHeads * (kDim / 8); i += kThreads) {
    const uint32_t head = i / (kDim / 8);
    const uint32_t eight = i % (kDim / 8);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (head < static_cast<uint32_t>(args.heads) && eight * 8 < static_cast<uint32_t>(args.dim))
      v = load_unaligned(reinterpret_cast<const uint8_t*>(args.q + (r * args.heads + head) * args.dim + eight * 8));
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
    uint32_t most = 0;
#pragma unroll
    for (const uint32_t pair : pairs) most = max(most, max(pair & 0x7fffu, pair >> 16 & 0x7fffu));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 2));
    uint32_t of_head = max(most, __shfl_xor_sync(0xffffffffu, most, 4));
    of_head = max(of_head, __shfl_xor_sync(0xffffffffu, of_head, 8));
    const uint32_t own = most >> 7;                            // the group's exponent
    const uint32_t power = of_head == 0 ? 127 : of_head >> 7;  // the head's
    never |= power < 127 - 40 || power > 127 + 40;
    const uint32_t apart = most == 0 ? 0 : power - own;
    wide |= apart > 2;
    never |= apart > 6;
    // The highest power becomes 2^7. In units of an eighth of the group's own, numbers are whole.
    const float factor = __uint_as_float((261 - min(power, 200u)) << 23);
    const float units = __uint_as_float((257 - min(own, 200u)) << 23);
    float x[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float low = widen_low(pairs[k]);
      const float high = widen_high(pairs[k]);
      never |= low * units != truncf(low * units) || high * units != truncf(high * units);
      x[2 * k] = low * factor;
      x[2 * k + 1] = high * factor;
    }
#pragma unroll
    for (uint32_t odd = 0; odd < 2; ++odd) {
      const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[odd], x[2 + odd]), __NV_SATFINITE, __NV_E4M3);
      const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[4 + odd], x[6 + odd]), __NV_SATFINITE, __NV_E4M3);
      *reinterpret_cast<uint32_t*>(s.queries + swizzled_piece(head, eight / 4 * 2 + odd) + eight % 4 * 4) = low | high << 16;
    }
    if (eight == 0) {
      const float w = head < static_cast<uint32_t>(args.heads)
                          ? widen_low(reinterpret_cast<const uint16_t*>(args.weights)[r * args.heads + head])
                          : 0.0f;
      const float scaled = w * __uint_as_float((min(power, 200u) - 1) << 23);
      never |= w != 0 && !(fabsf(scaled) >= 0x1p-126f && fabsf(scaled) < 0x1p127f);
      reinterpret_cast<uint16_t*>(s.weights)[(head % 8 / 2 * (kHeads / 8) + head / 8) * 2 + head % 2] =
          static_cast<uint16_t>(__float_as_uint(scaled) >> 16);
    }
  }
  never = __any_sync(0xffffffffu, never);
  wide = __any_sync(0xffffffffu, wide);
  if (threadIdx.x % kWarp == 0) s.level[threadIdx.x / kWarp] = never ? 2 : wide ? 1 : 0;
}
// After the block's barrier.
__device__ inline NarrowLimits narrow_limits(const NarrowQueries& s) {
  uint32_t level = 0;
  for (const uint8_t of_warp : s.level) level = max(level, static_cast<uint32_t>(of_warp));
  return level == 0 ? NarrowLimits{0xf8f8f8f8u, 3, false} : NarrowLimits{0xfcfcfcfcu, 1, level == 2};
}
// Four times the lowest scale that is taken, where `scale` lies in the middle.
__device__ inline uint32_t lowest_scales(const NarrowLimits& limits, uint32_t scale) {
  return min(max(scale, kNarrowLowest + limits.below) - limits.below, kNarrowHighest) * 0x01010101u;
}

// The lane's part of two keys: eight codes of each group, and all scales.
struct NarrowPiece {
  uint32_t codes[2][kNarrowGroups];
  uint32_t scales[2];
};
// A scale of a key that lies below the lowest one takes from the byte above it, but is far from it itself.
__device__ inline bool too_far(const NarrowPiece& piece, const NarrowLimits& limits, uint32_t lowest) {
  return limits.never || (((piece.scales[0] - lowest) | (piece.scales[1] - lowest)) & limits.mask) != 0;
}
// A operands: codes 0 2 4 6, then 1 3 5 7.
__device__ inline void narrow_keys(const NarrowPiece& piece, uint32_t (&a)[kNarrowGroups][4]) {
#pragma unroll
  for (uint32_t group = 0; group < kNarrowGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = piece.codes[i][group];
      a[group][i] = (w << 4 & 0x80808080u) | (w << 2 & 0x1c1c1c1cu);
      a[group][i + 2] = (w & 0x80808080u) | (w >> 2 & 0x1c1c1c1cu);
    }
  }
}

// Sums of the lane's two keys by 16 heads at a time. `queries` describes the first head's row.
__device__ inline void add_narrow(const NarrowPiece& piece, const uint32_t (&a)[kNarrowGroups][4], uint32_t queries_high,
                                  uint32_t queries_low, const uint2 (&weights)[kHeads / 16], float (&sums)[1][2]) {
  float scales[2][kNarrowGroups];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t s = piece.scales[i];
    const uint32_t fields[kNarrowGroups] = {s << 23, s << 15, s << 7, s >> 1};
#pragma unroll
    for (uint32_t group = 0; group < kNarrowGroups; ++group) scales[i][group] = __uint_as_float(fields[group] & 0x7f800000u);
  }
  sums[0][0] = sums[0][1] = 0;
#pragma unroll
  for (uint32_t part = 0; part < kHeads / 16; ++part) {
    float c[kNarrowGroups][2][4];
    begin_products();
#pragma unroll
    for (uint32_t group = 0; group < kNarrowGroups; ++group) {
      const uint32_t low = queries_low + (part * 16 * kSwizzledRow + group * kScaleGroup) / 16;
      multiply_narrow(c[group], a[group], static_cast<uint64_t>(queries_high) << 32 | low);
    }
    commit_products();
    const uint2 pairs = weights[part];
    wait_products<0>();
#pragma unroll
    for (auto& of_group : c) settle(of_group);
#pragma unroll
    for (uint32_t eight = 0; eight < 2; ++eight) {
      float dots[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        dots[k] = c[0][eight][k] * scales[k / 2][0];
#pragma unroll
        for (uint32_t group = 1; group < kNarrowGroups; ++group)
          dots[k] = __fmaf_rn(c[group][eight][k], scales[k / 2][group], dots[k]);
      }
      add_eight(dots, eight == 0 ? pairs.x : pairs.y, sums[0]);
    }
  }
}

}  // namespace deepinfer::cuda::wide_index
