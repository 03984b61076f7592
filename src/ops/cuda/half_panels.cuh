#pragma once

// How a warp multiplies 16 rows of a packed weight matrix, half of what fragments.cuh has: panels are finer, and fewer registers
// hold as many bytes of a row that are on their way. The chains are the same.

#include "ops/cuda/fragments.cuh"

namespace deepinfer::cuda {

inline constexpr int kHalfPanelRows = 16;

/// One chunk of columns of the lane's rows g and g + 8.
struct HalfChunk {
  uint4 rows[2];
  uint32_t scales[2];
};

/// `column`: first of the chunk. Columns that do not exist are others of the row, so that no load has a condition.
template <WeightFormat kFormat>
__device__ inline void load_half(const WeightPanel<kFormat>& panel, int column, int lane, HalfChunk& chunk) {
  static_assert(kFormat == WeightFormat::kFp8 || kFormat == WeightFormat::kBf16);
  const int own_column = column + lane % 4 * (chunk_columns(kFormat) / 4);
  const bool inside = own_column < panel.columns;
  const int64_t at = !inside ? -(lane % 4 * 16) : kFormat == WeightFormat::kFp8 ? column : column * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    chunk.rows[i] = load_once(panel.values + (i == 0 ? 0 : panel.value_step[0]) + at);
    if (kFormat == WeightFormat::kBf16 && !inside) chunk.rows[i] = make_uint4(0, 0, 0, 0);
  }
  if constexpr (kFormat == WeightFormat::kFp8) {
    const uint8_t* scales = panel.scales + (inside ? own_column / kScaleGroup : 0);
    chunk.scales[0] = load_byte(scales);
    chunk.scales[1] = load_byte(scales + panel.scale_step[0]);
  }
}

/// Chunk number `c`, a constant, of a whole segment.
template <WeightFormat kFormat>
__device__ inline void load_half(const WeightPanel<kFormat>& panel, const typename WeightPanel<kFormat>::Segment& segment, int c,
                                 HalfChunk& chunk) {
  constexpr int kGroups = chunk_columns(kFormat) / kScaleGroup;
#pragma unroll
  for (int i = 0; i < 2; ++i) chunk.rows[i] = load_once(segment.row + (i == 0 ? 0 : panel.value_step[0]) + c * 64);
  if constexpr (kFormat == WeightFormat::kFp8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) chunk.scales[i] = load_byte(segment.scales + (i == 0 ? 0 : panel.scale_step[0]) + c * kGroups);
  }
}

/// Adds the products of a chunk whose scale bytes are `scales`; kWide: they may need two factors. `inputs(tile, pair)`: as in
/// fragments.cuh.
template <WeightFormat kFormat, bool kInterleaved, bool kWide, int kTiles, typename Inputs>
__device__ inline void add_scaled(const HalfChunk& chunk, const uint32_t (&scales)[2], const Inputs& inputs,
                                  float (&c)[kTiles][4]) {
  constexpr int kPairs = kFormat == WeightFormat::kFp8 ? 2 : 1;
  uint32_t scale[2] = {}, excess[2] = {};
  if constexpr (kFormat == WeightFormat::kFp8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = kWide ? scale_pair(scales[i], kFp8Bias) : ((scales[i] + kFp8Bias) << 7) * 0x10001u;
      if (kWide) excess[i] = excess_pair(scales[i], kFp8Bias);
    }
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint32_t w[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) widen_words<kFormat, kInterleaved, kWide>(chunk.rows[i], pair, scale[i], excess[i], w[i]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 x = inputs(tile, pair);
      const uint32_t a0[4] = {w[0][0], w[1][0], w[0][1], w[1][1]};
      const uint32_t a1[4] = {w[0][2], w[1][2], w[0][3], w[1][3]};
      mma(c[tile], a0, x.x, x.y);
      mma(c[tile], a1, x.z, x.w);
    }
  }
}

/// As multiply_chunk of fragments.cuh: scales that need two factors have a path of their own. `inside`: the lane's columns exist;
/// else its inputs are zeros.
template <WeightFormat kFormat, bool kInterleaved, int kTiles, typename Inputs>
__device__ inline void add_half(const HalfChunk& chunk, bool inside, const Inputs& inputs, float (&c)[kTiles][4]) {
  uint32_t scales[2] = {};
  if constexpr (kFormat == WeightFormat::kFp8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[i] = inside ? chunk.scales[i] : 127;
    if (__any_sync(0xffffffffu, max(scales[0], scales[1]) > kMostScale<kFormat>)) {
      add_scaled<kFormat, kInterleaved, true>(chunk, scales, inputs, c);
      return;
    }
  }
  add_scaled<kFormat, kInterleaved, false>(chunk, scales, inputs, c);
}

}  // namespace deepinfer::cuda
