#pragma once

// The block-level part that all products share: warps take segments of the columns, leave their sums in shared memory, and the
// sums of a (weight row, input row) are added in ascending order of the segments.

#include "ops/cuda/fragments.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {

inline constexpr int kPartStride = 36;  ///< floats between input rows of a part: no two lanes of a store meet in a bank

/// Shared memory of a block, in floats.
inline int64_t part_floats(int64_t segments, int tiles) { return segments * tiles * 8 * kPartStride; }

/// Input rows of a block, as the lane sees them: row 8 tile + lane / 4.
template <int kTiles>
struct InputRows {
  const bf16* row[kTiles];  ///< nullptr: no such row, zeros
};

template <WeightFormat kFormat, bool kInterleaved, int kTiles>
__device__ inline void multiply_segment(const WeightPanel<kFormat>& panel, const InputRows<kTiles>& x, int segment, int lane,
                                        float (&c)[2][kTiles][4]) {
  constexpr int kChunk = chunk_columns(kFormat);
  const int first = segment * kSegment;
  if constexpr (kFormat != WeightFormat::kBf16 && kTiles <= 2) {
    if (first + kSegment <= panel.columns) {
      // Every column exists: no conditions, constant distances. Should a scale need two factors, the segment is done again below.
      const auto whole = panel.whole_segment(first, lane);
      WeightChunk<kFormat> chunks[2];
      panel.load(whole, 0, chunks[0]);
      const int at = first + lane % 4 * (kChunk / 4);
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < kSegment / kChunk; ++i) {
        if ((i + 1) * kChunk < kSegment) panel.load(whole, i + 1, chunks[(i + 1) % 2]);
        const auto inputs = [&](int tile, int pair) {
          const bf16* row = x.row[tile];
          return row != nullptr ? load_again(row + at + i * kChunk + pair * 8) : make_uint4(0, 0, 0, 0);
        };
        largest = max(largest, largest_scale(chunks[i % 2]));
        multiply_scaled<kFormat, kInterleaved, false, kTiles>(chunks[i % 2], inputs, c);
      }
      if (!__any_sync(0xffffffffu, largest > kMostScale<kFormat>)) return;
#pragma unroll
      for (auto& m : c) {
#pragma unroll
        for (auto& tile : m) {
#pragma unroll
          for (float& v : tile) v = 0;
        }
      }
    }
  }
  // A chunk of bf16 is short: two have to be on their way.
  constexpr int kAhead = kFormat == WeightFormat::kBf16 && kTiles == 1 ? 2 : 1;
  const int last = min(first + kSegment, panel.columns);
  WeightChunk<kFormat> next[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) panel.load(first + i * kChunk, lane, next[i]);
  for (int begin = first; begin < last; begin += kAhead * kChunk) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int column = begin + i * kChunk;
      if (column >= last) break;
      const WeightChunk<kFormat> chunk = next[i];
      if (column + kAhead * kChunk < last) panel.load(column + kAhead * kChunk, lane, next[i]);
      const int at = column + lane % 4 * (kChunk / 4);
      const bool inside = at < panel.columns;
      const auto inputs = [&](int tile, int pair) {
        const bf16* row = x.row[tile];
        return row != nullptr && inside ? load_again(row + at + pair * 8) : make_uint4(0, 0, 0, 0);
      };
      multiply_chunk<kFormat, kInterleaved, kTiles>(chunk, inputs, c);
    }
  }
}

/// A segment's sums into shared memory, [8 kTiles][kPartStride].
template <int kTiles>
__device__ inline void store_part(float* part, int lane, const float (&c)[2][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m * 16 + lane / 4 + i / 2 * 8;
        const int input = tile * 8 + lane % 4 * 2 + i % 2;
        part[input * kPartStride + row] = c[m][tile][i];
      }
    }
  }
}

/// Sums of all segments of one matrix into `parts` [segments][8 kTiles][kPartStride]; warp `warp` of `warps` takes every
/// warps-th.
template <WeightFormat kFormat, bool kInterleaved, int kTiles>
__device__ inline void multiply_segments(const WeightView& w, int64_t first_row, int64_t last_row, const InputRows<kTiles>& x,
                                         int warp, int warps, int segments, float* parts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const WeightPanel<kFormat> panel(w, first_row, last_row, lane);
  for (int segment = warp; segment < segments; segment += warps) {
    float c[2][kTiles][4] = {};
    multiply_segment<kFormat, kInterleaved, kTiles>(panel, x, segment, lane, c);
    store_part<kTiles>(parts + static_cast<int64_t>(segment) * kTiles * 8 * kPartStride, lane, c);
  }
}

__device__ inline float sum_parts(const float* parts, int segments, int64_t part_size, int input, int row) {
  const float* p = parts + input * kPartStride + row;
  float total = p[0];
  for (int s = 1; s < segments; ++s) total += p[s * part_size];
  return total;
}

/// Blocks that ask for weights ahead of their turn: more do not wait for it together, and what comes later asks twice.
inline constexpr unsigned kFetching = 132;
/// What they ask for, each: of all together as much as memory delivers while a few small kernels run; nothing of a matrix of
/// which that is little.
inline int64_t fetch_budget(int64_t blocks, int64_t matrix_bytes) {
  constexpr int64_t kBytes = 12 << 20;
  if (blocks == 0 || matrix_bytes > 8 * kBytes) return 0;
  return kBytes / (blocks < kFetching ? blocks : kFetching);
}
/// Asks for the weights of a panel, or for those of its first rows that `most` bytes hold.
template <WeightFormat kFormat>
__device__ inline void fetch_panel(const WeightView& w, int64_t first_row, int64_t last_row, int64_t most) {
  const int64_t row_bytes = kFormat == WeightFormat::kFp8 ? w.in : is_fp4(kFormat) ? w.in / 2 : w.in * 2;
  const int64_t rows = min(static_cast<int64_t>(kPanelRows), last_row + 1 - first_row);
  fetch_ahead(w.values + first_row * row_bytes, min(rows, most / row_bytes) * row_bytes);
}

/// Warps of a block for `segments` segments: as equal shares as `most` allow.
inline int segment_warps(int64_t segments, int64_t most) {
  const int64_t rounds = (segments + most - 1) / most;
  return static_cast<int>((segments + rounds - 1) / rounds);
}

}  // namespace deepinfer::cuda
