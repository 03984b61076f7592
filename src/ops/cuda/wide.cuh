#pragma once

// Products with many input rows: a block multiplies 256 weight rows by up to 128 input rows. Two warpgroups take 128 weight rows
// each, widened in registers; a third brings the inputs to shared memory, kWideStage columns at a time. The chains of products,
// the segments and the order of their sums are those of segments.cuh, so a row's numbers are too.

#include "ops/cuda/segments.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

inline constexpr int kWideInputs = 128;  ///< of a block at most
inline constexpr int kWideGroupRows = 128;
inline constexpr int kWideGroups = 2;
inline constexpr int kWideRows = kWideGroups * kWideGroupRows;
inline constexpr int kWideThreads = (kWideGroups + 1) * kWarpgroup;
inline constexpr int kWideStage = 128;  ///< columns
inline constexpr int kWideStages = 3;
inline constexpr int kWideOutStride = kWideGroupRows + 8;  ///< bf16, of a row of outputs in shared memory

/// Shared memory of a block. Sums of earlier segments lie where the outputs are put together later.
struct WideShared {
  uint4 inputs[kWideStages][kWideInputs * kWideStage / 8];  ///< of a stage: two tiles of 64 columns, swizzled
  float4 sums[kWideGroups][kWideInputs / 4][kWarpgroup];
  const bf16* rows[kWideInputs];  ///< input rows; nullptr: zeros
  uint64_t full[kWideStages];
  uint64_t empty[kWideStages];
};
inline constexpr size_t kWideBytes = sizeof(WideShared) + 1024;  // to align it

__device__ inline WideShared& wide_shared(void* dynamic) {
  const uint32_t misplaced = shared_address(dynamic) % 1024;
  return *reinterpret_cast<WideShared*>(static_cast<uint8_t*>(dynamic) + (1024 - misplaced) % 1024);
}

/// All threads of the block, once. `row_of(i)`: input row i or nullptr.
template <typename RowOf>
__device__ inline void wide_begin(WideShared& s, const RowOf& row_of) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kWideStages; ++i) {
      barrier_init(&s.full[i], kWarpgroup);
      barrier_init(&s.empty[i], kWideGroups * kWarpgroup / kWarp);
    }
    show_barriers();
  }
  if (threadIdx.x < kWideInputs) s.rows[threadIdx.x] = row_of(static_cast<int>(threadIdx.x));
  __syncthreads();
}

/// Where column `column` of a chunk of 128 lies in the order of the products (products.h: kWideFp8 or kWideFp4): of the 16
/// columns of a product, each lane of four has loaded four neighbours, as segments.cuh does.
__device__ inline int wide_place(bool fp8, int column) {
  const int lane = fp8 ? column % 64 / 16 : column / 32;
  const int eight = fp8 ? column % 16 / 8 : column % 32 / 8;
  const int pair = interleaved(column) % 8;
  return (fp8 ? column / 64 * 64 : 0) + eight * 32 + pair / 2 * 8 + lane * 2 + pair % 2;
}

/// The warpgroup that loads rows of `columns`, a multiple of the chunks of both formats, in the order of the products.
template <int kInputs>
__device__ inline void wide_load(WideShared& s, int columns) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int slot = lane % 16;
  const int first = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * (kInputs / 4) + lane / 16;
  int last = 0;
  for (int column = 0, turn = 0; column < columns; column += kWideStage, ++turn) {
    const int stage = turn % kWideStages;
    if (turn >= kWideStages) barrier_wait(&s.empty[stage], (turn / kWideStages - 1) & 1);
    const uint32_t tile = shared_address(s.inputs[stage]) + slot / 8 * kInputs * 128;
#pragma unroll
    for (int i = 0; i < kInputs / 8; ++i) {
      const int input = first + i * 2;
      const bf16* row = s.rows[input];
      const int bytes = row != nullptr ? 16 : 0;  // 0: zeros
      copy_async(tile + input * 128 + ((slot ^ input) % 8) * 16, (row != nullptr ? row : s.rows[0]) + column + slot * 8, bytes);
    }
    commit_copies();
    if (turn > 0) {
      wait_copies<1>();
      show_shared_memory();
      barrier_arrive(&s.full[(turn - 1) % kWideStages]);
    }
    last = turn;
  }
  wait_copies<0>();
  show_shared_memory();
  barrier_arrive(&s.full[last % kWideStages]);
}

