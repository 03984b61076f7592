#pragma once

// Products with many input rows, weights staged in shared memory as they are packed. A block multiplies 256 weight rows by a tile
// of inputs, item after item: a warpgroup copies weights, their scales and inputs into two rings, as far ahead as there is room,
// across the end of an item too; two others widen weights in registers and multiply, each by 64 rows of either half of the
// block's, and neither waits for the other. The chains of products, the segments and the order of their sums are those of
// segments.cuh, so a row's numbers are too.
//
// A kernel says what to do in a class `Work`:
//   kFormat, kInterleaved    the format of weights; the order of their inputs
//   find(number, item)       whether item `number` is there, and what it is: StagedItem and what else the class needs
//   half(item, h)            the weight rows of the block's half h
//   inputs(item)             where inputs are counted from
//   input(item, i)           values from there to input row i of the item, which is in the order of the products (products.h)
//   finish(item, s, group)   the threads of warpgroup `group`, when the outputs of its rows are in shared memory

#include "ops/cuda/segments.cuh"
#include "ops/cuda/staged_copies.cuh"
#include "ops/cuda/staged_layout.h"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

inline constexpr int kStagedGroups = 2;                               ///< warpgroups that multiply
inline constexpr int kStagedGroupRows = kStagedHalf / kStagedGroups;  ///< that each has of either half
inline constexpr int kStagedThreads = (kStagedGroups + 1) * kWarpgroup;

/// Registers of a thread that multiplies and of one that loads: together those that the block begins with.
inline constexpr int kMultiplyRegisters = 216;
inline constexpr int kLoadRegisters = 72;
static_assert(kStagedGroups * kMultiplyRegisters + kLoadRegisters <= 3 * 168);

struct StagedItem {
  int count = 0;    ///< inputs
  int columns = 0;  ///< of the weights
};

/// A block's shared memory.
struct Staged {
  const StagedLayout& layout;
  uint8_t* memory;

  __device__ uint32_t inputs(int stage) const {
    return shared_address(memory) + static_cast<uint32_t>(stage) * layout.input_bytes;
  }
  __device__ uint32_t weights(int stage) const {
    return shared_address(memory) + layout.weights + static_cast<uint32_t>(stage) * kStagedWeights;
  }
  __device__ uint32_t scales(int stage) const {
    return shared_address(memory) + layout.scales + static_cast<uint32_t>(stage) * kStagedScales;
  }
  __device__ float4* sums(int group) const {
    return reinterpret_cast<float4*>(memory + layout.work + static_cast<uint32_t>(group) * layout.group_work);
  }
  /// [inputs][kStagedOutStride] of the rows of a warpgroup: those of one half, then those of the other.
  __device__ bf16* outputs(int group) const { return reinterpret_cast<bf16*>(sums(group)); }
  __device__ uint64_t* barrier(int kind, int stage) const {
    return reinterpret_cast<uint64_t*>(memory + layout.barriers) + kind * kMostStages + stage;
  }
  __device__ uint64_t* weights_full(int stage) const { return barrier(0, stage); }
  __device__ uint64_t* weights_empty(int stage) const { return barrier(1, stage); }
  __device__ uint64_t* inputs_full(int stage) const { return barrier(2, stage); }
  __device__ uint64_t* inputs_empty(int stage) const { return barrier(3, stage); }
};

