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

/// Inputs of a tile at most. Widening FP8 takes twice as many instructions as widening FP4, which many inputs have to pay for;
/// with fewer more of the memory is left for what is under way.
DI_HOST_DEVICE constexpr int most_staged_inputs(bool fp8) { return fp8 ? 128 : 96; }
/// Inputs that `count` are rounded up to: those that there are kernels for. With more of them a kernel's registers would not do.
DI_HOST_DEVICE constexpr int staged_inputs(int count, bool fp8) {
  return count <= 32 ? 32 : count <= 64 ? 64 : !fp8 && count <= 80 ? 80 : count <= 96 ? 96 : 128;
}
/// Tiles of up to this size have kernels of their own; a tile of others has at least as many.
inline constexpr int kMostSmallInputs = 64;
/// Of the inputs / 4 quadruples of sums of a thread, those of earlier segments that are kept in registers. The others lie in
/// shared memory.
DI_HOST_DEVICE constexpr int kept_sums(int inputs) {
  return inputs <= 64 ? inputs / 4 : inputs <= 80 ? 13 : inputs <= 96 ? 11 : 2;
}

/// The size of tile for `rows` inputs of every one of `panels` blocks of FP8 weight rows, a multiprocessor each. Multiplying a
/// tile takes time in proportion to its inputs, but no less than widening the weights, which is that of kWiden inputs; an item
/// has a beginning and an end on top of it.
constexpr int staged_fp8_tile(int64_t rows, int64_t panels) {
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kWiden = 96;
  constexpr int64_t kEnds = 8;
  int best = 0;
  int64_t least = 0;
  for (int inputs = staged_inputs(1, true);; inputs = staged_inputs(inputs + 1, true)) {
    const int64_t items = (rows + inputs - 1) / inputs * panels;
    const int64_t cost = (items + kMultiprocessors - 1) / kMultiprocessors * ((inputs > kWiden ? inputs : kWiden) + kEnds);
    if (best == 0 || cost < least) best = inputs, least = cost;
    if (inputs == most_staged_inputs(true)) return best;
  }
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

/// Inputs are one of staged_inputs. As many stages as there is room for, equally far ahead of both kinds: FP4 has two stages of
/// inputs to one of weights.
constexpr StagedLayout staged_layout(int inputs, bool fp8) {
  StagedLayout s;
  s.inputs = inputs;
  s.input_bytes = static_cast<uint32_t>(inputs) * kStagedColumns * 2;
  uint32_t sums = 0;
  for (int n = staged_inputs(1, fp8);; n = staged_inputs(n + 1, fp8)) {
    const auto own = static_cast<uint32_t>(n / 4 - kept_sums(n)) * 128 * 16;
    sums = own > sums ? own : sums;
    if (n == inputs) break;
  }
  const uint32_t outputs = static_cast<uint32_t>(inputs * kStagedOutStride) * 2;
  s.group_work = ((sums > outputs ? sums : outputs) + 127) / 128 * 128;
  const uint32_t barriers = 4 * kMostStages * 8;
  const uint32_t room = kMostShared - 2 * s.group_work - barriers;
  const uint32_t parts = fp8 ? 1 : 2;
  const uint32_t chunks = room / (kStagedWeights + kStagedScales + parts * s.input_bytes);
  s.weight_stages = static_cast<int>(chunks < kMostStages / 2 ? chunks : kMostStages / 2);
  s.input_stages = s.weight_stages * static_cast<int>(parts);
  s.weights = static_cast<uint32_t>(s.input_stages) * s.input_bytes;
  s.scales = s.weights + static_cast<uint32_t>(s.weight_stages) * kStagedWeights;
  s.work = s.scales + static_cast<uint32_t>(s.weight_stages) * kStagedScales;
  s.barriers = s.work + 2 * s.group_work;
  s.bytes = s.barriers + barriers;
  return s;
}

}  // namespace deepinfer::cuda
