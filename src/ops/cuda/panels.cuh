#pragma once

// How a block multiplies routed experts' FP4 weights that lie in panels (fp4_order.h) by a tile of inputs: 64 weight rows a
// warpgroup, which widens them in registers and multiplies them by inputs in shared memory. Panels and inputs lie in memory as
// shared memory wants them, so that one thread brings them with a few bulk copies a stage, and stages are filled across the end
// of an item. The chains of products, the segments and the order of their sums are those of segments.cuh, so a row's numbers are
// too.
//
// A kernel says what to do in a class `Work`:
//   columns()                  of the weights
//   units(), items()           what warpgroups multiply, 64 weight rows each; items of a tile
//   tile(number)               item `number`'s tile; count 0: there is none, nor any behind it
//   weights(tile)              where the matrices of a unit's panels begin: `kMatrices` of them
//   inputs(tile, block)        64 columns of the tile's inputs, in the order of shared memory; blocks are pairs() rows apart
//   finish(first, count, unit, outputs): the threads of a warpgroup, when the outputs of its rows are in shared memory
// A unit is panel `unit` of each of two matrices, and a warp has eight rows of both; or two neighbouring panels of one, and a
// warp has sixteen rows of one of them.

#include "ops/cuda/experts.h"
#include "ops/cuda/fragments.cuh"
#include "ops/cuda/panels_layout.h"
#include "ops/cuda/warpgroup_rows.cuh"
#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

/// Of a kernel: warpgroups that multiply, inputs of a tile at most, chunks of a stage.
template <int kOwnGroups, int kOwnInputs, int kOwnChunks>
struct PanelBlock {
  static constexpr int kGroups = kOwnGroups;
  static constexpr int kInputs = kOwnInputs;
  static constexpr int kChunks = kOwnChunks;
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;  ///< of the last warpgroup, as many warps copy as groups multiply
  static constexpr PanelsLayout kLayout = panels_layout(kGroups, kInputs, kChunks);
  // Registers of a thread that multiplies and of one that copies: together those that the block begins with.
  static constexpr int kMultiplyRegisters = kGroups == 4 ? 112 : kGroups == 3 ? 160 : 232;
  static constexpr int kCopyRegisters = kGroups == 2 ? 40 : 32;
  static_assert(kGroups * kMultiplyRegisters + kCopyRegisters <= (kGroups + 1) * (65536 / kThreads / 8 * 8));
  static_assert(kLayout.stages >= 2 && kLayout.stages * 32 <= 256);
};

namespace panels {

/// What a stage belongs to. `count` 0: to nothing, and nothing follows.
struct Note {
  int count;
  int first;  ///< pair
  int item;   ///< of those of the tile
  int rest;
};

template <typename Block>
struct Shared {
  static constexpr PanelsLayout kLayout = Block::kLayout;
  uint32_t memory;

  __device__ uint32_t stage(int stage) const { return memory + static_cast<uint32_t>(stage) * kLayout.stage_bytes; }
  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(dynamic_shared<uint8_t>() + kLayout.barriers) + stage * 2;
  }
  __device__ uint64_t* empty(int stage) const { return full(stage) + 1; }
  __device__ Note* note(int stage) const {
    return reinterpret_cast<Note*>(dynamic_shared<uint8_t>() + kLayout.barriers) + kLayout.stages + stage;
  }
  /// [inputs][kPanelOutStride] of the rows of a warpgroup.
  __device__ bf16* outputs(int group) const {
    return reinterpret_cast<bf16*>(dynamic_shared<uint8_t>() + kLayout.outputs +
                                   static_cast<uint32_t>(group) * kLayout.group_outputs);
  }
};

struct Matrix {
  const uint8_t* codes;
  const uint8_t* scales;
};

