#pragma once

// How a warp multiplies 16 rows of a packed weight matrix, half of what fragments.cuh has: panels are finer, and fewer registers
// hold as many bytes of a row that are on their way. The chains are the same.

#include "ops/cuda/fragments.cuh"
#include "ops/cuda/products.h"

namespace deepinfer::cuda {

inline constexpr int kHalfPanelRows = 16;

/// The panels of all outputs of a product, which come one after the other in each of its groups.
struct PanelGrid {
  int groups = 0;
  int panels = 0;  ///< in one group
  int output_panels[ProductArgs::kMostOutputs] = {};
  int output_rows[ProductArgs::kMostOutputs] = {};  ///< in one group

  PanelGrid() = default;
  explicit PanelGrid(const ProductArgs& args) : groups(static_cast<int>(args.groups)) {
    for (int i = 0; i < args.output_count; ++i) {
      output_rows[i] = static_cast<int>(args.outputs[i].weight.out / args.groups);
      output_panels[i] = (output_rows[i] + kHalfPanelRows - 1) / kHalfPanelRows;
      panels += output_panels[i];
    }
  }
};

struct HalfPanel {
  int which = 0;  ///< output
  int64_t first_row = 0;
  int64_t last_row = 0;  ///< of the group
};
__device__ inline HalfPanel panel_of(const PanelGrid& grid, int group, int number) {
  HalfPanel panel;
  while (number >= grid.output_panels[panel.which]) number -= grid.output_panels[panel.which++];
  const int64_t rows = grid.output_rows[panel.which];
  panel.first_row = group * rows + int64_t{number} * kHalfPanelRows;
  panel.last_row = (group + 1) * rows - 1;
  return panel;
}

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

/// A segment of `rows` input rows to shared memory, 16 columns a lane; kQuantize: rounded and interleaved, two lanes have a group
/// of scales. For the whole warp.
template <bool kQuantize>
__device__ inline void bring_segment(const bf16* x, int64_t stride, int rows, int first, int columns, bf16* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = first + lane * 16;
  __syncwarp();  // what was there has been used
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    uint4 v[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      v[half] = column + half * 8 < columns ? load_again(x + r * stride + column + half * 8) : make_uint4(0, 0, 0, 0);
    if constexpr (kQuantize) {
      float f[8];
      float amax = fmaxf(widen_eight(v[1], f), widen_eight(v[0], f));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      const float scale = e8m0_value(fp8_scale_bits(amax));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        widen_eight(v[half], f);
        v[half] = round_eight(f, scale);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) *reinterpret_cast<uint4*>(to + r * kSegment + lane * 16 + half * 8) = v[half];
  }
  __syncwarp();
}

}  // namespace deepinfer::cuda
