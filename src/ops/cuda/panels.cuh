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

#include "ops/cuda/chosen_lane.cuh"
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
  int expert;
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

/// Panel `i` of the two of a unit.
template <typename Work>
__device__ inline Matrix unit_panel(const typename Work::Weights& weights, int unit, int i, int columns) {
  const int64_t panel = static_cast<int64_t>(Work::kMatrices == 2 ? unit : 2 * unit + i) * columns;
  const Matrix& matrix = weights.matrix[Work::kMatrices == 2 ? i : 0];
  return {matrix.codes + panel * (kFp4PanelRows / 2), matrix.scales + panel};
}

/// The lane's value of lane 0, which the compiler then knows to be the same in all: copies take their addresses from registers
/// that a warp has in common.
template <typename T>
__device__ inline const T* common_pointer(const T* p) {
  const auto v = reinterpret_cast<uint64_t>(p);
  const uint32_t low = __shfl_sync(0xffffffffu, static_cast<uint32_t>(v), 0);
  const uint32_t high = __shfl_sync(0xffffffffu, static_cast<uint32_t>(v >> 32), 0);
  return reinterpret_cast<const T*>(static_cast<uint64_t>(high) << 32 | low);
}

/// One of the warps that copy: the panels of one warpgroup, and a block of inputs. What it has to know of an item it asks for
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
      const Matrix panel = unit_panel<Work>(weights, unit, i, columns);
      from[i] = {common_pointer(panel.codes), common_pointer(panel.scales)};
    }
    number += step;
    next = behind;
    weights = work.weights(next);
    behind = work.tile(number + step);
    const bf16* inputs = common_pointer(work.inputs(tile, group));
    const uint32_t block_bytes = __shfl_sync(0xffffffffu, static_cast<uint32_t>(tile.count) * kSwizzledRow, 0);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk += Block::kChunks) {
      const int here = min(Block::kChunks, chunks - chunk);
      const uint32_t codes_bytes = static_cast<uint32_t>(here) * kPanelCodes;
      const uint32_t scales_bytes = static_cast<uint32_t>(here) * kPanelScales;
      const bool brings_inputs = group < 2 * here;
      uint64_t* full = s.full(at.stage);
      const uint32_t stage = s.stage(at.stage);
      barrier_wait(s.empty(at.stage), at.parity);
      if (chosen_lane()) {
        if (group == 0 && chunk == 0) *s.note(at.stage) = {tile.count, tile.first, item, tile.expert};
        barrier_arrive_expecting(full, 2 * (codes_bytes + scales_bytes) + (brings_inputs ? block_bytes : 0));
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          copy_bulk(stage + Block::kLayout.codes + (own + i) * kStageCodes, from[i].codes, codes_bytes, full);
          copy_bulk(stage + Block::kLayout.scales + (own + i) * kStageScales, from[i].scales, scales_bytes, full);
        }
        if (brings_inputs)
          copy_bulk(stage + static_cast<uint32_t>(group) * Block::kLayout.block_bytes, inputs, block_bytes, full);
      }
#pragma unroll
      for (Matrix& m : from) {
        m.codes += kStageCodes;
        m.scales += kStageScales;
      }
      inputs += work.pairs() * (2 * Block::kChunks * kBlockColumns);
      at.next(Block::kLayout.stages);
    }
  }
  barrier_wait(s.empty(at.stage), at.parity);
  if (chosen_lane()) {
    if (group == 0) *s.note(at.stage) = {0, 0, 0, 0};
    barrier_arrive(s.full(at.stage));
  }
}

