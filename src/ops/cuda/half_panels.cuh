#pragma once

// How a warp multiplies 16 rows of a packed weight matrix, half of what fragments.cuh has: panels are finer, and fewer registers
// hold as many bytes of a row that are on their way. The chains are the same.

#include "ops/cuda/fragments.cuh"

namespace deepinfer::cuda {

inline constexpr int kHalfPanelRows = 16;

/// One chunk of columns of the lane's rows g and g + 8.
struct HalfChunk {
  uint4 rows[2];
  uint32_t scales;  // two bytes
};

template <WeightFormat kFormat>
__device__ inline void load_half(const WeightPanel<kFormat>& panel, int column, int lane, HalfChunk& chunk) {
  static_assert(kFormat == WeightFormat::kFp8 || kFormat == WeightFormat::kBf16);
  const int own_column = column + lane % 4 * (chunk_columns(kFormat) / 4);
  const bool inside = own_column < panel.columns;
  // Columns that do not exist: others of the row, so that no load has a condition.
  const int64_t at = !inside ? -(lane % 4 * 16) : kFormat == WeightFormat::kFp8 ? column : column * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    chunk.rows[i] = load_once(panel.values + (i == 0 ? 0 : panel.value_step[0]) + at);
    if (kFormat == WeightFormat::kBf16 && !inside) chunk.rows[i] = make_uint4(0, 0, 0, 0);
  }
  if constexpr (kFormat == WeightFormat::kFp8) {
    const uint8_t* scales = panel.scales + (inside ? own_column / kScaleGroup : 0);
    const uint32_t first = __ldg(scales);
    const uint32_t second = panel.scale_step[0] == 0 ? first : __ldg(scales + panel.scale_step[0]);
    chunk.scales = inside ? first | second << 8 : 127u | 127u << 8;
  }
}

template <WeightFormat kFormat, bool kInterleaved, bool kWide, int kTiles, typename Inputs>
__device__ inline void add_scaled(const HalfChunk& chunk, const Inputs& inputs, float (&c)[kTiles][4]) {
  constexpr int kPairs = kFormat == WeightFormat::kFp8 ? 2 : 1;
  uint32_t scale[2] = {}, excess[2] = {};
  if constexpr (kFormat == WeightFormat::kFp8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t byte = chunk.scales >> 8 * i & 255;
      scale[i] = kWide ? scale_pair(byte, kFp8Bias) : ((byte + kFp8Bias) << 7) * 0x10001u;
      if (kWide) excess[i] = excess_pair(byte, kFp8Bias);
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

/// As multiply_chunk of fragments.cuh: scales that need two factors have a path of their own.
template <WeightFormat kFormat, bool kInterleaved, int kTiles, typename Inputs>
__device__ inline void add_half(const HalfChunk& chunk, const Inputs& inputs, float (&c)[kTiles][4]) {
  if constexpr (kFormat == WeightFormat::kFp8) {
    if (__any_sync(0xffffffffu, max(chunk.scales & 255, chunk.scales >> 8) > kMostScale<kFormat>)) {
      add_scaled<kFormat, kInterleaved, true, kTiles>(chunk, inputs, c);
      return;
    }
  }
  add_scaled<kFormat, kInterleaved, false, kTiles>(chunk, inputs, c);
}

}  // namespace deepinfer::cuda
