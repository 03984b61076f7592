#pragma once

// How a block of experts_panels.cu divides its shared memory, as plain arithmetic: launches and the host's tests use it.

#include <cstdint>

#include "ops/cuda/fp4_order.h"
#include "ops/cuda/wide_layout.h"

namespace deepinfer::cuda {

inline constexpr uint32_t kPanelCodes = kFp4ChunkBytes;    ///< of a chunk of a panel
inline constexpr uint32_t kPanelScales = kFp4ChunkScales;  ///< likewise
inline constexpr int kBlockColumns = 64;                   ///< of a block of inputs
inline constexpr int kPanelGroupRows = 64;                 ///< weight rows of a warpgroup: two panels
inline constexpr int kPanelOutStride = 64 + 8;             ///< bf16, of a row of outputs in shared memory

/// Byte offsets: of a stage from its beginning, a multiple of 1024; of the rest from the beginning of shared memory.
struct PanelsLayout {
  static constexpr uint32_t kMost = 227 << 10;  ///< of a block on a Hopper GPU
  uint32_t block_bytes = 0;                     ///< inputs, 64 columns
  uint32_t codes = 0;                           ///< in a stage, behind the inputs: [warpgroup][two panels][chunks]
  uint32_t scales = 0;                          ///< likewise
  uint32_t stage_bytes = 0;
  int stages = 0;
  uint32_t outputs = 0;  ///< of each warpgroup
  uint32_t group_outputs = 0;
  uint32_t barriers = 0;  ///< two a stage, and what there is to say of its item
  uint32_t bytes = 0;
};
/// `groups` warpgroups, tiles of up to `inputs`, stages of `chunks` chunks.
DI_HOST_DEVICE constexpr PanelsLayout panels_layout(int groups, int inputs, int chunks) {
  constexpr uint32_t kBarriers = 256;
  PanelsLayout s;
  s.block_bytes = static_cast<uint32_t>(inputs) * kSwizzledRow;
  s.codes = s.block_bytes * 2 * static_cast<uint32_t>(chunks);
  s.scales = s.codes + static_cast<uint32_t>(groups * 2 * chunks) * kPanelCodes;
  s.stage_bytes =
      (s.scales + static_cast<uint32_t>(groups * 2 * chunks) * kPanelScales + kEightRows - 1) / kEightRows * kEightRows;
  s.group_outputs = static_cast<uint32_t>((inputs + 15) / 16 * 16 * kPanelOutStride) * 2;
  s.stages =
      static_cast<int>((PanelsLayout::kMost - kBarriers - static_cast<uint32_t>(groups) * s.group_outputs) / s.stage_bytes);
  s.outputs = static_cast<uint32_t>(s.stages) * s.stage_bytes;
  s.barriers = s.outputs + static_cast<uint32_t>(groups) * s.group_outputs;
  s.bytes = s.barriers + kBarriers;
  return s;
}

}  // namespace deepinfer::cuda