namespace staged {
inline constexpr int kGroup = 1;  ///< named barrier of the first warpgroup; the others' are behind it

/// The warpgroup that loads.
template <typename Work>
__device__ inline void load_items(const Staged& s, const Work& work) {
  constexpr bool kFp8 = Work::kFormat == WeightFormat::kFp8;
  constexpr int kChunk = chunk_columns(Work::kFormat);
  RingPlace at_weights{0, 1};  // nobody has to leave the stages of the first turn
  RingPlace at_inputs{0, 1};
  typename Work::Item item;
  for (int number = static_cast<int>(blockIdx.x); work.find(number, item); number += static_cast<int>(gridDim.x)) {
    const InputPieces<most_staged_inputs(kFp8)> inputs(work, item);
    const StagedRows half[2] = {work.half(item, 0), work.half(item, 1)};
    const WeightPieces<Work::kFormat> weights(half, item.columns);
    const ScalePieces<Work::kFormat> scales(half, item.columns);
#pragma unroll 1
    for (int column = 0, chunk = 0; column < item.columns; column += kChunk, ++chunk) {
      barrier_wait(s.weights_empty(at_weights.stage), at_weights.parity);
      weights.copy(s.weights(at_weights.stage), chunk);
      scales.copy(s.scales(at_weights.stage), chunk);
      barrier_arrive_copied(s.weights_full(at_weights.stage));
      at_weights.next(s.layout.weight_stages);
#pragma unroll
      for (int part = 0; part < kChunk / kStagedColumns; ++part) {
        barrier_wait(s.inputs_empty(at_inputs.stage), at_inputs.parity);
        inputs.copy(s.inputs(at_inputs.stage), column + part * kStagedColumns);
        barrier_arrive_copied(s.inputs_full(at_inputs.stage));
        at_inputs.next(s.layout.input_stages);
      }
    }
  }
}

/// Where a lane finds the scales of its rows in a stage: `first` and that 8 behind it, of either half.
template <WeightFormat kFormat>
class Scales {
 public:
  template <typename Work>
  __device__ Scales(const Work& work, const typename Work::Item& item, int first, int lane) {
    const int groups = item.columns / kScaleGroup;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const StagedRows rows = work.half(item, h);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int i = h * 2 + k;
        if (kFormat == WeightFormat::kFp4Panels) {
          const int row = first + k * 8;
          at_[i] = static_cast<uint32_t>(h) * kStagedHalf * kStagedScaleSlot +
                   static_cast<uint32_t>(fp4_scale_place(kFp4ChunkColumns, row, lane % 4));
          continue;
        }
        const int source = min(first + k * 8, rows.last);
        const int line = kFp8 ? (rows.in_block + source) / kScaleGroup : source;
        const int slot = kFp8 ? h * 8 + line : h * kStagedHalf + first + k * 8;
        const auto low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rows.scales + line * groups)) % 4;
        at_[i] = static_cast<uint32_t>(slot) * kStagedScaleSlot;
        if (kFp8) {
          low_ |= low << 8 * i;
          at_[i] += static_cast<uint32_t>(lane % 4 / 2);
        } else {
          at_[i] += low + static_cast<uint32_t>(lane % 4);
        }
      }
    }
  }
  /// Of row i, in chunk `chunk`.
  __device__ uint32_t load(uint32_t stage, int i, int chunk) const {
    uint32_t at = stage + at_[i];
    if (kFp8) at += ((low_ >> 8 * i) + static_cast<uint32_t>(chunk) * 2) % 4;
    return load_shared_byte(at);
  }

 private:
  static constexpr bool kFp8 = kFormat == WeightFormat::kFp8;
  uint32_t at_[4];
  uint32_t low_ = 0;
};

struct Multiplier {
  RingPlace weights, inputs;
};

/// The sums of earlier segments of a warpgroup's rows; what a thread keeps in registers, and what lies in shared memory.
template <int kInputs>
class EarlierSums {
 public:
  __device__ explicit EarlierSums(float4* rest) : rest_(rest) {
    // Minus zero and any number is that number. What is not set would live on from item to item, in all of these functions at
    // once.
#pragma unroll
    for (int i = 0; i < kAll; ++i) put(i, make_float4(-0.0f, -0.0f, -0.0f, -0.0f));
  }
  /// c becomes the sums of all segments so far.
  __device__ void add_to(float (&c)[2][kInputs / 8][4]) const {
#pragma unroll
    for (int i = 0; i < kAll; ++i) add(i, c[i / (kInputs / 8)][i % (kInputs / 8)]);
  }
  /// They become the sums of all segments so far.
  __device__ void take(const float (&c)[2][kInputs / 8][4]) {
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      float sum[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[k] = c[i / (kInputs / 8)][i % (kInputs / 8)][k];
      add(i, sum);
      put(i, make_float4(sum[0], sum[1], sum[2], sum[3]));
    }
  }

