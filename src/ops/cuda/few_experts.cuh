#pragma once

// How a warp brings panels of 32 weight rows to shared memory, chunk after chunk of their columns: by a ring that is its own, and
// on from one segment to the next without a gap. A chunk is 2 KiB of weights, FP4 in panels (fp4_order.h) or FP8 in rows, and
// its scales. With one row of inputs it is instructions that keep a multiprocessor from the speed of memory: a chunk takes few
// besides widening and products, and what is rare is done elsewhere.
//
// The products, their order and the segments are those of fragments.cuh and segments.cuh: so are the bits.

#include "ops/cuda/streamed_panels.cuh"

namespace deepinfer::cuda::few {

inline constexpr uint32_t kSlots = 4;
inline constexpr uint32_t kSlotValues = 2048;
inline constexpr uint32_t kSlot = kSlotValues + 128;
inline constexpr uint32_t kRing = kSlots * kSlot;  ///< a warp's shared memory

/// A segment of a panel: what is left of it to be asked for.
template <WeightFormat kFormat>
struct Segment {
  static constexpr bool kFp8 = kFormat == WeightFormat::kFp8;
  const uint8_t* values = nullptr;  ///< the lane's 16 bytes
  const uint8_t* scales = nullptr;  ///< of the lane
  int chunks = 0;

  Segment() = default;
  __device__ Segment(const WeightView& w, int panel, int segment, int lane) {
    const int first = segment * kSegment;
    const auto columns = static_cast<int>(w.in);
    chunks = min(kSegment, columns - first) / chunk_columns(kFormat);
    if constexpr (kFp8) {
      values = w.values + (int64_t{panel} * kPanelRows + lane / 4) * columns + first + lane % 4 * 16;
      scales = w.scales + (int64_t{panel} * columns + first) / kScaleGroup;
    } else {
      constexpr int kChunks = kSegment / kFp4ChunkColumns;
      values = w.values + int64_t{panel} * kPanelRows * (columns / 2) + segment * kChunks * kFp4ChunkBytes + lane * 16;
      scales = w.scales + int64_t{panel} * columns + segment * kChunks * kFp4ChunkScales + lane * 16;
    }
  }
  /// Asks for a chunk. Two chunks of FP8 have a word of scales.
  __device__ void request(uint32_t slot, int row_bytes, int lane) {
    const uint32_t to = slot + static_cast<uint32_t>(lane) * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      copy_weights_async(to + static_cast<uint32_t>(i) * 512, values + (kFp8 ? i * 8 * row_bytes : i * 512), 16);
    if constexpr (kFp8) {
      if (lane == 0) copy_word_async(slot + kSlotValues, scales);
      values += 64;
      scales += (chunks & 1) * 4;
    } else {
      if (lane < 8) copy_weights_async(to + kSlotValues, scales, 16);
      values += kFp4ChunkBytes;
      scales += kFp4ChunkScales;
    }
    --chunks;
  }
};

/// A chunk as the lane has it: its four rows, its scales or those of two chunks, and its inputs.
template <WeightFormat kFormat>
struct Chunk {
  static constexpr bool kFp8 = kFormat == WeightFormat::kFp8;
  static constexpr int kPairs = kFp8 ? 2 : 4;
  uint4 rows[4];
  uint32_t scales;
  uint4 x[kPairs][1];

  __device__ void load(uint32_t slot, uint32_t inputs, int lane) {
    const uint32_t own = slot + static_cast<uint32_t>(lane) * 16;
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) rows[r] = load_shared(own + r * 512);
    scales = load_shared_word(slot + kSlotValues + (kFp8 ? 0 : static_cast<uint32_t>(lane) * 4));
#pragma unroll
    for (uint32_t pair = 0; pair < kPairs; ++pair) x[pair][0] = load_shared(inputs + pair * 16);
  }
  /// All scales take one factor. `odd`: the second of two chunks.
  __device__ void multiply(int odd, int lane, float (&c)[2][1][4]) const {
    if constexpr (kFp8) {
      WeightChunk<kFormat> weights;
#pragma unroll
      for (int r = 0; r < 4; ++r) weights.rows[r] = rows[r];
      const uint32_t byte = __byte_perm(scales, 0, static_cast<uint32_t>(0x4440 + odd * 2 + lane % 4 / 2));
#pragma unroll
      for (uint32_t& s : weights.scales) s = byte;
      multiply_scaled<kFormat, true, false, 1>(
          weights, [&](int /*tile*/, int pair) { return x[pair][0]; }, c);
    } else {
      streamed::multiply_panel_rows<1>(rows, scales, x, c, [](int) {});
    }
  }
};

/// The sums of a segment some of whose scales need two factors, or nearly so: those are rare, and the weights are read again.
template <WeightFormat kFormat>
__device__ inline void multiply_again(const WeightView& w, int panel, int segment, uint32_t inputs, uint32_t step, int lane,
                                      float (&c)[2][1][4]) {
  const WeightPanel<kFormat> rows(w, int64_t{panel} * kPanelRows, w.out - 1, lane);
  const int first = segment * kSegment;
  const int last = min(first + kSegment, static_cast<int>(w.in));
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i / 4][0][i % 4] = 0;
#pragma unroll 1
  for (int column = first; column < last; column += chunk_columns(kFormat)) {
    WeightChunk<kFormat> chunk;
    rows.load(column, lane, chunk);
    multiply_scaled<kFormat, true, true, 1>(
        chunk, [&](int /*tile*/, int pair) { return load_shared(inputs + static_cast<uint32_t>(pair) * 16); }, c);
    inputs += step;
  }
}

}  // namespace deepinfer::cuda::few
