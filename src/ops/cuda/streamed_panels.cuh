#pragma once

// As streamed.cuh, of FP4 weights in panels (fp4_order.h): a stage of a warp's ring comes by a few copies of one lane, whose end
// a barrier of the stage announces. They do not pass the unit that loads, so inputs are asked for when there are registers for
// them and do not wait behind weights.
//
// Under a GPU's power cap what a warp issues counts as much as what it moves. So a whole stage whose scales take one factor goes
// a way of its own, where all addresses are at constant distances from few that move once a stage; all others go another.
//
// The products, their order and the segments are those of fragments.cuh and segments.cuh: so are the bits.

#include "ops/cuda/chosen_lane.cuh"
#include "ops/cuda/streamed.cuh"
#include "ops/cuda/streamed_instructions.cuh"

namespace deepinfer::cuda {

namespace streamed {

/// The chunk's products of 32 rows: `rows` as multiply_rows has them, `scales` the bytes of all four, which take one factor.
template <int kTiles, int kPairs, typename Then>
__device__ inline void multiply_panel_rows(const uint4 (&rows)[4], uint32_t scales, const uint4 (&x)[kPairs][kTiles],
                                           float (&c)[2][kTiles][4], const Then& then) {
  // Factors of rows 0 and 2, and of 1 and 3: bytes plus kFp4Bias, where bf16 has its exponent.
  constexpr uint32_t kBias = (kFp4Bias << 7) * 0x10001u;
  const uint32_t even = __byte_perm(scales, 0, 0x4240) * 128 + kBias;
  const uint32_t odd = __byte_perm(scales, 0, 0x4341) * 128 + kBias;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint32_t w[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& row = rows[i];
      widen_fp4<WeightFormat::kFp4Panels>(pair == 0 ? row.x : pair == 1 ? row.y : pair == 2 ? row.z : row.w, w[i]);
#pragma unroll
      for (uint32_t& v : w[i])
        v = i < 2 ? multiply_by_half<false>(v, i == 0 ? even : odd) : multiply_by_half<true>(v, i == 2 ? even : odd);
    }
    multiply_pair(w, x[pair], c);
    then(pair);
  }
}

}  // namespace streamed

/// A warp's ring. Its shared memory is at a multiple of 16; afterwards it has the sums.
template <int kPanels>
class PanelStream {
 public:
  static constexpr int kStageChunks = 2;
  static constexpr int kStages = 2;
  static constexpr int kStageColumns = kStageChunks * kFp4ChunkColumns;
  static constexpr uint32_t kCodes = kStageChunks * kFp4ChunkBytes;  ///< of a panel in a stage
  static constexpr uint32_t kScales = kStageChunks * kFp4ChunkScales;
  static constexpr uint32_t kStage = kPanels * (kCodes + kScales);  ///< codes of the panels, then their scales
  static constexpr uint32_t kSlot = kStage + 16;                    ///< and the stage's barrier
  static constexpr uint32_t kBytes = kStages * kSlot;

  /// Asks for the first stages: rows come in whole panels; one that is not there repeats the last.
  __device__ PanelStream(uint8_t* memory, const StreamedWeights<kPanels>& weights, int lane)
      : ring_(of_warp(shared_address(memory))), lane_(lane), columns_(static_cast<int>(weights.weight[0].in)) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const WeightView& w = weights.weight[p];
      const int64_t panel = min(weights.first_row[p], w.out - kPanelRows) / kPanelRows;
      codes_[p] = of_warp(w.values + panel * w.in * (kPanelRows / 2));
      scales_[p] = of_warp(w.scales + panel * w.in * (kPanelRows / kScaleGroup));
    }
    if (lane == 0) {
#pragma unroll
      for (int slot = 0; slot < kStages; ++slot) barrier_init(reinterpret_cast<uint64_t*>(memory + slot * kSlot + kStage), 1);
      show_barriers();
    }
    __syncwarp();