 private:
  static constexpr int kAll = 2 * kInputs / 8;
  static constexpr int kKept = kept_sums(kInputs);
  __device__ void add(int i, float (&sum)[4]) const {
    const float4 before = i < kKept ? kept_[i < kKept ? i : 0] : rest_[(i - kKept) * kWarpgroup];
    sum[0] = before.x + sum[0], sum[1] = before.y + sum[1], sum[2] = before.z + sum[2], sum[3] = before.w + sum[3];
  }
  __device__ void put(int i, const float4& v) {
    if (i < kKept) {
      kept_[i < kKept ? i : 0] = v;
    } else {
      rest_[(i - kKept) * kWarpgroup] = v;
    }
  }
  float4 kept_[kKept];
  float4* rest_;
};

/// c[m][j][i] is row first + 8 (i / 2) of half m, input 8 j + lane % 4 * 2 + i % 2 of the item, over all columns.
/// kBatch: steps of 16 columns that are widened together.
template <WeightFormat kFormat, bool kInterleaved, int kInputs, int kBatch>
__device__ inline void multiply_item(const Staged& s, Multiplier& at, const Scales<kFormat>& scales, int lane, int first,
                                     int columns, float4* sums, float (&c)[2][kInputs / 8][4]) {
  constexpr bool kFp4 = is_fp4(kFormat);
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kSteps = kChunk / 16;              // products of 16 columns
  constexpr int kSlotSteps = kStagedColumns / 16;  // of a stage of inputs
  constexpr int kRows = 4;                         // of a lane
  constexpr uint32_t kBias = kFp4 ? kFp4Bias : kFp8Bias;
  const uint32_t own = static_cast<uint32_t>(first) * kStagedRowBytes + static_cast<uint32_t>(lane % 4) * 16;
  EarlierSums<kInputs> earlier(sums);
#pragma unroll
  for (auto& tile : c) {
#pragma unroll
    for (auto& sums_of : tile) {
#pragma unroll
      for (float& v : sums_of) v = 0;
    }
  }
  bool add = false;
  int held = -1;  // a stage of inputs that products may still read
  const auto release = [&] {
    if (lane == 0) barrier_arrive(s.inputs_empty(held));
  };
  uint32_t a[2][kBatch][2][4];  // double: the units read one while the other is widened
#pragma unroll 1
  for (int column = 0, chunk = 0; column < columns; column += kChunk, ++chunk) {
    const int stage = at.weights.stage;
    barrier_wait(s.weights_full(stage), at.weights.parity);
    at.weights.next(s.layout.weight_stages);
    uint4 row[kRows];
    uint32_t byte[kRows];
    uint32_t scale[kRows];
    uint32_t bytes = 0;
    const bool inside = column + lane % 4 * (kChunk / 4) < columns;
#pragma unroll
    for (int i = 0; i < kRows; ++i) byte[i] = scales.load(s.scales(stage), i, chunk);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      row[i] = load_shared(s.weights(stage) + own + static_cast<uint32_t>(i / 2 * kStagedHalf + i % 2 * 8) * kStagedRowBytes);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      byte[i] = inside ? byte[i] : 127;
      scale[i] = byte[i] * 0x00800080u + kBias * 0x00800080u;
      bytes |= byte[i] << 8 * i;
    }
    // Scales that may need two factors are rare.
    uint32_t inputs = 0;  // low half of their descriptor
    forget_uses(bytes);
    const bool large = __any_sync(0xffffffffu, (bytes & 0x80808080u) != 0);
    if (large) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) scale[i] = scale_pair(byte[i], kBias);
    }
