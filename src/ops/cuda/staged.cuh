#pragma once

// Products with many input rows, weights staged in shared memory as they are packed. A block multiplies 256 weight rows by up to
// 128 input rows, item after item: a warpgroup copies weights, their scales and inputs into two rings, as far ahead as there is
// room, across the end of an item too; the others widen weights in registers and multiply. The chains of products, the segments
// and the order of their sums are those of segments.cuh, so a row's numbers are too.
//
// kTiles: tiles of 64 rows that a warpgroup multiplies by. One, in four warpgroups, for tiles of few inputs, where widening is
// all that counts: a chunk's weights and inputs come and go together there. Two, in two warpgroups that have the registers for
// it, for many.
//
// A kernel says what to do in a class `Work`:
//   kFormat, kShared, kInterleaved   the format of weights; whether items may be FP8 instead; the order of their inputs
//   find(number, item)               whether item `number` is there, and what it is: StagedItem and what else the class needs
//   half(item, h)                    the weight rows of the block's half h
//   input(item, i)                   input row i of the item in the order of the products (products.h)
//   finish<kTiles>(item, s)          all threads that multiply, when the item's outputs are in shared memory

#include "ops/cuda/segments.cuh"
#include "ops/cuda/staged_layout.h"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

template <int kTiles>
inline constexpr int kStagedGroups = kStagedRows / 64 / kTiles;  ///< warpgroups that multiply
template <int kTiles>
inline constexpr int kStagedThreads = (kStagedGroups<kTiles> + 1) * kWarpgroup;

/// Registers of a thread: together those that the block begins with, 96 of 640 threads or 168 of 384.
struct StagedRegisters {
  int multiply, load;
};
template <int kTiles>
inline constexpr StagedRegisters kStagedRegisters = kTiles == 1 ? StagedRegisters{104, 64} : StagedRegisters{232, 40};
static_assert(4 * kStagedRegisters<1>.multiply + kStagedRegisters<1>.load <= 5 * 96);
static_assert(2 * kStagedRegisters<2>.multiply + kStagedRegisters<2>.load <= 3 * 168);

struct StagedItem {
  int count = 0;    ///< inputs
  int columns = 0;  ///< of the weights
  bool fp8 = false;
};

/// 128 weight rows from the first on; rows behind the last one repeat it.
struct StagedRows {
  const uint8_t* values;
  const uint8_t* scales;  ///< of the first row; FP8: of its block of 32
  int last;
  int in_block;  ///< FP8: rows of that block before the first

  __device__ StagedRows(const WeightView& w, bool fp8, int64_t first_row, int64_t last_row) {
    const int64_t first = min(first_row, last_row);
    values = w.values + first * (fp8 ? w.in : w.in / 2);
    scales = w.scales + (fp8 ? first / kScaleGroup : first) * (w.in / kScaleGroup);
    last = static_cast<int>(min(last_row - first, static_cast<int64_t>(kStagedHalf - 1)));
    in_block = static_cast<int>(first % kScaleGroup);
  }
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
  __device__ float4* sums(int half) const {
    return reinterpret_cast<float4*>(memory + layout.work + static_cast<uint32_t>(half) * layout.half_work);
  }
  /// [inputs][kStagedOutStride] of a half of the rows.
  __device__ bf16* outputs(int half) const { return reinterpret_cast<bf16*>(sums(half)); }
  __device__ const bf16** rows(int turn) const {
    return reinterpret_cast<const bf16**>(memory + layout.rows) + turn * layout.inputs;
  }
  __device__ uint64_t* barrier(int kind, int stage) const {
    return reinterpret_cast<uint64_t*>(memory + layout.barriers) + kind * kMostStages + stage;
  }
  __device__ uint64_t* weights_full(int stage) const { return barrier(0, stage); }
  __device__ uint64_t* weights_empty(int stage) const { return barrier(1, stage); }
  __device__ uint64_t* inputs_full(int stage) const { return barrier(2, stage); }
  __device__ uint64_t* inputs_empty(int stage) const { return barrier(3, stage); }
};

/// A place in a ring, and the parity of the phase that is waited for there.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

namespace staged {
// Numbers of named barriers.
inline constexpr int kMultipliers = 1;
inline constexpr int kLoader = 2;
inline constexpr int kGroup = 3;  // and the number of the warpgroup

__device__ inline int thread() { return static_cast<int>(threadIdx.x) % kWarpgroup; }

/// Scale bytes from `from` on, `count` <= 4 of them, with the words they lie in.
__device__ inline void copy_scales(uint32_t slot, const uint8_t* from, int count) {
  const auto at = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 4);
  copy_word_async(slot, from - at);
  if (at + static_cast<uint32_t>(count) > 4) copy_word_async(slot + 4, from - at + 4);
}