#pragma unroll
    for (int slot = 0; slot < kStages; ++slot) request(slot, ring_ + slot * kSlot);
  }

  /// Sums of all columns, [panel][16 rows][tile] as mma leaves them, of the first `count` rows of x, for which there are sums.
  template <int kTiles>
  __device__ void multiply(const InputRows<kTiles>& x, int count, float (&total)[kPanels][2][kTiles][4]) {
    constexpr int kSegmentStages = kSegment / kStageColumns;
    static_assert(kStages == 2 && kSegmentStages == 2);  // slots in turn, and a phase of their barriers a segment
    Inputs<kTiles> inputs(x, count, lane_, columns_);
    streamed::for_each_sum<kPanels, kTiles>(
        [&](int p, int m, int tile, int i) { total[p][m][tile][i] = -0.0f; });  // and v is v, -0 too
    const int stages = (columns_ + kStageColumns - 1) / kStageColumns;
    const int whole = columns_ / kStageColumns;
    uint32_t parity = 0;
    uint32_t slot = ring_;
    for (int begin = 0; begin < stages; begin += kSegmentStages) {
      const int end = min(begin + kSegmentStages, stages);
      float c[kPanels][2][kTiles][4] = {};
#pragma unroll 1
      for (int stage = begin; stage < end; ++stage) {
        barrier_wait_at(slot + kStage, parity);
        const uint32_t own_scales = slot + kPanels * kCodes + static_cast<uint32_t>(lane_ * 4);
        uint32_t scales[kStageChunks][kPanels];
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < kStageChunks * kPanels; ++i) {
          const int chunk = i / kPanels, p = i % kPanels;
          scales[chunk][p] = load_shared_word(own_scales + p * kScales + chunk * kFp4ChunkScales);
          bits |= scales[chunk][p];
        }
        const bool wide = __any_sync(0xffffffffu, (bits & 0x80808080u) != 0);  // some scale needs two factors, or nearly so
        if (stage < whole && !wide) {
          const int step = stage + 1 < whole ? kStageColumns : 0;
          multiply_whole<kTiles>(stage, slot, scales, step, inputs, c);
        } else {
          multiply_any<kTiles>(stage, slot, inputs, c);
        }
        slot = ring_ * 2 + kSlot - slot;
      }
      parity ^= 1;
      streamed::for_each_sum<kPanels, kTiles>([&](int p, int m, int tile, int i) { total[p][m][tile][i] += c[p][m][tile][i]; });
    }
  }

 private:
  static constexpr int kPairs = 4;  // eight columns of a lane each, of a chunk

  // A lane's inputs. Those of rows that are not there are zeros: they are not read, and cost the units less.
  template <int kTiles>
  struct Inputs {
    static constexpr int kSets = kTiles == 1 ? 2 : 1;  // of a chunk, as there are registers
    const bf16* from[kTiles];                          // the lane's first column of the stage
    uint32_t nothing;                                  // which the compiler does not know
    bool there[kTiles];
    uint4 set[kSets][kPairs][kTiles] = {};

    __device__ Inputs(const InputRows<kTiles>& x, int count, int lane, int columns)
        : nothing(static_cast<uint32_t>(columns >> 31)) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        from[tile] = x.row[tile] + lane % 4 * kScaleGroup;
        there[tile] = tile * 8 + lane / 4 < count;
      }
      if (columns >= kStageColumns) load(set[0], 0);
    }
    __device__ void load_pair(uint4 (&to)[kPairs][kTiles], int column, int pair) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) load_inputs_if(there[tile], from[tile] + column + pair * 8, to[pair][tile]);
    }
    __device__ void load(uint4 (&to)[kPairs][kTiles], int column) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) load_pair(to, column, pair);
    }
    /// Moves on, once those of `own` have come: the products that want them would wait for all loads that are under way, not for
    /// their own. So where the others lie is made to follow from those, by what is nothing.
    __device__ void move(const uint4 (&own)[kPairs][kTiles], uint32_t columns) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) from[tile] += (own[0][tile].x & nothing) | columns;
    }
  };

  // A stage of which every column is there, and whose scales take one factor. The inputs of its first chunk have been asked for;
  // those of the next stage's, `step` columns on, are asked for here.
  template <int kTiles>
  __device__ void multiply_whole(int stage, uint32_t slot, const uint32_t (&scales)[kStageChunks][kPanels], int step,
                                 Inputs<kTiles>& inputs, float (&c)[kPanels][2][kTiles][4]) {
    constexpr bool kAhead = Inputs<kTiles>::kSets == 2;
    const uint32_t own = slot + static_cast<uint32_t>(lane_ * 16);
#pragma unroll
    for (int chunk = 0; chunk < kStageChunks; ++chunk) {
      const bool last = chunk + 1 == kStageChunks;
      auto& now = inputs.set[kAhead ? chunk : 0];
      if constexpr (kAhead) {
        inputs.move(now, last ? static_cast<uint32_t>(step) : 0);
        inputs.load(inputs.set[chunk ^ 1], last ? 0 : kFp4ChunkColumns);
      }
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        uint4 rows[4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
          rows[r] =
              load_shared(own + static_cast<uint32_t>(p) * kCodes + static_cast<uint32_t>(chunk * kFp4ChunkBytes + r * 8 * 64));
        if (last && p + 1 == kPanels) {  // the stage has been read
          __syncwarp();
          request(stage + kStages, slot);
          if constexpr (!kAhead) {
#pragma unroll
            for (const bf16*& from : inputs.from) from += step;
          }
        }
        streamed::multiply_panel_rows<kTiles>(rows, scales[chunk][p], now, c[p], [&](int pair) {
          if (kAhead || p + 1 < kPanels || pair % 2 == 0) return;
          // Two pairs at a time: they share sectors.
          inputs.load_pair(now, last ? 0 : kFp4ChunkColumns, pair - 1);
          inputs.load_pair(now, last ? 0 : kFp4ChunkColumns, pair);
        });
      }
    }
  }

  // Any stage. Behind the last column inputs are zero; weights are whatever codes lie there, which are numbers. And no sum is -0,
  // which zeros could change.
  template <int kTiles>
  __device__ void multiply_any(int stage, uint32_t slot, Inputs<kTiles>& inputs, float (&c)[kPanels][2][kTiles][4]) {
    const int first = stage * kStageColumns;
    // Where the lane's columns of the stage begin: of one that is not whole the stage before has not moved on.
    const int behind = stage > 0 && first + kStageColumns > columns_ ? kStageColumns : 0;
    const int chunks = min(kStageChunks, (columns_ - first + kFp4ChunkColumns - 1) / kFp4ChunkColumns);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int groups = fp4_chunk_groups(columns_, stage * kStageChunks + chunk);
      const bool inside = lane_ % 4 < groups;
      const auto place = static_cast<uint32_t>(lane_ / 4 * groups + lane_ % 4);
      const uint32_t own = slot + static_cast<uint32_t>(chunk * kFp4ChunkBytes) + place * 16;
      const uint32_t own_scales = slot + kPanels * kCodes + static_cast<uint32_t>(chunk * kFp4ChunkScales) + place * 4;
      uint4 x[kPairs][kTiles] = {};
#pragma unroll
      for (int i = 0; i < kPairs * kTiles; ++i) {
        const int pair = i / kTiles, tile = i % kTiles;
        load_inputs_if(inside && inputs.there[tile], inputs.from[tile] + behind + chunk * kFp4ChunkColumns + pair * 8,
                       x[pair][tile]);
      }
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        const uint32_t word = inside ? load_shared_word(own_scales + static_cast<uint32_t>(p) * kScales) : 0;
        uint4 rows[4];
        uint32_t scale[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          rows[r] = load_shared(own + static_cast<uint32_t>(p) * kCodes + static_cast<uint32_t>(r * 8 * 16 * groups));
          scale[r] = word >> 8 * r & 0xff;
        }
        streamed::multiply_rows<WeightFormat::kFp4Panels, true, kTiles>(rows, scale, x, c[p], [](int) {});
      }
    }
    __syncwarp();
    request(stage + kStages, slot);
    if ((stage + 2) * kStageColumns > columns_) return;
