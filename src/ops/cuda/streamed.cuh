#pragma once

// How a warp multiplies one or two panels of 32 packed weight rows by up to 8 kTiles input rows, all columns of them, at the
// speed of memory. Its weights come by a ring in shared memory that is the warp's own, whole lines of 128 bytes of every row, all
// stages but one ahead and across the ends of segments, and no warp waits for another. Two panels are multiplied by the same
// inputs, which a lane asks for ahead of the weights that come with them.
//
// The products, their order and the segments are those of fragments.cuh and segments.cuh: so are the bits.

#include "ops/cuda/segments.cuh"

namespace deepinfer::cuda {

/// A warp's shared memory, in bytes: the ring, then scales of segments. Afterwards the ring has the sums. A stage is two chunks,
/// one behind the other, a chunk 64 bytes of every row. In the second of two rows 2 i and 2 i + 1 have changed places, so that a
/// line of 128 bytes meets every bank once.
template <int kPanels>
struct StreamLayout {
  static constexpr int kStages = 4 / kPanels;
  static constexpr uint32_t kChunk = kPanels * kPanelRows * 64;
  static constexpr uint32_t kStage = 2 * kChunk;
  static constexpr uint32_t kScales = kPanels * kPanelRows * 16;  ///< of a segment
  /// Segments whose scales are there: the one at work, and those that stages are asked for of, two or more stages each.
  static constexpr int kScaleSlots = kStages / 2 + 1;
  static constexpr uint32_t kBytes = kStages * kStage + kScaleSlots * kScales;
};

/// Panels of one matrix, or of several of the same size, and their first rows. Rows come in whole panels; one that is not there
/// repeats the last.
template <int kPanels>
struct StreamedWeights {
  WeightView weight[kPanels];
  int64_t first_row[kPanels];
};

namespace streamed {

/// Up to 16 bytes at any address, zeros behind them. `words`: the words they lie in can be read.
__device__ inline uint4 load_scales(const uint8_t* from, int count, bool words) {
  uint32_t v[4] = {};
  if (words) {
    const auto skip = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
    const auto* p = reinterpret_cast<const uint32_t*>(from - skip);
    uint32_t word[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) word[i] = i * 4 < skip + count ? __ldg(p + i) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bytes = static_cast<uint32_t>((static_cast<uint64_t>(word[i + 1]) << 32 | word[i]) >> (skip * 8));
      const int there = count - i * 4;
      v[i] = there >= 4 ? bytes : there <= 0 ? 0 : bytes & ((1u << there * 8) - 1);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i < count) v[i / 4] |= static_cast<uint32_t>(__ldg(from + i)) << (i % 4 * 8);
    }
  }
  return make_uint4(v[0], v[1], v[2], v[3]);
}

/// What a lane copies of a panel: a row has eight lanes, and every fourth one has the same.
template <WeightFormat kFormat>
struct Panel {
  const uint8_t* values;  ///< the lane's 16 bytes of the first line of its first row
  const uint8_t* scales;  ///< FP4: of row `lane`; FP8: of the panel
  int piece;              ///< bytes of scales that a copy takes, 16 or 8; 0: they do not lie at multiples of that
  bool words;             ///< whole words hold the scales of the row

  __device__ void set(const WeightView& w, int64_t first_row, int lane) {
    constexpr bool kFp8 = kFormat == WeightFormat::kFp8;
    const int64_t first = min(first_row, w.out - kPanelRows);
    values = w.values + (first + lane / 8) * (kFp8 ? w.in : w.in / 2) + lane % 8 * 16;
    const int64_t scale_bytes = w.in / kScaleGroup;
    scales = w.scales + (kFp8 ? first / kScaleGroup : first + lane) * scale_bytes;
    const uintptr_t all = reinterpret_cast<uintptr_t>(w.scales) | static_cast<uintptr_t>(scale_bytes);
    piece = all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : 0;
    const uintptr_t from = reinterpret_cast<uintptr_t>(scales);
    words = from / 4 * 4 >= reinterpret_cast<uintptr_t>(w.scales) &&
            (from + static_cast<uintptr_t>(scale_bytes) + 3) / 4 * 4 <=
                reinterpret_cast<uintptr_t>(w.scales + (kFp8 ? w.out / kScaleGroup : w.out) * scale_bytes);
  }

