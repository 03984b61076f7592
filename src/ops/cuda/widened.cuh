#pragma once

// FP8 products of many rows: weights are widened once, by a kernel of their own (widen_block), and then multiplied as bf16, both
// operands in shared memory. Weights and inputs lie in memory in the order of shared memory already, so a stage of either is one
// copy, and one thread copies both; two warpgroups do nothing but multiply. Blocks take item after item, 128
// weight rows by a tile of inputs, and stages are filled across the end of an item. The chains of products, the segments and the
// order of their sums are those of segments.cuh, so a row's numbers are too.
//
// A kernel says what to do in a class `Work`:
//   Item                         what an item is; `count`: its inputs
//   items(), chunks()            how many there are; 64 columns each
//   find(number)                 item `number`
//   weights(item, chunk)         that chunk of its widened weights, kWidenedRows rows
//   inputs(item, chunk)          and of its inputs
//   finish(item, outputs, group) the threads of warpgroup `group`, when the outputs of its rows are in shared memory

#include "ops/cuda/fragments.cuh"
#include "ops/cuda/warpgroup_shared.cuh"
#include "ops/cuda/widened_layout.h"

namespace deepinfer::cuda {

inline constexpr int kWidenedGroups = 2;  ///< warpgroups that multiply
inline constexpr int kWidenedThreads = (kWidenedGroups + 1) * kWarpgroup;

/// Eight columns of an input row, of which the neighbours in the row lie with the threads beside it, as words of a pair of
/// columns each: the 16 bytes that the thread stores at *piece (of its 64 columns, before the swizzle). Two words belong to one
/// product, two to the next; of two quarters of 16 columns each takes a piece of one.
__device__ inline uint4 ordered_piece(uint32_t column, const uint32_t (&words)[4], uint32_t* piece) {
  const uint32_t quarter = column % 64 / 16;
  const bool second = quarter % 2 != 0;
  const uint32_t got[2] = {__shfl_xor_sync(0xffffffffu, second ? words[0] : words[2], 2),
                           __shfl_xor_sync(0xffffffffu, second ? words[1] : words[3], 2)};
  *piece = widened_place(quarter - quarter % 2, column % 16 / 8 * 2 + (second ? 1 : 0)) / 16;
  return second ? make_uint4(got[0], got[1], words[2], words[3]) : make_uint4(words[0], words[1], got[0], got[1]);
}
/// Where it belongs in inputs [columns / 64, rows, 64].
__device__ inline void store_ordered(bf16* inputs, int64_t rows, int64_t row, uint32_t column, uint32_t piece, const uint4& v) {
  uint8_t* line = reinterpret_cast<uint8_t*>(inputs) + (column / 64 * rows + row) * kSwizzledRow;
  reinterpret_cast<uint4*>(line)[piece ^ static_cast<uint32_t>(row % 8)] = v;
}

/// How rows and panels of weights are cut into items: bands of blocks of rows, in which items that are at work together share
/// weights and inputs.
struct WidenedPlace {
  int panel, block;
};
__device__ inline WidenedPlace place_in_bands(int number, int panels, int row_blocks, int band) {
  const int which = number / (band * panels);
  const int in_band = number % (band * panels);
  const int blocks = min(band, row_blocks - which * band);
  return {in_band / blocks, which * band + in_band % blocks};
}

namespace widened {

constexpr int kWarps = kWarpgroup / kWarp;

// Registers of a thread that multiplies and of one that copies: together those that the block begins with.
constexpr int kMultiplyRegisters = 232;
constexpr int kCopyRegisters = 40;
static_assert(kWidenedGroups * kMultiplyRegisters + kCopyRegisters <= 3 * 168);

template <int kInputs>
struct Shared {
  static constexpr WidenedLayout kLayout = widened_layout(kInputs);
  uint32_t memory;