/// One of the threads that copy: the panels of one warpgroup, and a block of inputs. What it has to know of an item it asks for
/// while it fills the stages of the one before.
template <typename Block, typename Work>
__device__ inline void copy_items(const Shared<Block>& s, const Work& work, int group) {
  constexpr auto kStageCodes = static_cast<uint32_t>(Block::kChunks) * kPanelCodes;
  constexpr auto kStageScales = static_cast<uint32_t>(Block::kChunks) * kPanelScales;
  static_assert(2 * Block::kChunks <= Block::kGroups);
  const auto step = static_cast<int>(gridDim.x);
  const int columns = work.columns();
  const int chunks = columns / kFp4ChunkColumns;
  const auto own = static_cast<uint32_t>(group * 2);
  RingPlace at{0, 1};  // nobody has to leave the stages of the first turn
  int number = static_cast<int>(blockIdx.x);
  ExpertPlan::Tile next = work.tile(number);
  ExpertPlan::Tile behind = work.tile(number + step);
  typename Work::Weights weights = work.weights(next);
  while (next.count > 0) {
    const ExpertPlan::Tile tile = next;
    const int item = number % work.items();
    const int unit = min(item * Block::kGroups + group, work.units() - 1);  // some unit, where there is none
    Matrix from[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t panel = static_cast<int64_t>(Work::kMatrices == 2 ? unit : 2 * unit + i) * columns;
      const Matrix& matrix = weights.matrix[Work::kMatrices == 2 ? i : 0];
      from[i] = {matrix.codes + panel * (kFp4PanelRows / 2), matrix.scales + panel};
    }
    number += step;
    next = behind;
    weights = work.weights(next);
    behind = work.tile(number + step);
    const bf16* inputs = work.inputs(tile, group);
    const auto block_bytes = static_cast<uint32_t>(tile.count) * kSwizzledRow;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk += Block::kChunks) {
      const int here = min(Block::kChunks, chunks - chunk);
      const uint32_t codes_bytes = static_cast<uint32_t>(here) * kPanelCodes;
      const uint32_t scales_bytes = static_cast<uint32_t>(here) * kPanelScales;
      const bool brings_inputs = group < 2 * here;
      uint64_t* full = s.full(at.stage);
      const uint32_t stage = s.stage(at.stage);
      barrier_wait(s.empty(at.stage), at.parity);
      if (group == 0 && chunk == 0) *s.note(at.stage) = {tile.count, tile.first, item, 0};
      barrier_arrive_expecting(full, 2 * (codes_bytes + scales_bytes) + (brings_inputs ? block_bytes : 0));
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        copy_bulk(stage + Block::kLayout.codes + (own + i) * kStageCodes, from[i].codes, codes_bytes, full);
        copy_bulk(stage + Block::kLayout.scales + (own + i) * kStageScales, from[i].scales, scales_bytes, full);
        from[i].codes += kStageCodes;
        from[i].scales += kStageScales;
      }
      if (brings_inputs) copy_bulk(stage + static_cast<uint32_t>(group) * Block::kLayout.block_bytes, inputs, block_bytes, full);
      inputs += work.pairs() * (2 * Block::kChunks * kBlockColumns);
      at.next(Block::kLayout.stages);
    }
  }
  barrier_wait(s.empty(at.stage), at.parity);
  if (group == 0) *s.note(at.stage) = {0, 0, 0, 0};
  barrier_arrive(s.full(at.stage));
}

/// One item of one of the warpgroups that multiply, whose first stage is there.
template <int kInputs, typename Block, typename Work>
__device__ inline void multiply_tile(const Shared<Block>& s, RingPlace& at, int chunks) {
  constexpr uint32_t kStageCodes = static_cast<uint32_t>(Block::kChunks) * kPanelCodes;
  constexpr uint32_t kStageScales = static_cast<uint32_t>(Block::kChunks) * kPanelScales;
  // From the first of a lane's two rows to the second.
  constexpr uint32_t kSecondCodes = Work::kMatrices == 2 ? kStageCodes : kPanelCodes / 4;
  constexpr uint32_t kSecondScales = Work::kMatrices == 2 ? kStageScales : 1;
  const int thread = thread_read_anew();  // there are several of these functions, and registers for one
  const auto lane = static_cast<uint32_t>(thread % kWarp);
  const auto warp = static_cast<uint32_t>(thread % kWarpgroup / kWarp);
  const auto group = static_cast<uint32_t>(thread / kWarpgroup);
  // Eight rows of a panel, and which of the two.
  const uint32_t eight = Work::kMatrices == 2 ? warp : warp % 2 * 2;
  const uint32_t panel = group * 2 + (Work::kMatrices == 2 ? 0 : warp / 2);
  const uint32_t own_codes = Block::kLayout.codes + panel * kStageCodes + eight * (kPanelCodes / 4) + lane * 16;
  const uint32_t own_scales = Block::kLayout.scales + panel * kStageScales + lane * 4 + eight;
  const auto release = [&](int stage) {
    __syncwarp();  // all lanes have read their rows and scales
    if (lane == 0) barrier_arrive(s.empty(stage));
  };
  float c[kInputs / 8][4], total[kInputs / 8][4];
#pragma unroll
  for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[j][i] = 0, total[j][i] = -0.0f;  // minus zero and any number is that number
  }
  uint32_t a[2][2][4];  // double: the units read one while the other is widened
