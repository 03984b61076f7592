#pragma once

// How a warp brings half panels of weights (half_panels.cuh) to shared memory: by a ring that is its own, whole lines of 128
// bytes of every row, all stages but one ahead and across the ends of segments and panels. So no warp waits for another, and the
// first stages are under way while a kernel still waits for its turn.
//
// A stage is two chunks, one behind the other, a chunk 64 bytes of every row. In the second of two rows 2 i and 2 i + 1 have
// changed places, so that a line of 128 bytes meets every bank once. Behind the stages lies a word of scales of each: columns
// come in whole stages, and all rows of a half panel have the same scales.

#include "ops/cuda/half_panels.cuh"
#include "ops/cuda/segments.cuh"

namespace deepinfer::cuda {

inline constexpr int kRingStages = 4;
inline constexpr uint32_t kRingChunk = kHalfPanelRows * 64;
inline constexpr uint32_t kRingStage = 2 * kRingChunk;
inline constexpr uint32_t kRingBytes = kRingStages * (kRingStage + 4);

template <WeightFormat kFormat>
inline constexpr int kStageColumns = 2 * chunk_columns(kFormat);

/// Whether a product's weights can come that way.
template <WeightFormat kFormat>
bool fits_rings(const ProductArgs& args) {
  if (args.output_count == 0 || args.outputs[0].weight.in % kStageColumns<kFormat> != 0) return false;
  for (int i = 0; i < args.output_count; ++i) {
    const WeightView& w = args.outputs[i].weight;
    if (w.out > INT32_MAX / 8) return false;
    if constexpr (kFormat == WeightFormat::kFp8) {
      if (reinterpret_cast<uintptr_t>(w.scales) % 4 != 0) return false;
      if (args.groups > 1 && w.out / args.groups % kHalfPanelRows != 0) return false;
    }
  }
  return true;
}

/// Of a quad, which is as many stages as a ring has: a segment of FP8, half a segment of bf16.
template <WeightFormat kFormat>
inline constexpr int kQuadColumns = kRingStages* kStageColumns<kFormat>;

/// The rows of a half panel, quad after quad of its columns. Rows that do not exist repeat the last one.
template <WeightFormat kFormat>
class RingRows {
 public:
  RingRows() = default;
  __device__ RingRows(const WeightView& w, const HalfPanel& panel, int column, int lane) {
    const int64_t row_bytes = kFormat == WeightFormat::kFp8 ? w.in : w.in * 2;
    const int64_t first = column / kStageColumns<kFormat> * 128 + lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < kHalfPanelRows / 4; ++i)
      values_[i] = w.values + min(panel.first_row + lane / 8 + i * 4, panel.last_row) * row_bytes + first;
    if constexpr (kFormat == WeightFormat::kFp8)
      scales_ = w.scales + panel.first_row / kScaleGroup * (w.in / kScaleGroup) + column / kScaleGroup;
  }
  __device__ void skip(int columns) {
#pragma unroll
    for (const uint8_t*& row : values_) row += columns / kStageColumns<kFormat> * 128;
    scales_ += columns / kScaleGroup;
  }
  /// Asks for stage `stage`, a constant, of the quad, into the place in the ring that it always has.
  __device__ void request(uint32_t ring, int stage, int lane) const {
    const uint32_t to =
        ring + static_cast<uint32_t>(stage) * kRingStage + static_cast<uint32_t>(lane % 4 * 16) +
        (lane % 8 < 4 ? static_cast<uint32_t>(lane / 8) * 64 : kRingChunk + static_cast<uint32_t>(lane / 8 ^ 1) * 64);
#pragma unroll
    for (int i = 0; i < kHalfPanelRows / 4; ++i)
      copy_weights_async(to + static_cast<uint32_t>(i) * 4 * 64, values_[i] + stage * 128, 16);
    if (kFormat == WeightFormat::kFp8 && lane == 0)
      copy_word_async(ring + kRingStages * kRingStage + static_cast<uint32_t>(stage) * 4, scales_ + stage * 4);
  }

 private:
  const uint8_t* values_[kHalfPanelRows / 4] = {};
  const uint8_t* scales_ = nullptr;
};

/// Goes through the quads of a warp, whose requests are kRingStages - 1 stages ahead: before stage `stage` of a quad is used, the
/// one before it in the ring is asked for. `next(rows)`: makes them the next quad's, whose stages it returns, or 0.
template <WeightFormat kFormat>
class RingRequests {
 public:
  template <typename Next>
  __device__ void begin(uint32_t ring, int lane, Next& next) {
    left_ = next(rows_);
#pragma unroll
    for (int stage = 0; stage < kRingStages - 1; ++stage) request(ring, stage, lane);
  }
  template <typename Next>
  __device__ void before(uint32_t ring, int stage, int lane, Next& next) {
    request(ring, (stage + kRingStages - 1) % kRingStages, lane);
    if (stage == 0) left_ = left_ > 0 ? next(rows_) : 0;
  }

 private:
  __device__ void request(uint32_t ring, int stage, int lane) {
    if (stage < left_) rows_.request(ring, stage, lane);
    commit_copies();
  }
  int left_ = 0;  // stages of the quad
  RingRows<kFormat> rows_;
};

/// A lane's part of a stage: chunks, and scales of both.
struct RingStage {
  HalfChunk chunks[2];
  uint32_t scales = 0;

  /// After all lanes' copies have come.
  template <WeightFormat kFormat>
  __device__ void load(uint32_t ring, int slot, int lane) {
    const uint32_t from = ring + static_cast<uint32_t>(slot) * kRingStage;
    if constexpr (kFormat == WeightFormat::kFp8)
      scales = load_shared_word(ring + kRingStages * kRingStage + static_cast<uint32_t>(slot) * 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t at = from + (half == 0 ? 0 : kRingChunk) + static_cast<uint32_t>(half == 0 ? lane : lane ^ 4) * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) chunks[half].rows[i] = load_shared(at + static_cast<uint32_t>(i) * 8 * 64);
    }
  }
  /// Of the lane's columns of a chunk.
  __device__ uint32_t scale(int half, int lane) const {
    return __byte_perm(scales, 0, static_cast<uint32_t>(0x4440 + half * 2 + lane % 4 / 2));
  }
};

}  // namespace deepinfer::cuda