  __device__ uint32_t weights(int stage) const { return memory + static_cast<uint32_t>(stage) * kLayout.stage_bytes; }
  __device__ uint32_t inputs(int stage) const { return weights(stage) + kWidenedWeights; }
  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(dynamic_shared<uint8_t>() + kLayout.barriers) + stage * 2;
  }
  __device__ uint64_t* empty(int stage) const { return full(stage) + 1; }
  /// [inputs][kWidenedOutStride] of the rows of a warpgroup.
  __device__ bf16* outputs(int group) const {
    return reinterpret_cast<bf16*>(dynamic_shared<uint8_t>() + kLayout.outputs +
                                   static_cast<uint32_t>(group) * kLayout.group_outputs);
  }
};

/// What a thread widens of 64 columns: 16 columns of each of four rows, 8 apart.
template <int kMatrices>
struct Chunk {
  uint4 row[4];
  uint32_t scale[kMatrices];
};

/// The first of a thread's rows in a stage. Of four that its neighbours have in one store no two lie in the same banks once they
/// are swizzled.
__device__ inline int first_of_rows(int thread) {
  const int lane = thread % kWarp;
  return thread / kWarp * kWarp + lane / 4 % 4 * 2 + lane / 16;
}

/// Where a thread's weights lie.
template <int kMatrices>
class WeightRows {
 public:
  WeightRows() = default;
  /// Rows from `first` on of every matrix, `last` the last there is: what is behind repeats it.
  __device__ WeightRows(const WeightView (&w)[kMatrices], int64_t first, int64_t last, int thread) {
    const int quarter = thread % 4;
    const int most = static_cast<int>(min(last - first, static_cast<int64_t>(kWidenedRows - 1)));
    int rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = first_of_rows(thread) + i * 8;
      rows[i] = min(kMatrices == 1 ? at : at / 16 * 8 + at % 8, most);
      row_[i] = static_cast<uint32_t>(rows[i]) * static_cast<uint32_t>(w[0].in / 16);
    }
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      values_[m] = w[m].values + first * w[m].in + quarter * 16;
      // A warp's rows of a matrix are in one block of 32.
      scales_[m] = w[m].scales + (first + rows[m]) / kScaleGroup * (w[m].in / kScaleGroup) + quarter / 2;
    }
  }
  __device__ void load(int number, Chunk<kMatrices>& chunk) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* from = values_[i % kMatrices] + static_cast<int64_t>(number) * kWidenedColumns;
      chunk.row[i] = load_once(static_cast<const uint8_t*>(place_behind(from, row_[i])));
    }
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) chunk.scale[m] = load_byte(scales_[m] + number * (kWidenedColumns / kScaleGroup));
  }

 private:
  const uint8_t* values_[kMatrices] = {};
  const uint8_t* scales_[kMatrices] = {};
  uint32_t row_[4] = {};  // from there, in units of 16 bytes
};

/// A thread's part of a stage of weights.
template <bool kInterleaved, int kMatrices>
__device__ inline void store_widened(uint32_t stage, int thread, const Chunk<kMatrices>& chunk) {
  const auto row = static_cast<uint32_t>(first_of_rows(thread));
  uint32_t largest = 0;
  uint32_t scale[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    scale[m] = scale_pair(chunk.scale[m], kFp8Bias);
    largest = max(largest, chunk.scale[m]);
  }
  const bool large = __any_sync(0xffffffffu, largest > kMostScale<WeightFormat::kFp8>);
  uint32_t to[4];
#pragma unroll
  for (uint32_t product = 0; product < 4; ++product) {
    const uint32_t place = widened_place(static_cast<uint32_t>(thread % 4), product);
    to[product] = stage + swizzled_piece(row, place / 16) + place % 16;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int product = 0; product < 4; ++product) {
      uint32_t r[2];
      widen_half<WeightFormat::kFp8, kInterleaved>(chunk.row[i], product / 2, product % 2, scale[i % kMatrices], r);
      if (large) {
#pragma unroll
        for (uint32_t& v : r) v = multiply_bf16x2(v, excess_pair(chunk.scale[i % kMatrices], kFp8Bias));
      }
      store_shared_pair(to[product] + static_cast<uint32_t>(i) * kEightRows, r[0], r[1]);
    }
  }
}