#pragma unroll 1
  while (chunks > 0) {
    int left = min(chunks, kSegment / kFp4ChunkColumns);
    chunks -= left;
    int held = -1;  // a stage that products may still read
    bool add = false;
#pragma unroll 1
    while (left > 0) {
      barrier_wait(s.full(at.stage), at.parity);
      const int here = min(left, Block::kChunks);
      left -= here;
      uint32_t stage = s.stage(at.stage);
#pragma unroll 1
      for (int k = 0; k < here; ++k) {
        uint4 row[2];
        uint32_t byte[2], scale[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          byte[i] = load_shared_byte(stage + own_scales + static_cast<uint32_t>(k) * kPanelScales + i * kSecondScales);
          row[i] = load_shared(stage + own_codes + static_cast<uint32_t>(k) * kPanelCodes + i * kSecondCodes);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) scale[i] = byte[i] * 0x00800080u + kFp4Bias * 0x00800080u;
        // Scales that may need two factors are rare.
        const bool large = __any_sync(0xffffffffu, ((byte[0] | byte[1]) & 0x80u) != 0);
        if (large) {
#pragma unroll
          for (int i = 0; i < 2; ++i) scale[i] = scale_pair(byte[i], kFp4Bias);
        }
        const auto inputs =
            static_cast<uint32_t>(swizzled_rows(stage + static_cast<uint32_t>(2 * k) * Block::kLayout.block_bytes));
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          uint32_t(&now)[2][4] = a[pair % 2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t words[4] = {row[i].x, row[i].y, row[i].z, row[i].w};
            uint32_t r[4];
            spread_arranged_fp4(words[pair], r);
#pragma unroll
            for (uint32_t& v : r) v = multiply_bf16x2(v, scale[i]);
            if (large) {
#pragma unroll
              for (uint32_t& v : r) v = multiply_bf16x2(v, excess_pair(byte[i], kFp4Bias));
            }
#pragma unroll
            for (int product = 0; product < 2; ++product) {
              now[product][i] = r[product * 2];
              now[product][i + 2] = r[product * 2 + 1];
            }
          }
          begin_products();
#pragma unroll
          for (int product = 0; product < 2; ++product) {
            const uint32_t place = static_cast<uint32_t>(pair / 2) * (Block::kLayout.block_bytes / 16) +
                                   static_cast<uint32_t>(pair % 2 * 4 + product * 2);
            multiply_tile_rows<kInputs>(c, now[product], (swizzled_rows(0) >> 32 << 32) | (inputs + place), add);
            add = true;
          }
          commit_products();
          wait_products<1>();
          if (pair == 1 && held >= 0) {  // what was begun in the stage before has ended
            release(held);
            held = -1;
          }
        }
      }
      held = at.stage;
      at.next(Block::kLayout.stages);
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
  const uint32_t out = shared_address(s.outputs(static_cast<int>(group)) + (lane / 16 * 8 + lane % 8) * kPanelOutStride +
                                      warp * 16 + lane / 8 % 2 * 8);
#pragma unroll
  for (int j = 0; j < kInputs / 8; j += 2) {
    uint32_t blocks[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of = j + i / 2;
      blocks[i] = of < kInputs / 8 ? narrow_two(total[of][i % 2 * 2], total[of][i % 2 * 2 + 1]) : 0;
    }
    store_matrices_transposed(out + static_cast<uint32_t>(j * 8 * kPanelOutStride) * 2, blocks);
  }
}

template <typename Block, typename Work>
__device__ inline void multiply_items(const Shared<Block>& s, const Work& work) {
  RingPlace at;
#pragma unroll 1
  for (;;) {
    barrier_wait(s.full(at.stage), at.parity);
    const Note note = *s.note(at.stage);
    if (note.count == 0) return;
    const int chunks = work.columns() / kFp4ChunkColumns;
    const int eights = (note.count + 7) / 8;
    Block::with_inputs(eights * 8, [&]<int kInputs>() { multiply_tile<kInputs, Block, Work>(s, at, chunks); });
    const int group = thread_read_anew() / kWarpgroup;
    named_barrier(1 + group, kWarpgroup);
    const int unit = note.item * Block::kGroups + group;
    if (unit < work.units()) work.finish(note.first, note.count, unit, s.outputs(group));
    named_barrier(1 + group, kWarpgroup);
  }
}

}  // namespace panels

/// All threads of a block.
template <typename Block, typename Work>
__device__ inline void run_panels(const Work& work) {
  const panels::Shared<Block> s{shared_address(dynamic_shared<uint8_t>())};
  if (threadIdx.x == 0) {
    if (s.memory % kEightRows != 0) __trap();
    for (int i = 0; i < Block::kLayout.stages; ++i) {
      barrier_init(s.full(i), Block::kGroups);
      barrier_init(s.empty(i), Block::kGroups * kWarpgroup / kWarp);
    }
    show_barriers();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= Block::kGroups * kWarpgroup) {
    give_registers<Block::kCopyRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - Block::kGroups * kWarpgroup;
    if (thread % kWarp == 0 && thread / kWarp < Block::kGroups) panels::copy_items<Block>(s, work, thread / kWarp);
  } else {
    take_registers<Block::kMultiplyRegisters>();
    panels::multiply_items<Block>(s, work);
  }
}

}  // namespace deepinfer::cuda