/// Chunk `chunk` of the columns of both halves into a stage.
template <bool kFp8>
__device__ inline void copy_weights(const Staged& s, int stage, const StagedRows (&half)[2], int columns, int chunk) {
  const int row_bytes = kFp8 ? columns : columns / 2;
  const int byte = chunk * static_cast<int>(kStagedRowBytes) + thread() % 4 * 16;
  const bool there = byte < row_bytes;
  const uint32_t to = s.weights(stage) + static_cast<uint32_t>(thread()) * 16;
  constexpr int kRows = kWarpgroup / 4;  // at a time
#pragma unroll
  for (int i = 0; i < kStagedRows / kRows; ++i) {
    const StagedRows& rows = half[i / (kStagedHalf / kRows)];
    const int row = min(thread() / 4 + i % (kStagedHalf / kRows) * kRows, rows.last);
    copy_weights_async(to + static_cast<uint32_t>(i) * kRows * kStagedRowBytes,
                       there ? rows.values + static_cast<uint32_t>(row * row_bytes + byte) : rows.values, there ? 16 : 0);
  }
  const uint32_t scales = s.scales(stage);
  const int groups = columns / kScaleGroup;
  if constexpr (kFp8) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int block = thread() - h * 8;
      if (block >= 0 && block < 8 && block <= (half[h].in_block + half[h].last) / kScaleGroup) {
        copy_scales(scales + static_cast<uint32_t>(thread()) * kStagedScaleSlot, half[h].scales + block * groups + chunk * 2,
                    min(2, groups - chunk * 2));
      }
    }
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      copy_scales(scales + static_cast<uint32_t>(h * kStagedHalf + thread()) * kStagedScaleSlot,
                  half[h].scales + min(thread(), half[h].last) * groups + chunk * 4, min(4, groups - chunk * 4));
    }
  }
}

/// 64 columns of `count` inputs, of which a thread has every sixteenth.
__device__ inline void copy_inputs(const Staged& s, int stage, const bf16* const* rows, int count, int column) {
  constexpr int kRows = kWarpgroup / 8;
  const int slot = thread() % 8;
  const int first = thread() / 8;
  const uint32_t to = s.inputs(stage) + swizzled_piece(static_cast<uint32_t>(first), static_cast<uint32_t>(slot));
#pragma unroll 4
  for (int i = 0; first + i < count; i += kRows)
    copy_async(to + static_cast<uint32_t>(i) * kSwizzledRow, rows[first + i] + column + slot * 8, 16);
}

/// Joined: the inputs of a chunk come and go with its weights. Their first stage, of two.
__device__ inline int joined_stage(int weights) { return weights * 2; }

struct Loader {
  RingPlace weights{0, 1};  // nobody has to leave the stages of the first turn
  RingPlace inputs{0, 1};
};

template <bool kFp8, bool kJoined>
__device__ inline void load_item(const Staged& s, Loader& at, const StagedRows (&half)[2], const bf16* const* rows, int count,
                                 int columns) {
  constexpr int kChunk = kFp8 ? 64 : 128;
  constexpr int kParts = kChunk / kStagedColumns;
  for (int column = 0, chunk = 0; column < columns; column += kChunk, ++chunk) {
    barrier_wait(s.weights_empty(at.weights.stage), at.weights.parity);
    copy_weights<kFp8>(s, at.weights.stage, half, columns, chunk);
    if constexpr (kJoined) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        copy_inputs(s, joined_stage(at.weights.stage) + part, rows, count, column + part * kStagedColumns);
    }
    barrier_arrive_copied(s.weights_full(at.weights.stage));
    at.weights.next(s.layout.weight_stages);
    if constexpr (!kJoined) {
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        barrier_wait(s.inputs_empty(at.inputs.stage), at.inputs.parity);
        copy_inputs(s, at.inputs.stage, rows, count, column + part * kStagedColumns);
        barrier_arrive_copied(s.inputs_full(at.inputs.stage));
        at.inputs.next(s.layout.input_stages);
      }
    }
  }
}