/// The thread that copies.
template <int kInputs, typename Work>
__device__ inline void copy_items(const Shared<kInputs>& s, const Work& work) {
  RingPlace at{0, 1};  // nobody has to leave the stages of the first turn
  for (int number = static_cast<int>(blockIdx.x); number < work.items(); number += static_cast<int>(gridDim.x)) {
    const typename Work::Item item = work.find(number);
    const auto bytes = static_cast<uint32_t>(item.count) * kSwizzledRow;
    for (int chunk = 0; chunk < work.chunks(); ++chunk) {
      barrier_wait(s.empty(at.stage), at.parity);
      barrier_arrive_expecting(s.full(at.stage), kWidenedWeights + bytes);
      copy_bulk(s.weights(at.stage), work.weights(item, chunk), kWidenedWeights, s.full(at.stage));
      copy_bulk(s.inputs(at.stage), work.inputs(item, chunk), bytes, s.full(at.stage));
      at.next(Shared<kInputs>::kLayout.stages);
    }
  }
}

/// The sums of a warpgroup's 64 rows, as products leave them, rounded to shared memory, an input a line of kWidenedOutStride.
template <int kInputs>
__device__ inline void narrow_outputs(const float (&total)[kInputs / 8][4], bf16* outputs) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const uint32_t out = shared_address(outputs + (lane / 16 * 8 + lane % 8) * kWidenedOutStride + warp * 16 + lane / 8 % 2 * 8);
#pragma unroll
  for (int j = 0; j < kInputs / 8; j += 2) {
    uint32_t blocks[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of = j + i / 2;  // of an odd number the last one is alone
      blocks[i] = of < kInputs / 8
                      ? narrow_two(total[of < kInputs / 8 ? of : j][i % 2 * 2], total[of < kInputs / 8 ? of : j][i % 2 * 2 + 1])
                      : 0;
    }
    store_matrices_transposed(out + static_cast<uint32_t>(j * 8 * kWidenedOutStride) * 2, blocks);
  }
}

/// One of the warpgroups that multiply.
template <int kInputs, typename Work>
__device__ inline void multiply_items(const Shared<kInputs>& s, const Work& work) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int chunks = work.chunks();
  const uint32_t own = static_cast<uint32_t>(group) * kWidenedGroupRows * kSwizzledRow;
  const auto release = [&](int stage) {
    if (lane == 0) barrier_arrive(s.empty(stage));
  };
  RingPlace at;
  for (int number = static_cast<int>(blockIdx.x); number < work.items(); number += static_cast<int>(gridDim.x)) {
    float c[kInputs / 8][4], total[kInputs / 8][4];
#pragma unroll
    for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[j][i] = 0, total[j][i] = -0.0f;  // minus zero and any number is that number
    }
#pragma unroll 1
    for (int chunk = 0; chunk < chunks;) {
      const int end = min(chunk + kSegment / kWidenedColumns, chunks);
      int held = -1;  // a stage that products may still read
      bool add = false;
#pragma unroll 1
      for (; chunk < end; ++chunk) {
        barrier_wait(s.full(at.stage), at.parity);
        const uint64_t rows = swizzled_rows(s.weights(at.stage) + own);
        const uint64_t inputs = swizzled_rows(s.inputs(at.stage));
        begin_products();
#pragma unroll
        for (uint32_t step = 0; step < kWidenedColumns / 16; ++step) {
          multiply_shared<kInputs>(c, rows + step * 2, inputs + step * 2, add);
          add = true;
        }
        commit_products();
        wait_products<1>();
        if (held >= 0) release(held);
        held = at.stage;
        at.next(Shared<kInputs>::kLayout.stages);
      }
      wait_products<0>();
      release(held);
      settle(c);
#pragma unroll
      for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[j][i] += c[j][i];
      }
    }
    named_barrier(1 + group, kWarpgroup);  // outputs of the item before are stored
    narrow_outputs<kInputs>(total, s.outputs(group));
    named_barrier(1 + group, kWarpgroup);
    work.finish(work.find(number), s.outputs(group), group);
  }
}

}  // namespace widened