/// Adds the sums of a segment to those before it, in shared memory.
template <int kInputs>
__device__ inline void wide_fold(WideShared& s, int group, bool folded, float (&c)[2][kInputs / 8][4]) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  wait_products<0>();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int j = 0; j < kInputs / 8; ++j) {
      settle(c[m][j]);
      float4& sum = s.sums[group][m * (kInputs / 8) + j][thread];
      float4 total = make_float4(c[m][j][0], c[m][j][1], c[m][j][2], c[m][j][3]);
      if (folded) {
        const float4 before = sum;
        total = make_float4(before.x + total.x, before.y + total.y, before.z + total.z, before.w + total.w);
      }
      sum = total;
    }
  }
}

/// The lane's four rows, chunk after chunk.
template <WeightFormat kFormat>
class WideWeights {
 public:
  __device__ explicit WideWeights(const WeightPanel<kFormat>& panel)
      : panel_(panel),
        value_(panel.values),
        scale_(WeightPanel<kFormat>::kPanels
                   ? panel.scales
                   : panel.scales + static_cast<int>(threadIdx.x) % 4 * (chunk_columns(kFormat) / 4) / kScaleGroup) {}

  /// The next chunk, which begins at `column`.
  __device__ void load(int column, WeightChunk<kFormat>& chunk) {
    constexpr int kChunk = chunk_columns(kFormat);
    if (column + kChunk <= panel_.columns) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        chunk.rows[i] = load_once(value_ + (i == 0 ? 0 : panel_.value_step[i - 1]));
        chunk.scales[i] = load_byte(scale_ + (i == 0 ? 0 : panel_.scale_step[i - 1]));
      }
      value_ += WeightPanel<kFormat>::kChunkBytes;
      scale_ += WeightPanel<kFormat>::kChunkScales;
    } else if (column < panel_.columns) {
      panel_.load(column, static_cast<int>(threadIdx.x) % kWarp, chunk);
    }
  }

 private:
  const WeightPanel<kFormat>& panel_;
  const uint8_t* value_;
  const uint8_t* scale_;
};

/// A warpgroup that multiplies: sums of the panel's rows, of which the lane has g, g + 8, g + 64 and g + 72 (g: its row among the
/// warp's 16), by kInputs inputs: c[m][j][i] is row 64 m + 16 warp + lane / 4 + 8 (i / 2), input 8 j + lane % 4 * 2 + i % 2.
template <WeightFormat kFormat, bool kInterleaved, int kInputs>
__device__ inline void wide_multiply(WideShared& s, const WeightPanel<kFormat>& panel, int group, float (&c)[2][kInputs / 8][4]) {
  constexpr bool kFp4 = is_fp4(kFormat);
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kSteps = kChunk / 16;
  constexpr int kBuffers = kInputs > 64 ? 2 : kInputs > 32 && kFp4 ? 3 : 4;  // chunks in registers, as there is room
  static_assert(kFp4 || kBuffers % 2 == 0);                                  // a stage begins with every second chunk of FP8
  constexpr uint32_t kBias = kFp4 ? kFp4Bias : kFp8Bias;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % kWarp;
  const int columns = panel.columns;
  WideWeights<kFormat> weights(panel);
  WeightChunk<kFormat> buffers[kBuffers];
#pragma unroll
  for (int i = 0; i + 1 < kBuffers; ++i) weights.load(i * kChunk, buffers[i]);
  bool add = false;
  bool folded = false;
  int stage = -1;
  uint32_t parity = 1;
  for (int begin = 0; begin < columns; begin += kBuffers * kChunk) {
#pragma unroll
    for (int turn = 0; turn < kBuffers; ++turn) {
      const int column = begin + turn * kChunk;
      if (column >= columns) break;
      weights.load(column + (kBuffers - 1) * kChunk, buffers[(turn + kBuffers - 1) % kBuffers]);
      const WeightChunk<kFormat>& chunk = buffers[turn];
      const bool stage_begins = kFp4 || turn % 2 == 0;
      const int in_stage = kFp4 ? 0 : turn % 2;
      const bool wide = __any_sync(0xffffffffu, largest_scale(chunk) > kMostScale<kFormat>);
      uint32_t scale[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scale[i] = wide ? scale_pair(chunk.scales[i], kBias) : ((chunk.scales[i] + kBias) << 7) * 0x10001u;
      uint32_t a[2][2][4];  // double: the unit reads one while the other is widened
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t(&now)[2][4] = a[step % 2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t r[2];
          widen_half<kFormat, kInterleaved>(chunk.rows[i], step / 2, step % 2, scale[i], r);
          now[i / 2][i % 2] = r[0];
          now[i / 2][i % 2 + 2] = r[1];
        }
        if (wide) {  // rare
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t excess = excess_pair(chunk.scales[i], kBias);
            now[i / 2][i % 2] = multiply_bf16x2(now[i / 2][i % 2], excess);
            now[i / 2][i % 2 + 2] = multiply_bf16x2(now[i / 2][i % 2 + 2], excess);
          }
        }
        if (step == 0 && stage_begins) {
          stage = stage + 1 < kWideStages ? stage + 1 : 0;
          if (stage == 0) parity ^= 1;
          barrier_wait(&s.full[stage], parity);
        }
        const uint32_t tile = shared_address(s.inputs[stage]) + (in_stage + step / 4) * kInputs * 128;
        const uint64_t inputs = swizzled_rows(tile + step % 4 * 32);
        begin_products();
#pragma unroll
        for (int m = 0; m < 2; ++m) multiply_rows<kInputs>(c[m], now[m], inputs, add);
        commit_products();
        add = true;
        wait_products<1>();
        // The stage before is no longer read.
        if (step == 0 && stage_begins && column > 0 && lane == 0)
          barrier_arrive(&s.empty[stage > 0 ? stage - 1 : kWideStages - 1]);
      }
      if ((column + kChunk) % kSegment == 0 && column + kChunk < columns) {
        wide_fold<kInputs>(s, group, folded, c);
        folded = true;
        add = false;
      }
    }
  }
  wait_products<0>();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int j = 0; j < kInputs / 8; ++j) {
      settle(c[m][j]);
      if (!folded) continue;
      const float4 before = s.sums[group][m * (kInputs / 8) + j][thread];
      c[m][j][0] = before.x + c[m][j][0], c[m][j][1] = before.y + c[m][j][1];
      c[m][j][2] = before.z + c[m][j][2], c[m][j][3] = before.w + c[m][j][3];
    }
  }
}