  /// Scales of segment `segment`, of which there are `count` in a row from its first column on.
  __device__ void copy_scales(uint8_t* to, int segment, int count) const {
    const uint8_t* from = scales + segment * 16;
    if (piece == 16) {
      copy_async(shared_address(to), from, 16);
    } else if (piece == 8) {
      copy_two_words_async(shared_address(to), from);
      if (count > 8) copy_two_words_async(shared_address(to) + 8, from + 8);
    } else {
      *reinterpret_cast<uint4*>(to) = load_scales(from, min(count, 16), words);
    }
  }
};

/// Adds two products of 16 columns: `w` is eight values of each of the lane's four rows of a panel, `x` of its inputs.
template <int kTiles>
__device__ inline void multiply_pair(const uint32_t (&w)[4][4], const uint4 (&x)[kTiles], float (&c)[2][kTiles][4]) {
  // Sums that do not wait for each other first.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint32_t a[4] = {w[2 * m][2 * half], w[2 * m + 1][2 * half], w[2 * m][2 * half + 1], w[2 * m + 1][2 * half + 1]};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4& v = x[tile];
        mma(c[m][tile], a, half == 0 ? v.x : v.z, half == 0 ? v.y : v.w);
      }
    }
  }
}

/// Adds the products of a chunk, 16 bytes of each of the lane's four rows of a panel. `kWide`: scales may need two factors.
/// `then(pair)`: when the inputs of the pair are not needed any more.
template <WeightFormat kFormat, bool kWide, int kTiles, int kPairs, typename Then>
__device__ inline void multiply_rows(const uint4 (&rows)[4], const uint32_t (&scales)[4], const uint4 (&x)[kPairs][kTiles],
                                     float (&c)[2][kTiles][4], const Then& then) {
  constexpr uint32_t kBias = kFormat == WeightFormat::kFp8 ? kFp8Bias : kFp4Bias;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint32_t w[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // One multiplication and addition: both halves are the byte plus kBias, where bf16 has its exponent.
      const uint32_t scale = kWide ? scale_pair(scales[i], kBias) : scales[i] * 0x00800080u + (kBias << 7) * 0x10001u;
      widen_words<kFormat, true, kWide>(rows[i], pair, scale, kWide ? excess_pair(scales[i], kBias) : 0, w[i]);
    }
    multiply_pair(w, x[pair], c);
    then(pair);
  }
}

template <int kPanels, int kTiles, typename Do>
__device__ inline void for_each_sum(const Do& act) {
#pragma unroll
  for (int i = 0; i < kPanels * 2 * kTiles * 4; ++i) act(i / (8 * kTiles), i / (4 * kTiles) % 2, i / 4 % kTiles, i % 4);
}

}  // namespace streamed