/// All threads of a block of kWidenedThreads, no more blocks than items, with widened_layout(kInputs).bytes of shared memory.
template <int kInputs, typename Work>
__device__ inline void run_widened(const Work& work) {
  using widened::Shared;
  const Shared<kInputs> s{shared_address(dynamic_shared<uint8_t>())};
  if (threadIdx.x == 0) {
    if (s.memory % kEightRows != 0) __trap();
    for (int i = 0; i < Shared<kInputs>::kLayout.stages; ++i) {
      barrier_init(s.full(i), 1);
      barrier_init(s.empty(i), kWidenedGroups * widened::kWarps);
    }
    show_barriers();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= kWidenedGroups * kWarpgroup) {
    give_registers<widened::kCopyRegisters>();
    if (threadIdx.x == kWidenedGroups * kWarpgroup) widened::copy_items<kInputs>(s, work);
  } else {
    take_registers<widened::kMultiplyRegisters>();
    widened::multiply_items<kInputs>(s, work);
  }
}

/// Chunks that a block widens at a time.
inline constexpr int kWidenChunks = 2;
inline constexpr uint32_t kWidenBytes = kWidenChunks * kWidenedWeights;  ///< of shared memory
/// All threads of a warpgroup, before the kernel's turn: chunks first .. first + kWidenChunks - 1 of kWidenedRows weight rows, or
/// those of them that are there, into shared memory. `views`, `first_row`, `last_row`: as of WeightRows.
template <bool kInterleaved, int kMatrices>
__device__ inline void widen_block(const WeightView (&views)[kMatrices], int64_t first_row, int64_t last_row, int first,
                                   int chunks) {
  const auto thread = static_cast<int>(threadIdx.x);
  const uint32_t memory = shared_address(dynamic_shared<uint8_t>());
  const widened::WeightRows<kMatrices> rows(views, first_row, last_row, thread);
  widened::Chunk<kMatrices> chunk[kWidenChunks];
#pragma unroll
  for (int i = 0; i < kWidenChunks; ++i) rows.load(min(first + i, chunks - 1), chunk[i]);
#pragma unroll
  for (int i = 0; i < kWidenChunks; ++i)
    widened::store_widened<kInterleaved>(memory + static_cast<uint32_t>(i) * kWidenedWeights, thread, chunk[i]);
  show_shared_memory();
  __syncthreads();
}
/// Behind its turn: to `y`, where the chunks of these rows lie one behind the other.
__device__ inline void store_widened_block(bf16* y, int first, int chunks) {
  if (threadIdx.x != 0) return;
  const auto count = static_cast<uint32_t>(min(kWidenChunks, chunks - first));
  copy_bulk_out(y + static_cast<int64_t>(first) * kWidenedRows * kWidenedColumns, shared_address(dynamic_shared<uint8_t>()),
                count * kWidenedWeights);
  wait_copied_out();
}

/// Writes those of a block's rows first_row .. last_row that are warpgroup `group`'s, of outputs 0 .. count - 1, the first of
/// which is row 0 of `y`.
__device__ inline void store_widened_outputs(const bf16* outputs, int group, int64_t first_row, int64_t last_row, int count,
                                             bf16* y, int64_t stride) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int at = thread % 8 * 8;
  const int64_t row = first_row + group * kWidenedGroupRows + at;
  if (row > last_row) return;
  const bf16* from = outputs + thread / 8 * kWidenedOutStride + at;
  bf16* to = y + thread / 8 * stride + row;
  const bool whole = row + 7 <= last_row && ((reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(stride * 2)) & 15) == 0;
  for (int i = thread / 8; i < count; i += kWarpgroup / 8) {
    if (whole) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int k = 0; k < 8 && row + k <= last_row; ++k) to[k] = from[k];
    }
    from += kWarpgroup / 8 * kWidenedOutStride;
    to += kWarpgroup / 8 * stride;
  }
}

}  // namespace deepinfer::cuda