#pragma unroll
    for (int step = 0; step < kSteps; step += kBatch) {
      uint32_t(&now)[kBatch][2][4] = a[step / kBatch % 2];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          uint32_t r[2];
          widen_half<kFormat, kInterleaved>(row[i], (step + k) / 2, (step + k) % 2, scale[i], r);
          now[k][i / 2][i % 2] = r[0];
          now[k][i / 2][i % 2 + 2] = r[1];
        }
      }
      if (large) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const uint32_t excess = excess_pair(bytes >> 8 * i & 0xff, kBias);
#pragma unroll
          for (int k = 0; k < kBatch; ++k) {
            now[k][i / 2][i % 2] = multiply_bf16x2(now[k][i / 2][i % 2], excess);
            now[k][i / 2][i % 2 + 2] = multiply_bf16x2(now[k][i / 2][i % 2 + 2], excess);
          }
        }
      }
      const bool slot_begins = step % kSlotSteps == 0;
      if (slot_begins) {
        barrier_wait(s.inputs_full(at.inputs.stage), at.inputs.parity);
        show_shared_memory();  // copies are no work of the units that read them
        inputs = static_cast<uint32_t>(swizzled_rows(s.inputs(at.inputs.stage)));
      }
      begin_products();
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const uint64_t of_step = (swizzled_rows(0) >> 32 << 32) | (inputs + static_cast<uint32_t>((step + k) % kSlotSteps) * 2);
#pragma unroll
        for (int m = 0; m < 2; ++m) multiply_rows<kInputs>(c[m], now[k][m], of_step, add);
        add = true;
      }
      commit_products();
      wait_products<1>();
      if (step == 0) {
        __syncwarp();  // all lanes have read their rows
        if (lane == 0) barrier_arrive(s.weights_empty(stage));
      }
      if (slot_begins) {
        if (held >= 0) release();
        held = at.inputs.stage;
      }
      if ((step + kBatch) % kSlotSteps == 0) at.inputs.next(s.layout.input_stages);
    }
    if ((column + kChunk) % kSegment == 0 && column + kChunk < columns) {
      wait_products<0>();
      release();
      held = -1;
#pragma unroll
      for (int m = 0; m < 2; ++m) settle(c[m]);
      earlier.take(c);
      add = false;
    }
  }
  wait_products<0>();
  release();
#pragma unroll
  for (int m = 0; m < 2; ++m) settle(c[m]);
  earlier.add_to(c);
}

/// One item: the outputs of the warpgroup's rows are in shared memory afterwards, rounded to bf16, once it has come by a barrier.
template <int kInputs, int kBatch, typename Work>
__device__ inline void multiply(const Staged& s, Multiplier& at, const Work& work, const typename Work::Item& item) {
  const int thread = thread_read_anew();  // there are several of these functions, and registers for one
  const int lane = thread % kWarp;
  const int group = thread / kWarpgroup;
  const int own = thread % kWarpgroup / kWarp * 16 + lane / 4;
  const int first = group * kStagedGroupRows + own;
  const Scales<Work::kFormat> scales(work, item, first, lane);
  float c[2][kInputs / 8][4];
  multiply_item<Work::kFormat, Work::kInterleaved, kInputs, kBatch>(s, at, scales, lane, first, item.columns,
                                                                    s.sums(group) + thread % kWarpgroup, c);
  // Where the outputs go lie sums of all of the warpgroup.
  if (kept_sums(kInputs) < 2 * kInputs / 8) named_barrier(kGroup + group, kWarpgroup);
  // Blocks of 8 x 8: rows own and own + 8 of eight inputs, then of the eight behind them.
  const uint32_t out =
      shared_address(s.outputs(group) + (lane / 16 * 8 + lane % 8) * kStagedOutStride + (own - lane / 4) + lane / 8 % 2 * 8);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int j = 0; j < kInputs / 8; j += 2) {
      uint32_t blocks[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) blocks[i] = narrow_two(c[m][j + i / 2][i % 2 * 2], c[m][j + i / 2][i % 2 * 2 + 1]);
      store_matrices_transposed(out + static_cast<uint32_t>(j * 8 * kStagedOutStride + m * kStagedGroupRows) * 2, blocks);
    }
  }
}

