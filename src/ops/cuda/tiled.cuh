#pragma once

// Products with many input rows: a block of kWarps panels shares 64 input rows, which go through shared memory 128 columns at a
// time. The chains of mma, the segments and the order of their sums are those of segments.cuh, so a row's numbers are too.

#include "ops/cuda/segments.cuh"

namespace deepinfer::cuda {

inline constexpr int kTiledTiles = 8;
inline constexpr int kTiledInputs = kTiledTiles * 8;
inline constexpr int kTiledWarps = 8;
inline constexpr int kTiledThreads = kTiledWarps * kWarp;
inline constexpr int kStageColumns = 128;
inline constexpr int kStages = 3;
inline constexpr int kMostRowSlots = 20;  ///< of 16 bytes
inline constexpr int kPartFloats = kTiledInputs * kPartStride;
inline constexpr size_t kTiledShared = kStages * kTiledInputs * kMostRowSlots * 16 + kTiledWarps * kPartFloats * sizeof(float);

/// Slots of a row in shared memory, and where a slot lies: no two lanes of a load meet in a bank.
__host__ __device__ constexpr int row_slots(WeightFormat f) { return f == WeightFormat::kFp8 ? 17 : is_fp4(f) ? 18 : 20; }
template <WeightFormat kFormat>
__device__ inline int slot_place(int slot) {
  return kFormat == WeightFormat::kBf16 ? slot : slot + slot / 8;
}

/// Sums of the warp's panel for the block's inputs into `part` [64][kPartStride]. All threads of the block take part; warps
/// without a panel (`active` false) only load. `row_of(i)`: input row i of the block or nullptr.
template <WeightFormat kFormat, bool kInterleaved, typename RowOf>
__device__ inline void multiply_tiled(const WeightView& w, int64_t first_row, int64_t last_row, bool active, const RowOf& row_of,
                                      uint4* stages, float* part) {
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kStride = row_slots(kFormat);
  constexpr int kCopies = kTiledInputs * (kStageColumns / 8) / kTiledThreads;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto columns = static_cast<int>(w.in);
  const int slot = thread % (kStageColumns / 8);
  const bf16* rows[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    rows[i] = row_of((thread + i * kTiledThreads) / (kStageColumns / 8));
    if (rows[i] != nullptr) rows[i] += slot * 8;
  }
  const auto fetch = [&](int column, int stage) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int input = (thread + i * kTiledThreads) / (kStageColumns / 8);
      const bool inside = rows[i] != nullptr && column + slot * 8 < columns;
      const uint4* to = stages + (stage * kTiledInputs + input) * kStride + slot_place<kFormat>(slot);
      copy_async(shared_address(to), inside ? rows[i] + column : nullptr, inside ? 16 : 0);
    }
    commit_copies();
  };
  const WeightPanel<kFormat> panel(w, min(first_row, last_row), last_row, lane);
  WeightChunk<kFormat> next;
  if (active) panel.load(0, lane, next);
  fetch(0, 0);
  fetch(kStageColumns, 1);
  float c[2][kTiledTiles][4] = {};
  int stage = 0;
  for (int column = 0; column < columns; column += kStageColumns) {
    wait_copies<1>();
    __syncthreads();
    fetch(column + 2 * kStageColumns, (stage + 2) % kStages);
    if (active) {
#pragma unroll
      for (int in_stage = 0; in_stage < kStageColumns; in_stage += kChunk) {
        const WeightChunk<kFormat> chunk = next;
        if (column + in_stage + kChunk < columns) panel.load(column + in_stage + kChunk, lane, next);
        const uint4* x = stages + (stage * kTiledInputs + g) * kStride;
        const auto inputs = [&](int tile, int pair) {
          return x[tile * 8 * kStride + slot_place<kFormat>(in_stage / 8 + t * (kChunk / 32) + pair)];
        };
        if (column + in_stage < columns) multiply_chunk<kFormat, kInterleaved, kTiledTiles>(chunk, inputs, c);
      }
      const bool segment_ends = (column + kStageColumns) % kSegment == 0 || column + kStageColumns >= columns;
      if (segment_ends) {
        const bool first = column < kSegment;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int tile = 0; tile < kTiledTiles; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float* at = part + (tile * 8 + t * 2 + i % 2) * kPartStride + m * 16 + g + i / 2 * 8;
              *at = first ? c[m][tile][i] : *at + c[m][tile][i];
              c[m][tile][i] = 0;
            }
          }
        }
      }
    }
    stage = (stage + 1) % kStages;
  }
  wait_copies<0>();
}

}  // namespace deepinfer::cuda
