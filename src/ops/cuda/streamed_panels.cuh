#pragma once

// As streamed.cuh, of FP4 weights in panels (fp4_order.h): a stage of a warp's ring comes by a few copies, one of a lane,
// whose end a barrier of the stage announces. They do not pass the unit that loads, so inputs are asked for when there are
// registers for them and do not wait behind weights.
//
// The products, their order and the segments are those of fragments.cuh and segments.cuh: so are the bits.

#include "ops/cuda/streamed.cuh"
#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

/// A warp's ring. Its shared memory is at a multiple of 128; afterwards it has the sums.
template <int kPanels>
class PanelStream {
 public:
  static constexpr int kStageChunks = 2;
  static constexpr int kStages = 2;
  static constexpr int kStageColumns = kStageChunks * kFp4ChunkColumns;
  static constexpr uint32_t kCodes = kStageChunks * kFp4ChunkBytes;  ///< of a panel in a stage
  static constexpr uint32_t kScales = kStageChunks * kFp4ChunkScales;
  static constexpr uint32_t kStage = kPanels * (kCodes + kScales);  ///< codes of the panels, then their scales
  static constexpr uint32_t kBytes = kStages * kStage + 128;        ///< barriers behind the stages

  /// Asks for the first stages: rows come in whole panels; one that is not there repeats the last.
  __device__ PanelStream(uint8_t* memory, const StreamedWeights<kPanels>& weights, int lane)
      : memory_(memory),
        lane_(lane),
        columns_(static_cast<int>(weights.weight[0].in)),
        column_bytes_(lane < kPanels ? kPanelRows / 2 : kPanelRows / kScaleGroup),
        place_(lane < kPanels ? lane * kCodes : kPanels * kCodes + (lane - kPanels) * kScales) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const WeightView& w = weights.weight[p];
      const int64_t first = min(weights.first_row[p], w.out - kPanelRows);
      if (lane % kPanels == p) from_ = (lane < kPanels ? w.values : w.scales) + first * w.in / kPanelRows * column_bytes_;
    }
    if (lane == 0) {
#pragma unroll
      for (int slot = 0; slot < kStages; ++slot) barrier_init(full(slot), 1);
      show_barriers();
    }
    __syncwarp();