/// Sums of all columns, [panel][16 rows][tile] as mma leaves them. `memory`: the warp's StreamLayout, at a multiple of 16; free
/// again afterwards. `x` has a row for every place: one that is not wanted can be any.
template <WeightFormat kFormat, int kPanels, int kTiles>
__device__ inline void multiply_streamed(uint8_t* memory, const StreamedWeights<kPanels>& weights, const InputRows<kTiles>& x,
                                         int lane, float (&total)[kPanels][2][kTiles][4]) {
  using Layout = StreamLayout<kPanels>;
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kLaneColumns = kChunk / 4;
  constexpr int kPairs = kLaneColumns / 8;
  constexpr int kChunks = kSegment / kChunk;  // of a segment
  constexpr bool kFp8 = kFormat == WeightFormat::kFp8;
  constexpr int kStageChunks = 2;
  constexpr int kSegmentStages = kChunks / kStageChunks;
  constexpr int kAhead = Layout::kStages - 1;
  static_assert(kFormat != WeightFormat::kBf16 && kPanelRows == kScaleGroup);
  static_assert((kSegmentStages - 1 + kAhead) / kSegmentStages < Layout::kScaleSlots);

  const auto columns = static_cast<int>(weights.weight[0].in);
  const int row_bytes = kFp8 ? columns : columns / 2;
  const int chunks = (columns + kChunk - 1) / kChunk;
  const int stages = (chunks + kStageChunks - 1) / kStageChunks;
  const int scale_count = columns / kScaleGroup;
  const int first_column = lane % 4 * kLaneColumns;  // of the lane in a chunk
  streamed::Panel<kFormat> panels[kPanels];
#pragma unroll
  for (int p = 0; p < kPanels; ++p) panels[p].set(weights.weight[p], weights.first_row[p], lane);
  uint8_t* scale_memory = memory + Layout::kStages * Layout::kStage;
  const uint32_t ring = shared_address(memory);
  const auto copies = static_cast<uint32_t>(lane % 8 < 4 ? lane / 8 * 64 : Layout::kChunk + (lane / 8 ^ 1) * 64) +
                      static_cast<uint32_t>(lane % 4 * 16);  // where the lane's pieces go in a stage

  const auto for_each_row = [&](const auto& copy) {
#pragma unroll
    for (int i = 0; i < kPanels * kPanelRows / 4; ++i)
      copy(i / (kPanelRows / 4), i % (kPanelRows / 4), static_cast<uint32_t>(i) * 4 * 64);
  };
  const auto request = [&](int stage) {
    if (stage < stages) {
      const uint32_t to = ring + static_cast<uint32_t>(stage % Layout::kStages) * Layout::kStage + copies;
      if ((stage + 1) * 128 <= row_bytes) {
        for_each_row([&](int p, int i, uint32_t row) {
          copy_weights_async(to + row, panels[p].values + stage * 128 + i * 4 * row_bytes, 16);
        });
      } else {
        const bool there = stage * 128 + lane % 8 * 16 < row_bytes;
        for_each_row([&](int p, int i, uint32_t row) {
          copy_async(to + row, panels[p].values + (there ? stage * 128 + i * 4 * row_bytes : 0), there ? 16 : 0);
        });
      }
      if (stage % kSegmentStages == 0 && (!kFp8 || lane == 0)) {
        const int segment = stage / kSegmentStages;
        uint8_t* slot = scale_memory + segment % Layout::kScaleSlots * static_cast<int>(Layout::kScales) + lane * 16;
#pragma unroll
        for (int p = 0; p < kPanels; ++p) panels[p].copy_scales(slot + p * kPanelRows * 16, segment, scale_count - segment * 16);
      }
    }
    commit_copies();
  };

  // Loads come back in the order in which they were asked for, the copies of weights among them: inputs that are asked for behind
  // a stage's copies wait for memory. So of one tile those of a stage's second chunk and of the next stage's first are asked for
  // before them. Of two tiles there are fewer registers: inputs are asked for a chunk ahead, or when those before them have been
  // used. In place of columns behind the last the first are read: weights are zero there, and no sum is -0, which zeros could
  // change.
  constexpr bool kStageAhead = kTiles == 1;
  constexpr bool kInputsAhead = kTiles == 2 && kPanels == 1;
  constexpr int kSets = kStageAhead || kInputsAhead ? 2 : 1;
  uint4 input[kSets][kPairs][kTiles];
  uint4 next_input[kPairs][kTiles];
  const auto load_to = [&](uint4(&to)[kPairs][kTiles], int chunk, int pair) {
    const int column = chunk * kChunk + first_column;
    const int at = (column < columns ? column : 0) + pair * 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      to[pair][tile] = kStageAhead ? load_inputs(x.row[tile] + at) : load_again(x.row[tile] + at);
  };
  // Two pairs at a time: they share sectors.
  const auto load_inputs_behind = [&](int chunk, int pair) {
    if (pair % 2 == 0) return;
    load_to(input[0], chunk, pair - 1);
    load_to(input[0], chunk, pair);
  };

#pragma unroll
  for (int stage = 0; stage < kAhead; ++stage) request(stage);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) load_to(input[0], 0, pair);
  streamed::for_each_sum<kPanels, kTiles>(
      [&](int p, int m, int tile, int i) { total[p][m][tile][i] = -0.0f; });  // and v is v, -0 too

  for (int segment = 0; segment * kChunks < chunks; ++segment) {
    const int own = min(kSegmentStages, stages - segment * kSegmentStages);
    const uint32_t scales = shared_address(scale_memory) + static_cast<uint32_t>(segment % Layout::kScaleSlots) * Layout::kScales;
    bool wide = false;  // some scale of the segment needs two factors, or nearly so
    float c[kPanels][2][kTiles][4] = {};
#pragma unroll 1
    for (int i = 0; i < own; ++i) {
      const int stage = segment * kSegmentStages + i;
      wait_copies<kAhead - 1>();
      __syncwarp();  // lanes copy for each other; all have read the stage before
      if (i == 0) {
        uint32_t bits = 0;
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          const uint4 row = load_shared(scales + static_cast<uint32_t>(p * kPanelRows + (kFp8 ? 0 : lane)) * 16);
          bits |= row.x | row.y | row.z | row.w;
        }
        wide = __any_sync(0xffffffffu, (bits & 0x80808080u) != 0);
      }
#pragma unroll
      for (int half = 0; half < kStageChunks; ++half) {
        const int chunk = stage * kStageChunks + half;
        if (half > 0 && chunk == chunks) break;
        const uint32_t slot = ring + static_cast<uint32_t>(stage % Layout::kStages) * Layout::kStage +
                              static_cast<uint32_t>(half) * Layout::kChunk +
                              static_cast<uint32_t>(half == 0 ? lane : lane ^ 4) * 16;
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          uint4 rows[4];
          uint32_t scale[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) rows[r] = load_shared(slot + static_cast<uint32_t>(p * kPanelRows + r * 8) * 64);
          const uint32_t byte = scales + static_cast<uint32_t>(p * kPanelRows * 16 + i * (kStageChunks * kChunk / kScaleGroup) +
                                                               (half * kChunk + first_column) / kScaleGroup);
          scale[0] = load_shared_byte(byte + (kFp8 ? 0 : static_cast<uint32_t>(lane / 4 * 16)));
#pragma unroll
          for (int r = 1; r < 4; ++r)
            scale[r] = kFp8 ? scale[0] : load_shared_byte(byte + static_cast<uint32_t>((lane / 4 + r * 8) * 16));
          if (kStageAhead && half == 0 && p == 0) {
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) load_to(input[1], chunk + 1, pair);
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) load_to(next_input, chunk + 2, pair);
          }
          if (half == 0 && p == 0) request(stage + kAhead);
          if constexpr (kInputsAhead) {
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) load_to(input[half ^ 1], chunk + 1, pair);
          }
          const auto& own_input = input[kSets == 2 ? half : 0];
          const auto then = [&](int pair) {
            if (kSets == 1 && p + 1 == kPanels) load_inputs_behind(chunk + 1, pair);
          };
          if (wide) {
            streamed::multiply_rows<kFormat, true, kTiles>(rows, scale, own_input, c[p], then);
          } else {
            streamed::multiply_rows<kFormat, false, kTiles>(rows, scale, own_input, c[p], then);
          }
        }
      }
      if constexpr (kStageAhead) {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) input[0][pair][tile] = next_input[pair][tile];
        }
      }
    }
    streamed::for_each_sum<kPanels, kTiles>([&](int p, int m, int tile, int i) { total[p][m][tile][i] += c[p][m][tile][i]; });
  }
}

/// A warp's sums where all its lanes find them, in what multiply_streamed has used: of a panel, kTiles * 8 inputs of kPartStride.
template <int kPanels, int kTiles>
__device__ inline const float* share_sums(uint8_t* memory, const float (&total)[kPanels][2][kTiles][4], int lane) {
  static_assert(sizeof(float) * kPanels * kTiles * 8 * kPartStride <= StreamLayout<kPanels>::kBytes);
  auto* sums = reinterpret_cast<float*>(memory);
  __syncwarp();
#pragma unroll
  for (int p = 0; p < kPanels; ++p) store_part<kTiles>(sums + p * kTiles * 8 * kPartStride, lane, total[p]);
  __syncwarp();
  return sums;
}

}  // namespace deepinfer::cuda