/// The warpgroup that loads.
template <bool kJoined, typename Work>
__device__ inline void load_items(const Staged& s, const Work& work) {
  Loader at;
  typename Work::Item item;
  int turn = 0;
  for (int number = static_cast<int>(blockIdx.x); work.find(number, item); number += static_cast<int>(gridDim.x), turn ^= 1) {
    // Products with inputs behind the last eight have sums of their own, which nobody reads.
    const int count = (item.count + 7) / 8 * 8;
    const bf16** rows = s.rows(turn);  // those of the item before may still be read
    if (thread() < count) rows[thread()] = work.input(item, min(thread(), item.count - 1));
    named_barrier(kLoader, kWarpgroup);
    const StagedRows half[2] = {work.half(item, 0), work.half(item, 1)};
    if (Work::kShared && item.fp8) {
      load_item<true, kJoined>(s, at, half, rows, count, item.columns);
    } else {
      load_item<Work::kFormat == WeightFormat::kFp8, kJoined>(s, at, half, rows, count, item.columns);
    }
  }
}

/// Where a lane finds the scales of its rows in a stage.
template <WeightFormat kFormat, int kTiles>
class Scales {
 public:
  static constexpr int kRows = 2 * kTiles;

  /// `first`: the lane's first row in the block; the others are 8, 64 and 72 behind it.
  __device__ Scales(const StagedRows& rows, int first, int lane, int columns) {
    const int groups = columns / kScaleGroup;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + i / 2 * 64 + i % 2 * 8;
      const int source = min(row % kStagedHalf, rows.last);
      const int line = kFp8 ? (rows.in_block + source) / kScaleGroup : source;
      const int slot = kFp8 ? row / kStagedHalf * 8 + line : row;
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
  /// Of row i, in chunk `chunk`.
  __device__ uint32_t load(uint32_t stage, int i, int chunk) const {
    uint32_t at = stage + at_[i];
    if (kFp8) at += ((low_ >> 8 * i) + static_cast<uint32_t>(chunk) * 2) % 4;
    return load_shared_byte(at);
  }

 private:
  static constexpr bool kFp8 = kFormat == WeightFormat::kFp8;
  uint32_t at_[kRows];
  uint32_t low_ = 0;
};

struct Multiplier {
  RingPlace weights, inputs;
};

/// c[m][j][i] is row first + 64 m + 8 (i / 2), input 8 j + lane % 4 * 2 + i % 2 of the item, over all columns.
template <WeightFormat kFormat, bool kInterleaved, int kTiles, int kInputs>
__device__ inline void multiply_item(const Staged& s, Multiplier& at, const StagedRows& rows, int thread, int first, int half,
                                     int columns, float (&c)[kTiles][kInputs / 8][4]) {
  constexpr bool kFp4 = is_fp4(kFormat);
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kSteps = kChunk / 16;  // products of 16 columns
  constexpr bool kJoined = kTiles == 1;
  constexpr int kBatch = kTiles > 1 ? 1 : 2;       // steps that are widened together
  constexpr int kSlotSteps = kStagedColumns / 16;  // of a stage of inputs
  static_assert(kSteps / kBatch % 2 == 0 && kSlotSteps % kBatch == 0);
  constexpr int kRows = 2 * kTiles;
  constexpr int kSums = kTiles * kInputs / 8;
  constexpr int kKept = kept_sums(kTiles, kInputs);
  constexpr uint32_t kBias = kFp4 ? kFp4Bias : kFp8Bias;
  const int lane = thread % kWarp;
  const Scales<kFormat, kTiles> scales(rows, first, lane, columns);
  const uint32_t own = static_cast<uint32_t>(first) * kStagedRowBytes + static_cast<uint32_t>(lane % 4) * 16;
  float4 kept[kKept];
  // What is not set would live on from item to item, in all of these functions at once.
#pragma unroll
  for (float4& v : kept) v = make_float4(0, 0, 0, 0);
#pragma unroll
  for (auto& tile : c) {
#pragma unroll
    for (auto& sums_of : tile) {
#pragma unroll
      for (float& v : sums_of) v = 0;
    }
  }
  float4* sums = s.sums(half) + thread % kWarpgroup;
  bool add = false;
  bool folded = false;
  int held = -1;  // a stage of inputs that products may still read
  const auto release = [&] {
    if (lane == 0) barrier_arrive(kJoined ? s.weights_empty(held) : s.inputs_empty(held));
  };
  uint32_t a[2][kBatch][kTiles][4];  // double: the units read one while the other is widened
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
      row[i] = load_shared(s.weights(stage) + own + static_cast<uint32_t>(i / 2 * 64 + i % 2 * 8) * kStagedRowBytes);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      byte[i] = inside ? byte[i] : 127;
      scale[i] = byte[i] * 0x00800080u + kBias * 0x00800080u;
      bytes |= byte[i] << 8 * i;
    }
    // Scales that may need two factors are rare.
    uint32_t inputs = 0;  // low half of their descriptor
    const bool large = __any_sync(0xffffffffu, (bytes & 0x80808080u) != 0);
    if (large) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) scale[i] = scale_pair(byte[i], kBias);
    }
