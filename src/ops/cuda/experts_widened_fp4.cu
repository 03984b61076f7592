// The routed experts of many rows, with the bits of experts.cu: two warpgroups widen FP4 weights into shared memory, for two
// others that do nothing but multiply, 128 weight rows by a tile of up to 160 inputs. So a weight is widened once for all of an
// expert's tokens, as a rule, and the units that multiply wait for no registers. Inputs lie in memory in the order of shared
// memory, tile by tile (pack_kernel): a stage of them is one copy of one thread. Blocks take item after item, and stages are
// filled across the end of an item.

#include <algorithm>

#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/widened.cuh"

namespace deepinfer::cuda {
namespace {

using widened::Shared;

constexpr int kMultiprocessors = 132;
constexpr int kPanel = kWidenedRows / 2;  // rows of either matrix of the first product
constexpr int kChunk = 128;               // columns that a thread widens of a row at a time, with three others; two stages
constexpr int kWideners = 2 * kWarpgroup;
constexpr int kThreads = kWidenedGroups * kWarpgroup + kWideners;

constexpr int kMultiplyRegisters = 184;
constexpr int kWidenRegisters = 72;  // together those that the block begins with

struct Args {
  SharedExpert shared;  // whose sizes are those of the others
  const ExpertWeights* routed = nullptr;
  ExpertPlan plan;
  int64_t pairs = 0;  // of the routed experts
  float limit = 0;
  int panels = 0;
};

struct Item {
  const ExpertWeights* weights = nullptr;
  int first = 0;  // pair
  int count = 0;  // 0: there is none, nor any behind it
  int panel = 0;
};

// Where a row of weights and its scales begin, and how many rows on the thread's second one is.
struct Row {
  const uint8_t* values;
  const uint8_t* scales;
};

template <WeightFormat kFormat>
struct Work {
  static constexpr bool kPanels = kFormat == WeightFormat::kFp4Panels;
  const Args& args;
  __device__ Item find(int number) const {
    const int at = static_cast<int>(args.plan.shared_tiles) + number / args.panels;
    if (at >= static_cast<int>(args.plan.tile_count)) return {};
    const ExpertPlan::Tile tile = args.plan.tiles[at];
    return {args.routed + (tile.count > 0 ? tile.expert : 0), tile.first, tile.count, number % args.panels};
  }
  // Columns come in whole chunks.
  static __device__ Row row(const Fp4Weight& w, int64_t at) {
    if (!kPanels) return {w.codes + at * (w.in / 2), w.scales + at * (w.in / kScaleGroup)};
    return {w.codes + fp4_codes_place(w.in, at, 0), w.scales + fp4_scale_place(w.in, at, 0)};
  }
};

// Of each sixteen rows eight are of w1, eight of w3, so a warpgroup has both of a group of 32 columns of the second product.
template <WeightFormat kFormat>
struct HiddenWork : Work<kFormat> {
  using Work<kFormat>::args, Work<kFormat>::row;
  static constexpr int kSecond = 32;  // rows of a matrix between a thread's two
  __device__ int columns() const { return static_cast<int>(args.shared.w1.in); }
  __device__ Row rows(const Item& item, int at) const {
    return row(at / 8 % 2 == 0 ? item.weights->w1 : item.weights->w3, item.panel * kPanel + at / 16 * 8 + at % 8);
  }
  // Until there are outputs, the inputs are where they will be.
  __device__ const bf16* inputs(const Item& item, int stage) const {
    return args.plan.output + (stage * args.pairs + item.first) * kWidenedColumns;
  }
  // Four lanes take an input: eight gates each, and the ups behind them.
  __device__ void finish(const Item& item, const bf16* outputs, int group) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int part = thread % 4;
    const int column = item.panel * kPanel + group * kScaleGroup;
    const auto quarter = static_cast<uint32_t>(column % kChunk / kScaleGroup);
    for (int first = thread / kWarp * 8; first < item.count; first += kWarpgroup / 4) {
      const int i = first + thread % kWarp / 4;
      const bool there = i < item.count;
      const auto* own = reinterpret_cast<const uint4*>(outputs + i * kWidenedOutStride) + part * 2;
      float h[8];
      gate_eight(own[0], own[1], args.limit, there ? args.plan.weight[item.first + i] : 0.0f, h);
      float amax = 0;
#pragma unroll
      for (const float v : h) amax = fmaxf(amax, fabsf(v));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      round_to_fp8(h, amax);
      if (!there) continue;
      const int64_t line = (column / kChunk * 2 + part / 2) * args.pairs + item.first + i;
      uint8_t* to = reinterpret_cast<uint8_t*>(args.plan.hidden + line * kWidenedColumns);
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t place = widened_place(quarter, static_cast<uint32_t>(part % 2) * 2 + k);
        *reinterpret_cast<uint2*>(to + (place / 16 ^ static_cast<uint32_t>(i % 8)) * 16 + place % 16) =
            make_uint2(narrow_pair(h[k * 2], h[k * 2 + 4]), narrow_pair(h[k * 2 + 1], h[k * 2 + 5]));
      }
    }
  }
};