/// One item of one of the warpgroups that multiply, whose first stage is there. All scales are taken for such as one factor can
/// hold; returns whether one of the lane's rows may have others.
template <int kInputs, typename Block, typename Work>
__device__ inline bool multiply_tile(const Shared<Block>& s, RingPlace& at, int chunks) {
  constexpr uint32_t kStageCodes = static_cast<uint32_t>(Block::kChunks) * kPanelCodes;
  constexpr uint32_t kStageScales = static_cast<uint32_t>(Block::kChunks) * kPanelScales;
  // From the first of a lane's two rows to the second.
  constexpr uint32_t kSecondCodes = Work::kMatrices == 2 ? kStageCodes : kPanelCodes / 4;
  constexpr uint32_t kSecondScales = Work::kMatrices == 2 ? kStageScales : 1;
  const auto thread = static_cast<uint32_t>(thread_read_anew());  // there are several of these functions, and registers for one
  const uint32_t lane = thread % kWarp;
  const uint32_t warp = thread % kWarpgroup / kWarp;
  const uint32_t group = thread / kWarpgroup;
  // Eight rows of a panel, and which of the two.
  const uint32_t eight = Work::kMatrices == 2 ? warp : warp % 2 * 2;
  const uint32_t panel = group * 2 + (Work::kMatrices == 2 ? 0 : warp / 2);
  const uint32_t own_codes = s.memory + Block::kLayout.codes + panel * kStageCodes + eight * (kPanelCodes / 4) + lane * 16;
  const uint32_t own_scales = s.memory + Block::kLayout.scales + panel * kStageScales + lane * 4 + eight;
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
  const uint64_t first_inputs = swizzled_rows(s.memory);
  uint32_t seen = 0;        // the bits of all scales
  constexpr int kPart = 4;  // products that are begun together: half a chunk
  uint32_t a[2][kPart][4];  // double: the units read one while the other is widened
  uint32_t stage = 0;
  uint64_t stage_inputs = 0;
  uint4 row[2];
  uint32_t scale[2];
  const auto enter_stage = [&] {
    barrier_wait(s.full(at.stage), at.parity);
    stage = static_cast<uint32_t>(at.stage) * Block::kLayout.stage_bytes;
    stage_inputs = first_inputs + static_cast<uint32_t>(at.stage) * (Block::kLayout.stage_bytes / 16);
  };
  const auto load_chunk = [&](int k) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      scale[i] = load_shared_byte(stage + own_scales + static_cast<uint32_t>(k) * kPanelScales + i * kSecondScales);
      row[i] = load_shared(stage + own_codes + static_cast<uint32_t>(k) * kPanelCodes + i * kSecondCodes);
    }
  };
  enter_stage();
  load_chunk(0);
#pragma unroll 1
  while (chunks > 0) {
    int before = 0;  // stage whose rows products may still read
    // All of a segment is written out, so that no product is under way where a loop ends: its rows would keep registers of their
    // own in each of the functions.
#pragma unroll
    for (int chunk = 0; chunk < kSegment / kFp4ChunkColumns; ++chunk) {
      const int k = chunk % Block::kChunks;
      const uint64_t inputs = stage_inputs + static_cast<uint32_t>(2 * k) * (Block::kLayout.block_bytes / 16);
      seen |= scale[0] | scale[1];
      const uint32_t factor[2] = {scale[0] * 0x00800080u + kFp4Bias * 0x00800080u,
                                  scale[1] * 0x00800080u + kFp4Bias * 0x00800080u};
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t(&now)[kPart][4] = a[part];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t words[2] = {part == 0 ? row[i].x : row[i].z, part == 0 ? row[i].y : row[i].w};
#pragma unroll
          for (int product = 0; product < kPart; product += 2) {
            uint32_t r[4];
            spread_arranged_fp4(words[product / 2], r);
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) now[product + pair / 2][i + pair % 2 * 2] = multiply_bf16x2(r[pair], factor[i]);
          }
        }
        begin_products();
#pragma unroll
        for (int product = 0; product < kPart; ++product) {
          const uint32_t place =
              static_cast<uint32_t>(part) * (Block::kLayout.block_bytes / 16) + static_cast<uint32_t>(product) * 2;
          multiply_tile_rows<kInputs>(c, now[product], inputs + place, chunk > 0 || part > 0 || product > 0);
        }
        commit_products();
        if (part == 1 && k + 1 < Block::kChunks) load_chunk(k + 1);  // or something, where there is none
        wait_products<1>();
        if (chunk > 0 && k == 0 && part == 0) release(before);  // what was begun in the stage before has ended
      }
      if (chunk + 1 == kSegment / kFp4ChunkColumns || chunks <= chunk + 1) break;
      if (k + 1 == Block::kChunks) {
        before = at.stage;
        at.next(Block::kLayout.stages);
        enter_stage();
        load_chunk(0);
      }
    }
    chunks -= kSegment / kFp4ChunkColumns;
    before = at.stage;
    at.next(Block::kLayout.stages);
    if (chunks > 0) {
      enter_stage();
      load_chunk(0);
    }
    wait_products<0>();
    release(before);
    settle(c);