/// The panel of a warpgroup.
template <WeightFormat kFormat>
__device__ inline WeightPanel<kFormat> wide_panel(const WeightView& w, int64_t first_row, int64_t last_row) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  return WeightPanel<kFormat>(w, min(first_row + thread / kWarp * 16, last_row), last_row, thread % kWarp, 8, 64, 72);
}

/// Outputs [input][kWideOutStride] of the warpgroup in shared memory, rounded to bf16; where its own sums were.
template <int kInputs>
__device__ inline bf16* wide_outputs(WideShared& s, int group, const float (&c)[2][kInputs / 8][4]) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  auto* out = reinterpret_cast<bf16*>(s.sums[group]);
  named_barrier(1 + group, kWarpgroup);  // everybody has read the sums
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[(j * 8 + thread % 4 * 2 + i % 2) * kWideOutStride + m * 64 + thread / kWarp * 16 + thread % kWarp / 4 + i / 2 * 8] =
            narrow(c[m][j][i]);
      }
    }
  }
  return out;
}

/// Writes rows [first_row, last_row] of outputs 0 .. count - 1: `place(i)` is where row 0 of input i lies.
template <typename Place>
__device__ inline void wide_store(const bf16* out, int group, int64_t first_row, int64_t last_row, int count,
                                  const Place& place) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  named_barrier(1 + group, kWarpgroup);
  constexpr int kPieces = kWideGroupRows / 8;
  for (int i = thread; i < count * kPieces; i += kWarpgroup) {
    const int input = i / kPieces;
    const int row = i % kPieces * 8;
    if (first_row + row > last_row) continue;
    const bf16* from = out + input * kWideOutStride + row;
    bf16* to = place(input) + first_row + row;
    if (first_row + row + 7 <= last_row && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int k = 0; k < 8 && first_row + row + k <= last_row; ++k) to[k] = from[k];
    }
  }
}

/// Calls fn.operator()<kInputs>() with the smallest number of inputs that is enough.
template <typename Fn>
__device__ inline void with_inputs(int count, const Fn& fn) {
  if (count <= 32) {
    fn.template operator()<32>();
  } else if (count <= 64) {
    fn.template operator()<64>();
  } else if (count <= 96) {
    fn.template operator()<96>();
  } else {
    fn.template operator()<128>();
  }
}

}  // namespace deepinfer::cuda