template <WeightFormat kFormat>
struct OutputWork : Work<kFormat> {
  using Work<kFormat>::args, Work<kFormat>::row;
  static constexpr int kSecond = 64;
  __device__ int columns() const { return static_cast<int>(args.shared.w2.in); }
  __device__ Row rows(const Item& item, int at) const { return row(item.weights->w2, item.panel * kWidenedRows + at); }
  __device__ const bf16* inputs(const Item& item, int stage) const {
    return args.plan.hidden + (stage * args.pairs + item.first) * kWidenedColumns;
  }
  __device__ void finish(const Item& item, const bf16* outputs, int group) const {
    const int64_t out = args.shared.w2.out;
    store_widened_outputs(outputs, group, static_cast<int64_t>(item.panel) * kWidenedRows, out - 1, item.count,
                          args.plan.output + item.first * out, out);
  }
};

// What a thread widens at a time: 32 codes, a scale's, of two rows.
struct Codes {
  uint4 row[2];
  uint32_t scale[2];
};

// A thread's first row of a stage, 0 .. 63; the second is 64 behind it. Of the four that its neighbours have in one store no two
// lie in the same banks once they are swizzled.
__device__ inline int row_of(int thread) {
  const int lane = thread % kWarp;
  return thread / kWarp * 8 + lane / 4 % 4 * 2 + lane / 16;
}

// The weights of one item after the other, chunk by chunk, as far ahead as there are registers for.
template <typename OwnWork>
class Ahead {
 public:
  __device__ Ahead(const OwnWork& work, int thread) : work_(work), thread_(thread), number_(static_cast<int>(blockIdx.x)) {
    begin();
  }
  // The next chunk; behind the last one some other.
  __device__ void load(Codes& codes) {
    const int columns = work_.columns();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      codes.row[i] = load_once(row_.values + static_cast<uint32_t>(i * OwnWork::kSecond * (columns / 2)));
      codes.scale[i] = load_byte(row_.scales + static_cast<uint32_t>(i * OwnWork::kSecond * (columns / kScaleGroup)));
    }
    row_.values += OwnWork::kPanels ? kFp4ChunkBytes : kChunk / 2;
    row_.scales += OwnWork::kPanels ? kFp4ChunkScales : kChunk / kScaleGroup;
    if (++chunk_ < columns / kChunk) return;
    number_ += static_cast<int>(gridDim.x);
    begin();
  }

 private:
  __device__ void begin() {
    const Item item = work_.find(number_);
    if (item.count > 0) {
      row_ = first_ = work_.rows(item, row_of(thread_));
      row_.values += thread_ % 4 * 16;
      row_.scales += thread_ % 4 * (OwnWork::kPanels ? 4 : 1);
      first_ = row_;
    }
    row_ = first_;
    chunk_ = 0;
  }
  const OwnWork& work_;
  int thread_;
  int number_;
  int chunk_ = 0;
  Row row_{}, first_{};
};