#pragma unroll
    for (int batch = 0; batch < kSteps / kBatch; ++batch) {
      uint32_t(&now)[kBatch][kTiles][4] = a[batch % 2];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int step = batch * kBatch + b;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          uint32_t r[2];
          widen_half<kFormat, kInterleaved>(row[i], step / 2, step % 2, scale[i], r);
          now[b][i / 2][i % 2] = r[0];
          now[b][i / 2][i % 2 + 2] = r[1];
        }
      }
      if (large) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const uint32_t excess = excess_pair(bytes >> 8 * i & 0xff, kBias);
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            now[b][i / 2][i % 2] = multiply_bf16x2(now[b][i / 2][i % 2], excess);
            now[b][i / 2][i % 2 + 2] = multiply_bf16x2(now[b][i / 2][i % 2 + 2], excess);
          }
        }
      }
      const bool slot_begins = batch * kBatch % kSlotSteps == 0;
      const bool slot_ends = (batch + 1) * kBatch % kSlotSteps == 0;
      if (slot_begins) {
        if (!kJoined) barrier_wait(s.inputs_full(at.inputs.stage), at.inputs.parity);
        if (!kJoined || batch == 0) show_shared_memory();  // copies are no work of the units that read them
        const int from = kJoined ? joined_stage(stage) + batch * kBatch / kSlotSteps : at.inputs.stage;
        inputs = static_cast<uint32_t>(swizzled_rows(s.inputs(from)));
      }
      begin_products();
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const uint64_t step =
            (swizzled_rows(0) >> 32 << 32) | (inputs + static_cast<uint32_t>((batch * kBatch + b) % kSlotSteps) * 2);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) multiply_rows<kInputs>(c[m], now[b][m], step, add);
        add = true;
      }
      commit_products();
      wait_products<1>();
      if (!kJoined && batch == 0 && lane == 0) barrier_arrive(s.weights_empty(stage));
      if (kJoined ? batch == 0 : slot_begins) {
        if (held >= 0) release();
        held = kJoined ? stage : at.inputs.stage;
      }
      if (!kJoined && slot_ends) at.inputs.next(s.layout.input_stages);
    }
    if ((column + kChunk) % kSegment == 0 && column + kChunk < columns) {
      wait_products<0>();
      release();
      held = -1;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) settle(c[m]);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const float(&own_sum)[4] = c[i / (kInputs / 8)][i % (kInputs / 8)];
        float4 total = make_float4(own_sum[0], own_sum[1], own_sum[2], own_sum[3]);
        if (folded) {
          const float4 before = i < kKept ? kept[i < kKept ? i : 0] : sums[(i - kKept) * kWarpgroup];
          total = make_float4(before.x + total.x, before.y + total.y, before.z + total.z, before.w + total.w);
        }
        if (i < kKept) {
          kept[i < kKept ? i : 0] = total;
        } else {
          sums[(i - kKept) * kWarpgroup] = total;
        }
      }
      folded = true;
      add = false;
    }
  }
  wait_products<0>();
  release();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) settle(c[m]);
  if (!folded) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    float(&own_sum)[4] = c[i / (kInputs / 8)][i % (kInputs / 8)];
    const float4 before = i < kKept ? kept[i < kKept ? i : 0] : sums[(i - kKept) * kWarpgroup];
    own_sum[0] = before.x + own_sum[0], own_sum[1] = before.y + own_sum[1];
    own_sum[2] = before.z + own_sum[2], own_sum[3] = before.w + own_sum[3];
  }
}