#pragma unroll
    for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[j][i] += c[j][i];
    }
  }
  const auto again = static_cast<uint32_t>(thread_read_anew());
  const uint32_t row_of = again % kWarpgroup / kWarp * 16 + again / 8 % 2 * 8;
  const uint32_t out = shared_address(s.outputs(static_cast<int>(again / kWarpgroup)) +
                                      (again % kWarp / 16 * 8 + again % 8) * kPanelOutStride + row_of);
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
  return (seen & 0x80u) != 0;
}

/// What multiply_tile does for one warp's rows, whatever their scales, eight inputs at a time and from memory: such scales are
/// rare, and products of warpgroups leave no room for a branch.
template <typename Block, typename Work>
__device__ inline void multiply_again(const Shared<Block>& s, const Work& work, const Note& note) {
  __syncwarp();  // outputs of all lanes are there, to be overwritten
  const int thread = thread_read_anew();
  const int lane = thread % kWarp;
  const int warp = thread % kWarpgroup / kWarp;
  const int group = thread / kWarpgroup;
  const ExpertPlan::Tile tile{note.expert, note.first, note.count};
  const int columns = work.columns();
  const int chunks = columns / kFp4ChunkColumns;
  const int unit = min(note.item * Block::kGroups + group, work.units() - 1);
  const typename Work::Weights weights = work.weights(tile);
  Matrix rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int eight = Work::kMatrices == 2 ? warp : warp % 2 * 2 + i;
    const Matrix panel = unit_panel<Work>(weights, unit, Work::kMatrices == 2 ? i : warp / 2, columns);
    rows[i] = {panel.codes + eight * (kPanelCodes / 4) + lane * 16, panel.scales + lane * 4 + eight};
  }
#pragma unroll 1
  for (int first = 0; first < note.count; first += 8) {
    const int input = first + lane / 4;
    float total[4] = {-0.0f, -0.0f, -0.0f, -0.0f};
#pragma unroll 1
    for (int chunk = 0; chunk < chunks;) {
      const int end = min(chunk + kSegment / kFp4ChunkColumns, chunks);
      float c[4] = {};
#pragma unroll 1
      for (; chunk < end; ++chunk) {
#pragma unroll 1
        for (int word = 0; word < 4; ++word) {
          uint32_t r[2][4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t byte = load_byte(rows[i].scales + chunk * kPanelScales);
            spread_arranged_fp4(reinterpret_cast<const uint32_t*>(rows[i].codes + chunk * kPanelCodes)[word], r[i]);
#pragma unroll
            for (uint32_t& v : r[i])
              v = multiply_bf16x2(multiply_bf16x2(v, scale_pair(byte, kFp4Bias)), excess_pair(byte, kFp4Bias));
          }
#pragma unroll
          for (int product = 0; product < 2; ++product) {
            const bf16* block = work.inputs(tile, chunk * 2 + word / 2) + input * kBlockColumns;
            uint32_t x[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int piece = word % 2 * 4 + product * 2 + i ^ input % 8;
              if (input < note.count) x[i] = reinterpret_cast<const uint32_t*>(block)[piece * 4 + lane % 4];
            }
            const uint32_t a[4] = {r[0][product * 2], r[1][product * 2], r[0][product * 2 + 1], r[1][product * 2 + 1]};
            mma(c, a, x[0], x[1]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i] += c[i];
    }
    bf16* out = s.outputs(group) + (first + lane % 4 * 2) * kPanelOutStride + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i % 2 * kPanelOutStride + i / 2 * 8] = narrow(total[i]);
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
    bool again = false;
    Block::with_inputs(eights * 8, [&]<int kInputs>() { again = multiply_tile<kInputs, Block, Work>(s, at, chunks); });
    if (__any_sync(0xffffffffu, again)) multiply_again<Block>(s, work, note);
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
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarp, 0) - Block::kGroups * (kWarpgroup / kWarp);
    if (warp < Block::kGroups) panels::copy_items<Block>(s, work, warp);
  } else {
    take_registers<Block::kMultiplyRegisters>();
    panels::multiply_items<Block>(s, work);
  }
}

}  // namespace deepinfer::cuda