// A thread's part of a stage, the words `half` * 2 and that behind it of its rows.
template <WeightFormat kFormat>
__device__ inline void store_codes(uint32_t to, int thread, const Codes& codes, int half) {
  const auto row = static_cast<uint32_t>(row_of(thread));
  uint32_t scale[2];
  const bool large = __any_sync(0xffffffffu, max(codes.scale[0], codes.scale[1]) > kMostScale<kFormat>);
#pragma unroll
  for (int i = 0; i < 2; ++i) scale[i] = scale_pair(codes.scale[i], kFp4Bias);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t words[2] = {half == 0 ? codes.row[i].x : codes.row[i].z, half == 0 ? codes.row[i].y : codes.row[i].w};
#pragma unroll
    for (uint32_t word = 0; word < 2; ++word) {
      uint32_t r[4];
      widen_fp4<kFormat>(words[word], r);
#pragma unroll
      for (uint32_t& v : r) v = multiply_bf16x2(v, scale[i]);
      if (large) {
#pragma unroll
        for (uint32_t& v : r) v = multiply_bf16x2(v, excess_pair(codes.scale[i], kFp4Bias));
      }
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t place = widened_place(static_cast<uint32_t>(thread % 4), word * 2 + k);
        store_shared_pair(to + swizzled_piece(row, place / 16) + place % 16 + static_cast<uint32_t>(i) * 64 * kSwizzledRow,
                          r[k * 2], r[k * 2 + 1]);
      }
    }
  }
}

// The warpgroups that widen.
template <WeightFormat kFormat, typename OwnWork>
__device__ inline void widen_all(const Shared<kMostWidenedRouted>& s, const OwnWork& work) {
  const int thread = static_cast<int>(threadIdx.x) - kWidenedGroups * kWarpgroup;
  const int chunks = work.columns() / kChunk;
  int number = static_cast<int>(blockIdx.x);
  Item item = work.find(number);
  if (item.count == 0) return;
  Ahead<OwnWork> weights(work, thread);
  Codes ahead[3];
#pragma unroll
  for (Codes& codes : ahead) weights.load(codes);
  RingPlace at{0, 1};  // nobody has to leave the stages of the first turn
  int chunk = 0;
  // Whether there is another chunk. In registers only if every chunk has a name of its own: no loop over them.
  const auto widen = [&](Codes& now) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      barrier_wait(s.empty(at.stage), at.parity);
      if (thread == 0) {
        const auto bytes = static_cast<uint32_t>(item.count) * kSwizzledRow;
        barrier_arrive_expecting(s.full(at.stage), bytes);
        copy_bulk(s.inputs(at.stage), work.inputs(item, chunk * 2 + half), bytes, s.full(at.stage));
      }
      store_codes<kFormat>(s.weights(at.stage), thread, now, half);
      __syncwarp();
      if (thread % kWarp == 0) barrier_arrive(s.full(at.stage));
      at.next(Shared<kMostWidenedRouted>::kLayout.stages);
    }
    weights.load(now);
    if (++chunk < chunks) return true;
    chunk = 0;
    number += static_cast<int>(gridDim.x);
    item = work.find(number);
    return item.count > 0;
  };
  while (widen(ahead[0]) && widen(ahead[1]) && widen(ahead[2])) {
  }
}

// One item of one of the warpgroups that multiply.
template <int kInputs, typename OwnWork>
__device__ inline void multiply_tile(const Shared<kMostWidenedRouted>& s, const OwnWork& work, RingPlace& at) {
  const int thread = thread_read_anew();  // there are several of these functions, and registers for one
  const int lane = thread % kWarp;
  const int group = thread / kWarpgroup;
  const int stages = work.columns() / kWidenedColumns;
  const uint32_t own = static_cast<uint32_t>(group) * kWidenedGroupRows * kSwizzledRow;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) barrier_arrive(s.empty(stage));
  };
  float c[kInputs / 8][4], total[kInputs / 8][4];