/// One item: its outputs are in shared memory afterwards, rounded to bf16, once all that multiply have come by a barrier.
template <WeightFormat kFormat, int kTiles, int kInputs, typename Work>
__device__ inline void multiply_format(const Staged& s, Multiplier& at, const Work& work, const typename Work::Item& item) {
  const int thread = thread_read_anew();  // there are several of these functions, and registers for one
  const int lane = thread % kWarp;
  const int group = thread / kWarpgroup;
  const int half = group * kTiles * 64 / kStagedHalf;
  const int first = group * kTiles * 64 + thread % kWarpgroup / kWarp * 16 + lane / 4;
  float c[kTiles][kInputs / 8][4];
  multiply_item<kFormat, Work::kInterleaved, kTiles, kInputs>(s, at, work.half(item, half), thread, first, half, item.columns, c);
  if (kept_sums(kTiles, kInputs) < kTiles * kInputs / 8) {  // where the outputs go lie sums of all of the warpgroup
    if (group == 0) named_barrier(kGroup, kWarpgroup);
    if (group == 1) named_barrier(kGroup + 1, kWarpgroup);
  }
  bf16* out = s.outputs(half) + lane % 4 * 2 * kStagedOutStride + first % kStagedHalf;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[(j * 8 + i % 2) * kStagedOutStride + m * 64 + i / 2 * 8] = narrow(c[m][j][i]);
    }
  }
}

template <int kTiles, int kInputs, typename Work>
__device__ inline void multiply(const Staged& s, Multiplier& at, const Work& work, const typename Work::Item& item) {
  if (Work::kShared && item.fp8) {
    multiply_format<WeightFormat::kFp8, kTiles, kInputs>(s, at, work, item);
  } else {
    multiply_format<Work::kFormat, kTiles, kInputs>(s, at, work, item);
  }
}

template <int kTiles, typename Work>
__device__ inline void multiply_items(const Staged& s, const Work& work) {
  constexpr int kThreads = kStagedGroups<kTiles> * kWarpgroup;
  Multiplier at;
  typename Work::Item item;
  for (int number = static_cast<int>(blockIdx.x); work.find(number, item); number += static_cast<int>(gridDim.x)) {
    const int inputs = staged_inputs(item.count);
    if constexpr (kTiles == 1) {
      if (inputs == 16) {
        multiply<kTiles, 16>(s, at, work, item);
      } else {
        multiply<kTiles, 32>(s, at, work, item);
      }
    } else {
      if (inputs <= 32) {
        multiply<kTiles, 32>(s, at, work, item);
      } else if (inputs == 64) {
        multiply<kTiles, 64>(s, at, work, item);
      } else if (inputs == 96) {
        multiply<kTiles, 96>(s, at, work, item);
      } else {
        multiply<kTiles, 128>(s, at, work, item);
      }
    }
    named_barrier(kMultipliers, kThreads);
    work.find(number, item);  // again: it needs no registers meanwhile
    work.template finish<kTiles>(item, s);
    named_barrier(kMultipliers, kThreads);
  }
}

}  // namespace staged

/// All threads of a block of kStagedThreads<kTiles>.
template <int kTiles, typename Work>
__device__ inline void run_staged(const StagedLayout& layout, const Work& work) {
  const Staged s{layout, dynamic_shared<uint8_t>()};
  if (threadIdx.x == 0) {
    if (shared_address(s.memory) % kEightRows != 0) __trap();
    constexpr int kWarps = kStagedGroups<kTiles> * kWarpgroup / kWarp;
    for (int i = 0; i < kMostStages; ++i) {
      barrier_init(s.weights_full(i), kWarpgroup);
      barrier_init(s.weights_empty(i), kWarps);
      barrier_init(s.inputs_full(i), kWarpgroup);
      barrier_init(s.inputs_empty(i), kWarps);
    }
    show_barriers();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= kStagedGroups<kTiles> * kWarpgroup) {
    give_registers<kStagedRegisters<kTiles>.load>();
    staged::load_items<kTiles == 1>(s, work);
  } else {
    take_registers<kStagedRegisters<kTiles>.multiply>();
    staged::multiply_items<kTiles>(s, work);
  }
}

/// Writes rows [first_row, last_row] of outputs 0 .. count - 1 of the block, by all threads that multiply: `place(i)` is where
/// row 0 of output i lies.
template <int kTiles, typename Place>
__device__ inline void store_staged(const Staged& s, int64_t first_row, int64_t last_row, int count, const Place& place) {
  constexpr int kPieces = kStagedRows / 8;
  for (int i = static_cast<int>(threadIdx.x); i < count * kPieces; i += kStagedGroups<kTiles> * kWarpgroup) {
    const int input = i / kPieces;
    const int row = i % kPieces * 8;
    if (first_row + row > last_row) continue;
    const bf16* from = s.outputs(row / kStagedHalf) + input * kStagedOutStride + row % kStagedHalf;
    bf16* to = place(input) + first_row + row;
    if (first_row + row + 7 <= last_row && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int k = 0; k < 8 && first_row + row + k <= last_row; ++k) to[k] = from[k];
    }
  }
}

}  // namespace deepinfer::cuda