/// kSmall: tiles have at most kMostSmallInputs, so there are registers to widen two steps together: a warp has more to do between
/// two waits.
template <bool kSmall, typename Work>
__device__ inline void multiply_items(const Staged& s, const Work& work) {
  constexpr bool kFp8 = Work::kFormat == WeightFormat::kFp8;
  Multiplier at;
  typename Work::Item item;
  for (int number = static_cast<int>(blockIdx.x); work.find(number, item); number += static_cast<int>(gridDim.x)) {
    if constexpr (kSmall) {
      if (item.count <= 32) {
        multiply<32, 2>(s, at, work, item);
      } else {
        multiply<64, 2>(s, at, work, item);
      }
    } else if (item.count <= 64) {
      multiply<64, 1>(s, at, work, item);
    } else if (item.count <= (kFp8 ? 96 : 80)) {
      multiply<kFp8 ? 96 : 80, 1>(s, at, work, item);
    } else {
      multiply<kFp8 ? 128 : 96, 1>(s, at, work, item);
    }
    const int group = thread_read_anew() / kWarpgroup;
    named_barrier(kGroup + group, kWarpgroup);
    work.find(number, item);  // again: it needs no registers meanwhile
    work.finish(item, s, group);
    named_barrier(kGroup + group, kWarpgroup);
  }
}

}  // namespace staged

/// All threads of a block of kStagedThreads.
template <bool kSmall, typename Work>
__device__ inline void run_staged(const StagedLayout& layout, const Work& work) {
  const Staged s{layout, dynamic_shared<uint8_t>()};
  if (threadIdx.x == 0) {
    if (shared_address(s.memory) % kEightRows != 0) __trap();
    constexpr int kWarps = kStagedGroups * kWarpgroup / kWarp;
    for (int i = 0; i < kMostStages; ++i) {
      barrier_init(s.weights_full(i), kWarpgroup);
      barrier_init(s.weights_empty(i), kWarps);
      barrier_init(s.inputs_full(i), kWarpgroup);
      barrier_init(s.inputs_empty(i), kWarps);
    }
    show_barriers();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= kStagedGroups * kWarpgroup) {
    give_registers<kLoadRegisters>();
    staged::load_items(s, work);
  } else {
    take_registers<kMultiplyRegisters>();
    staged::multiply_items<kSmall>(s, work);
  }
}

/// Writes those of the block's rows first_row .. last_row that are warpgroup `group`'s, of outputs 0 .. count - 1: `place(i)` is
/// where row 0 of output i lies.
template <typename Place>
__device__ inline void store_staged(const Staged& s, int group, int64_t first_row, int64_t last_row, int count,
                                    const Place& place) {
  constexpr int kPieces = 2 * kStagedGroupRows / 8;
  for (int i = staged::thread(); i < count * kPieces; i += kWarpgroup) {
    const int input = i / kPieces;
    const int at = i % kPieces * 8;
    const int64_t row = first_row + at / kStagedGroupRows * kStagedHalf + group * kStagedGroupRows + at % kStagedGroupRows;
    if (row > last_row) continue;
    const bf16* from = s.outputs(group) + input * kStagedOutStride + at;
    bf16* to = place(input) + row;
    if (row + 7 <= last_row && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int k = 0; k < 8 && row + k <= last_row; ++k) to[k] = from[k];
    }
  }
}

}  // namespace deepinfer::cuda