#pragma unroll
  for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[j][i] = 0, total[j][i] = -0.0f;  // minus zero and any number is that number
  }
#pragma unroll 1
  for (int stage = 0; stage < stages;) {
    const int end = min(stage + kSegment / kWidenedColumns, stages);
    int held = -1;  // a stage that products may still read
    bool add = false;
#pragma unroll 1
    for (; stage < end; ++stage) {
      barrier_wait(s.full(at.stage), at.parity);
      show_shared_memory();  // here, where nothing is under way: it waits for all of the thread's
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
      at.next(Shared<kMostWidenedRouted>::kLayout.stages);
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
  const int warp = thread % kWarpgroup / kWarp;
  const uint32_t out =
      shared_address(s.outputs(group) + (lane / 16 * 8 + lane % 8) * kWidenedOutStride + warp * 16 + lane / 8 % 2 * 8);
#pragma unroll
  for (int j = 0; j < kInputs / 8; j += 2) {
    uint32_t blocks[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) blocks[i] = narrow_two(total[j + i / 2][i % 2 * 2], total[j + i / 2][i % 2 * 2 + 1]);
    store_matrices_transposed(out + static_cast<uint32_t>(j * 8 * kWidenedOutStride) * 2, blocks);
  }
}

template <typename OwnWork>
__device__ inline void multiply_all(const Shared<kMostWidenedRouted>& s, const OwnWork& work) {
  RingPlace at;
#pragma unroll 1
  for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
    const int count = work.find(number).count;
    if (count == 0) return;
    if (count <= 64) {
      multiply_tile<64>(s, work, at);
    } else if (count <= 96) {
      multiply_tile<96>(s, work, at);
    } else if (count <= 128) {
      multiply_tile<128>(s, work, at);
    } else {
      multiply_tile<160>(s, work, at);
    }
    const int group = thread_read_anew() / kWarpgroup;
    named_barrier(1 + group, kWarpgroup);
    work.finish(work.find(number), s.outputs(group), group);
    named_barrier(1 + group, kWarpgroup);
  }
}

template <WeightFormat kFormat, typename OwnWork>
__device__ inline void run(const OwnWork& work) {
  const Shared<kMostWidenedRouted> s{shared_address(dynamic_shared<uint8_t>())};
  if (threadIdx.x == 0) {
    if (s.memory % kEightRows != 0) __trap();
    for (int i = 0; i < Shared<kMostWidenedRouted>::kLayout.stages; ++i) {
      barrier_init(s.full(i), kWideners / kWarp + 1);
      barrier_init(s.empty(i), kWidenedGroups * widened::kWarps);
    }
    show_barriers();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= kWidenedGroups * kWarpgroup) {
    give_registers<kWidenRegisters>();
    widen_all<kFormat>(s, work);
  } else {
    take_registers<kMultiplyRegisters>();
    multiply_all(s, work);
  }
}

// Grid: as many blocks as run at a time; each takes every so many-th item.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1) hidden_widened_fp4_kernel(const __grid_constant__ Args args) {
  take_turn();
  run<kFormat>(HiddenWork<kFormat>{{args}});
}
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1) output_widened_fp4_kernel(const __grid_constant__ Args args) {
  take_turn();
  run<kFormat>(OutputWork<kFormat>{{args}});
}

constexpr int kPackStages = 8;

