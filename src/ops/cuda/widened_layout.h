#pragma once

// How a block of products_widened.cu divides its shared memory and a product its rows, as plain arithmetic: launches and the
// host's tests use it.

#include <cstdint>

#include "ops/cuda/wide_layout.h"

namespace deepinfer::cuda {

inline constexpr int kWidenedRows = 128;                    ///< weight rows of a block
inline constexpr int kWidenedGroupRows = kWidenedRows / 2;  ///< of a warpgroup
inline constexpr int kWidenedColumns = 64;                  ///< of a stage
inline constexpr uint32_t kWidenedWeights = kWidenedRows * kSwizzledRow;
inline constexpr int kWidenedOutStride = kWidenedGroupRows + 8;  ///< bf16, of a row of outputs in shared memory

/// Inputs of a tile, of which there are kernels.
inline constexpr int kWidenedInputs[] = {96, 128, 160, 192};

/// Byte offsets from the beginning of shared memory, a multiple of 1024.
struct WidenedLayout {
  static constexpr uint32_t kMost = 227 << 10;  ///< of a block on a Hopper GPU
  uint32_t stage_bytes = 0;                     ///< weights, then inputs
  int stages = 0;
  uint32_t outputs = 0;  ///< of each warpgroup that multiplies
  uint32_t group_outputs = 0;
  uint32_t barriers = 0;  ///< two a stage
  uint32_t bytes = 0;
};
DI_HOST_DEVICE constexpr WidenedLayout widened_layout(int inputs) {
  constexpr uint32_t kBarriers = 256;
  WidenedLayout s;
  s.stage_bytes = kWidenedWeights + static_cast<uint32_t>(inputs) * kSwizzledRow;
  s.group_outputs = static_cast<uint32_t>(inputs * kWidenedOutStride) * 2;
  s.stages = static_cast<int>((WidenedLayout::kMost - kBarriers - 2 * s.group_outputs) / s.stage_bytes);
  s.outputs = static_cast<uint32_t>(s.stages) * s.stage_bytes;
  s.barriers = s.outputs + 2 * s.group_outputs;
  s.bytes = s.barriers + kBarriers;
  return s;
}

/// The rows of a product as tiles.
struct WidenedRows {
  int inputs = 0;  ///< of a tile at most
  int blocks = 0;
  int block_rows = 0;  ///< of all but the last block: as equal sizes as steps of 8 allow
};
constexpr WidenedRows cut_rows(int64_t rows, int inputs) {
  const int64_t blocks = (rows + inputs - 1) / inputs;
  const int64_t block_rows = ((rows + blocks - 1) / blocks + 7) / 8 * 8;
  return {inputs, static_cast<int>((rows + block_rows - 1) / block_rows), static_cast<int>(block_rows)};
}
/// The size of tiles for `rows` inputs of every one of `panels` blocks of weight rows, a multiprocessor each: what all take
/// together, where a step of columns takes as long as its inputs, and something more; an item has kEnds inputs of a step on top.
constexpr WidenedRows widened_rows(int64_t rows, int64_t panels, int64_t columns) {
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kStep = 8;  // what a step costs besides
  constexpr int64_t kEnds = 192;
  int best = 0;
  int64_t least = 0;
  for (const int inputs : kWidenedInputs) {
    const int64_t items = (rows + inputs - 1) / inputs * panels;
    const int64_t step = inputs + kStep;
    const int64_t cost = (items + kMultiprocessors - 1) / kMultiprocessors * (columns / kWidenedColumns * step + kEnds);
    if (best == 0 || cost < least) best = inputs, least = cost;
  }
  return cut_rows(rows, best);
}

/// Where the columns of a row lie that are multiplied together: the four that a quarter of 16 columns has of product `product`
/// (of four in 64 columns) begin at this byte of a row, before the swizzle. Which four they are is the same as everywhere
/// (pair_place).
DI_HOST_DEVICE constexpr uint32_t widened_place(uint32_t quarter, uint32_t product) { return product * 32 + quarter * 8; }

}  // namespace deepinfer::cuda