#pragma unroll
    for (int slot = 0; slot < kStages; ++slot) request(slot, slot);
  }

  /// Sums of all columns, [panel][16 rows][tile] as mma leaves them. `x` has a row for every place: one that is not wanted can be
  /// any.
  template <int kTiles>
  __device__ void multiply(const InputRows<kTiles>& x, float (&total)[kPanels][2][kTiles][4]) {
    constexpr int kPairs = 4;                                    // eight columns of a lane each
    constexpr int kTurn = 2;                                     // chunks of a turn of the loop
    constexpr int kTurns = kSegment / kFp4ChunkColumns / kTurn;  // of a segment
    constexpr int kSets = kTiles == 1 ? 2 : 1;                   // of inputs, as there are registers
    const int chunks = (columns_ + kFp4ChunkColumns - 1) / kFp4ChunkColumns;
    streamed::for_each_sum<kPanels, kTiles>(
        [&](int p, int m, int tile, int i) { total[p][m][tile][i] = -0.0f; });  // and v is v, -0 too
    const int first_column = lane_ % 4 * kScaleGroup;                           // of the lane in a chunk
    // Behind the last column inputs are zero; weights are whatever codes lie there, which are numbers. And no sum is -0, which
    // zeros could change.
    uint4 input[kSets][kPairs][kTiles];
    const auto load_pair = [&](uint4(&to)[kPairs][kTiles], int chunk, int pair, int behind = 0) {
      const int column = chunk * kFp4ChunkColumns + first_column;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const bf16* from = x.row[tile] + column + pair * 8 + behind;
        to[pair][tile] = column < columns_ ? load_inputs(from) : make_uint4(0, 0, 0, 0);
      }
    };
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) load_pair(input[0], 0, pair);

    const int nothing = columns_ >> 31;  // which the compiler does not know
    RingPlace at;
    int stage = 0;
    for (int begin = 0; begin < chunks; begin += kTurns * kTurn) {
      const int end = min(begin + kTurns * kTurn, chunks);
      float c[kPanels][2][kTiles][4] = {};
#pragma unroll 1
      for (int turn = begin; turn < end; turn += kTurn) {
#pragma unroll
        for (int half = 0; half < kTurn; ++half) {
          const int chunk = turn + half;
          if (half > 0 && chunk == end) break;
          const int in_stage = half % kStageChunks;
          if (in_stage == 0) barrier_wait(full(at.stage), at.parity);
          const int groups = fp4_chunk_groups(columns_, chunk);
          const bool inside = lane_ % 4 < groups;
          const int place = lane_ / 4 * groups + lane_ % 4;
          const uint32_t slot = shared_address(memory_) + static_cast<uint32_t>(at.stage) * kStage;
          const uint32_t own = slot + static_cast<uint32_t>(in_stage * kFp4ChunkBytes + place * 16);
          const uint32_t own_scales = slot + kPanels * kCodes + static_cast<uint32_t>(in_stage * kFp4ChunkScales + place * 4);
          uint32_t words[kPanels];
          uint32_t bits = 0;
#pragma unroll
          for (int p = 0; p < kPanels; ++p) {
            words[p] = inside ? load_shared_word(own_scales + static_cast<uint32_t>(p) * kScales) : 0;
            bits |= words[p];
          }
          if constexpr (kSets == 2) {
            // Inputs that the next products want must have come before others are asked for: the products would wait for all that
            // are under way, not for their own. So where the others lie is made to follow from those, by what is nothing.
            const auto behind = static_cast<int>(input[half][0][0].x) & nothing;
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) load_pair(input[half ^ 1], chunk + 1, pair, behind);
          }
          const bool wide = __any_sync(0xffffffffu, (bits & 0x80808080u) != 0);  // some scale needs two factors, or nearly so
#pragma unroll
          for (int p = 0; p < kPanels; ++p) {
            uint4 rows[4];
            uint32_t scale[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const uint32_t from = own + static_cast<uint32_t>(p) * kCodes + static_cast<uint32_t>(r * 8 * 16 * groups);
              rows[r] = load_shared(from);
              scale[r] = words[p] >> 8 * r & 0xff;
            }
            // The stage has been read.
            if (p + 1 == kPanels && (in_stage + 1 == kStageChunks || chunk + 1 == chunks)) {
              __syncwarp();
              request(stage + kStages, at.stage);
              ++stage;
              at.next(kStages);
            }
            const auto then = [&](int pair) {
              if (kSets == 1 && p + 1 == kPanels && pair % 2 == 1) {
                // Two pairs at a time: they share sectors.
                load_pair(input[0], chunk + 1, pair - 1);
                load_pair(input[0], chunk + 1, pair);
              }
            };
            if (wide) {
              streamed::multiply_rows<WeightFormat::kFp4Panels, true, kTiles>(rows, scale, input[kSets == 2 ? half : 0], c[p],
                                                                              then);
            } else {
              streamed::multiply_rows<WeightFormat::kFp4Panels, false, kTiles>(rows, scale, input[kSets == 2 ? half : 0], c[p],
                                                                               then);
            }
          }
        }
      }
      streamed::for_each_sum<kPanels, kTiles>([&](int p, int m, int tile, int i) { total[p][m][tile][i] += c[p][m][tile][i]; });
    }
  }

 private:
  __device__ uint64_t* full(int slot) const { return reinterpret_cast<uint64_t*>(memory_ + kStages * kStage) + slot; }

  // The next stage, which is number `stage`; all lanes have read what was in the slot. Of the lanes that copy the first has the
  // barrier wait for all of them.
  __device__ void request(int stage, int slot) {
    const int left = columns_ - stage * kStageColumns;
    if (lane_ >= 2 * kPanels || left <= 0) return;
    const auto columns = static_cast<uint32_t>(min(left, kStageColumns));
    if (lane_ == 0) barrier_arrive_expecting(full(slot), columns * kPanels * (kPanelRows / 2 + kPanelRows / kScaleGroup));
    copy_bulk(shared_address(memory_) + static_cast<uint32_t>(slot) * kStage + place_, from_, columns * column_bytes_,
              full(slot));
    from_ += kStageColumns * column_bytes_;
  }

  uint8_t* memory_;
  int lane_;
  int columns_;
  uint32_t column_bytes_;  // of a panel, in what the lane copies: codes, or scales
  uint32_t place_;         // of that in a stage
  const uint8_t* from_ = nullptr;
};

}  // namespace deepinfer::cuda