// Inputs of the first product, [columns / 64, pairs, 64] in the order of shared memory. Grid: tiles, kPackStages of 64 columns.
__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ Args args) {
  take_turn();
  const ExpertPlan& plan = args.plan;
  const ExpertPlan::Tile tile = plan.tiles[plan.shared_tiles + blockIdx.x];
  const auto first_stage = static_cast<int>(blockIdx.y) * kPackStages;
  const int stages = min(kPackStages, static_cast<int>(plan.input_columns) / kWidenedColumns - first_stage);
  for (int k = static_cast<int>(threadIdx.x); k < tile.count * kPackStages * 4; k += static_cast<int>(blockDim.x)) {
    const int i = k / (kPackStages * 4);
    const int stage = k / 4 % kPackStages;
    const auto product = static_cast<uint32_t>(k % 4);
    if (stage >= stages) continue;
    const int64_t pair = tile.first + i;
    const auto* from = reinterpret_cast<const uint4*>(plan.input + plan.token[pair] * plan.input_columns +
                                                      (first_stage + stage) * kWidenedColumns) +
                       product * 2;
    const uint4 even = from[0], odd = from[1];  // the lanes' first pairs, and their second ones
    auto* to = reinterpret_cast<uint4*>(plan.output + ((first_stage + stage) * args.pairs + pair) * kWidenedColumns);
    const auto swizzle = static_cast<uint32_t>(i % 8);
    to[product * 2 ^ swizzle] = make_uint4(even.x, odd.x, even.y, odd.y);
    to[(product * 2 + 1) ^ swizzle] = make_uint4(even.z, odd.z, even.w, odd.w);
  }
}

template <WeightFormat kFormat>
void launch_hidden(const Args& args, unsigned blocks, LaunchStream& stream) {
  stream.launch(hidden_widened_fp4_kernel<kFormat>, blocks, kThreads, widened_layout(kMostWidenedRouted).bytes, args);
}
template <WeightFormat kFormat>
void launch_output(const Args& args, unsigned blocks, LaunchStream& stream) {
  stream.launch(output_widened_fp4_kernel<kFormat>, blocks, kThreads, widened_layout(kMostWidenedRouted).bytes, args);
}

Args arguments(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan) {
  Args own;
  own.shared = {args.shared_w1, args.shared_w2, args.shared_w3};
  own.routed = routed;
  own.plan = plan;
  own.pairs = plan.pairs / (args.topk + 1) * args.topk;
  own.limit = args.swiglu_limit;
  return own;
}
unsigned blocks(const Args& args) {
  return static_cast<unsigned>(
      std::min<int64_t>(kMultiprocessors, args.panels * (args.plan.tile_count - args.plan.shared_tiles)));
}

}  // namespace

bool takes_widened_routed(const ExpertsArgs& args, const ExpertPlan& plan) {
  if (!plan.staged || args.shared_w1.in % kChunk != 0 || args.shared_w1.out % kChunk != 0) return false;
  for (const ExpertWeights& w : args.routed) {
    for (const Fp4Weight* m : {&w.w1, &w.w2, &w.w3}) {
      if (reinterpret_cast<uintptr_t>(m->codes) % 16 != 0) return false;
    }
  }
  return true;
}

void multiply_hidden_widened_fp4(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan,
                                 LaunchStream& stream) {
  Args own = arguments(args, routed, plan);
  const auto stages = static_cast<unsigned>(plan.input_columns / kWidenedColumns);
  stream.launch(pack_kernel,
                dim3(static_cast<unsigned>(plan.tile_count - plan.shared_tiles), (stages + kPackStages - 1) / kPackStages), 256,
                0, own);
  own.panels = static_cast<int>(args.shared_w1.out / kPanel);
  if (plan.arranged) {
    launch_hidden<WeightFormat::kFp4Panels>(own, blocks(own), stream);
  } else {
    launch_hidden<WeightFormat::kFp4>(own, blocks(own), stream);
  }
}
void multiply_output_widened_fp4(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan,
                                 LaunchStream& stream) {
  Args own = arguments(args, routed, plan);
  own.panels = static_cast<int>(args.shared_w2.out / kWidenedRows);
  if (plan.arranged) {
    launch_output<WeightFormat::kFp4Panels>(own, blocks(own), stream);
  } else {
    launch_output<WeightFormat::kFp4>(own, blocks(own), stream);
  }
}

}  // namespace deepinfer::cuda
