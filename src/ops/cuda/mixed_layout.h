#pragma once

// How a block of products_mixed.cu divides its shared memory and a product its rows, as plain arithmetic: launches and the host's
// tests use it.

#include <cstdint>

#include "ops/cuda/widened_layout.h"

namespace deepinfer::cuda {

inline constexpr int kMixedRows = kWidenedRows;            ///< weight rows of a block
inline constexpr int kMixedColumns = 2 * kWidenedColumns;  ///< of a stage: two chunks of inputs
inline constexpr uint32_t kMixedLine = 128;                ///< bytes of a row of weights that are copied at a time
inline constexpr uint32_t kMixedLines = kMixedRows * kMixedLine;
inline constexpr uint32_t kMixedScales = kMixedRows / 32 * 4;  ///< bytes of a stage: blocks of 32 rows and of 32 columns

/// Inputs of a tile, of which there are kernels.
inline constexpr int kMixedInputs[] = {16, 32, 48, 64, 88, 128};

/// Byte offsets from the beginning of shared memory, a multiple of 1024.
struct MixedLayout {
  uint32_t weight_bytes = 0;  ///< of a stage: a line of each row, or two of bf16
  uint32_t stage_bytes = 0;   ///< weights, then two chunks of inputs
  int stages = 0;
  uint32_t scales = 0;   ///< of all stages
  uint32_t outputs = 0;  ///< of each warpgroup that multiplies; those of bf16 go straight to memory
  uint32_t group_outputs = 0;
  uint32_t barriers = 0;  ///< two a stage
  uint32_t bytes = 0;
};
DI_HOST_DEVICE constexpr MixedLayout mixed_layout(int inputs, bool bf16 = false) {
  constexpr uint32_t kBarrier = 8;
  constexpr int kMostStages = 8;
  MixedLayout s;
  s.weight_bytes = kMixedLines * (bf16 ? 2 : 1);
  s.stage_bytes = s.weight_bytes + static_cast<uint32_t>(inputs) * 2 * kSwizzledRow;
  s.group_outputs = bf16 ? 0 : static_cast<uint32_t>((inputs + 15) / 16 * 16 * kWidenedOutStride) * 2;
  const auto stages =
      static_cast<int>((WidenedLayout::kMost - 2 * s.group_outputs) / (s.stage_bytes + kMixedScales + 2 * kBarrier));
  s.stages = stages < kMostStages ? stages : kMostStages;
  s.scales = static_cast<uint32_t>(s.stages) * s.stage_bytes;
  s.outputs = s.scales + static_cast<uint32_t>(s.stages) * kMixedScales;
  s.barriers = s.outputs + 2 * s.group_outputs;
  s.bytes = s.barriers + static_cast<uint32_t>(s.stages) * 2 * kBarrier;
  return s;
}

/// The size of tiles for `rows` inputs of every one of `panels` blocks of weight rows, a multiprocessor each: what all take
/// together. A chunk of columns of FP8 takes so long as an H200 did, most of it for widening, whatever the inputs are, and small
/// tiles would widen too often; of bf16 as long as its operands take to come. An item has a beginning and an end on top of it.
constexpr WidenedRows mixed_rows(int64_t rows, int64_t panels, int64_t columns, bool bf16) {
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kEnds = 480;
  constexpr int kLeastFp8 = 48;
  int best = 0;
  int64_t least = 0;
  for (const int inputs : kMixedInputs) {
    if (!bf16 && inputs < kLeastFp8) continue;
    const int64_t items = (rows + inputs - 1) / inputs * panels;
    const int64_t brought = 74 + inputs * 5 / 8;
    const int64_t chunk = bf16 ? (inputs > brought ? inputs : brought) + 8 : 100 + inputs * 5 / 8;
    const int64_t cost = (items + kMultiprocessors - 1) / kMultiprocessors * (columns / kWidenedColumns * chunk + kEnds);
    if (best == 0 || cost < least) best = inputs, least = cost;
  }
  return cut_rows(rows, best);
}

}  // namespace deepinfer::cuda