#pragma unroll
    for (const bf16*& from : inputs.from) from += kStageColumns;
    inputs.load(inputs.set[0], 0);
  }

  // Stage number `stage`; all lanes have read what was in the slot.
  __device__ void request(int stage, uint32_t slot) {
    const int left = columns_ - stage * kStageColumns;
    if (left <= 0) return;
    if (chosen_lane()) {
      if (left >= kStageColumns) {
        copy(slot, kCodes, kScales);
      } else {
        copy(slot, static_cast<uint32_t>(left * (kPanelRows / 2)), static_cast<uint32_t>(left * (kPanelRows / kScaleGroup)));
      }
    }
#pragma unroll
    for (int p = 0; p < kPanels; ++p) codes_[p] += kCodes, scales_[p] += kScales;
  }
  __device__ void copy(uint32_t slot, uint32_t codes, uint32_t scales) const {
    barrier_expect_at(slot + kStage, kPanels * (codes + scales));
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      copy_bulk_at(slot + static_cast<uint32_t>(p) * kCodes, codes_[p], codes, slot + kStage);
      copy_bulk_at(slot + kPanels * kCodes + static_cast<uint32_t>(p) * kScales, scales_[p], scales, slot + kStage);
    }
  }

  uint32_t ring_;
  int lane_;
  int columns_;
  const uint8_t* codes_[kPanels];  // of the next stage to be asked for
  const uint8_t* scales_[kPanels];
};

}  // namespace deepinfer::cuda
