#pragma once

// How a block of staged.cuh divides its shared memory, as plain arithmetic: launches and the host's tests use it.

#include <cstdint>

#include "ops/cuda/host_device.h"

namespace deepinfer::cuda {

inline constexpr int kStagedRows = 256;              ///< weight rows of a block
inline constexpr int kStagedHalf = kStagedRows / 2;  ///< of one matrix, if there are two
inline constexpr int kStagedColumns = 64;            ///< of a stage of inputs
inline constexpr uint32_t kStagedRowBytes = 64;      ///< of a row in a stage of weights
inline constexpr uint32_t kStagedScaleSlot = 8;      ///< bytes of a row's scales in a stage, at any place in a word
inline constexpr uint32_t kStagedWeights = kStagedRows * kStagedRowBytes;
inline constexpr uint32_t kStagedScales = kStagedRows * kStagedScaleSlot;
inline constexpr int kStagedOutStride = kStagedHalf + 8;  ///< bf16, of a row of outputs in shared memory
inline constexpr int kMostStages = 16;
inline constexpr uint32_t kMostShared = 227 << 10;  ///< of a block on a Hopper GPU

inline constexpr int kMostStagedInputs = 128;  ///< of a tile
/// Inputs that `count` are rounded up to: those that there are kernels for. Widening the weights takes as long as multiplying
/// some 60 inputs, so fewer sizes do below.
DI_HOST_DEVICE constexpr int staged_inputs(int count) { return count <= 32 ? 32 : count <= 64 ? 64 : (count + 15) / 16 * 16; }
/// Of the inputs / 4 quadruples of sums of a thread, those of earlier segments that are kept in registers. The others lie in
/// shared memory.
DI_HOST_DEVICE constexpr int kept_sums(int inputs) {
  return inputs <= 64 ? inputs / 4 : inputs <= 80 ? 16 : inputs <= 96 ? 10 : inputs <= 112 ? 5 : 1;
}

/// Byte offsets from the beginning of shared memory, a multiple of 1024.
struct StagedLayout {
  int inputs = 0;  ///< of a tile at most
  int weight_stages = 0;
  int input_stages = 0;
  uint32_t input_bytes = 0;  ///< of a stage; the first one begins at 0
  uint32_t weights = 0;      ///< stages, then their scales
  uint32_t scales = 0;
  uint32_t work = 0;  ///< of each warpgroup that multiplies: sums, then outputs
  uint32_t group_work = 0;
  uint32_t barriers = 0;  ///< four times kMostStages
  uint32_t bytes = 0;
};

/// Inputs are one of staged_inputs. As many stages as there is room for, about as far ahead of both kinds: FP4 has two stages of
/// inputs to one of weights.
constexpr StagedLayout staged_layout(int inputs) {
  StagedLayout s;
  s.inputs = inputs;
  s.input_bytes = static_cast<uint32_t>(inputs) * kStagedColumns * 2;
  uint32_t sums = 0;
  for (int n = 32; n <= inputs; n = staged_inputs(n + 1)) {
    const auto own = static_cast<uint32_t>(n / 4 - kept_sums(n)) * 128 * 16;
    sums = own > sums ? own : sums;
  }
  const uint32_t outputs = static_cast<uint32_t>(inputs * kStagedOutStride) * 2;
  s.group_work = ((sums > outputs ? sums : outputs) + 127) / 128 * 128;
  const uint32_t barriers = 4 * kMostStages * 8;
  const uint32_t room = kMostShared - 2 * s.group_work - barriers;
  for (int weights = kMostStages / 2; weights > 0; --weights) {
    const uint32_t own = static_cast<uint32_t>(weights) * (kStagedWeights + kStagedScales);
    if (own >= room) continue;
    const int left = static_cast<int>((room - own) / s.input_bytes);
    const int stages = left < 2 * weights ? left : 2 * weights;
    if (stages < weights || stages < 4) continue;
    s.weight_stages = weights;
    s.input_stages = stages;
    break;
  }
  s.weights = static_cast<uint32_t>(s.input_stages) * s.input_bytes;
  s.scales = s.weights + static_cast<uint32_t>(s.weight_stages) * kStagedWeights;
  s.work = s.scales + static_cast<uint32_t>(s.weight_stages) * kStagedScales;
  s.barriers = s.work + 2 * s.group_work;
  s.bytes = s.barriers + barriers;
  return s;
}

}  // namespace deepinfer::cuda
