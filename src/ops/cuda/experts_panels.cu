// The routed experts of many rows whose weights lie in panels (panels.cuh), with the bits of experts.cu. Inputs lie in memory in
// the order of shared memory, tile by tile (pack_kernel), and so do the columns between the products. Blocks take item after
// item: those that are at work together share inputs.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/panels.cuh"

namespace deepinfer::cuda {
namespace {

using panels::Matrix;

constexpr int kMultiprocessors = 132;

struct Args {
  const ExpertWeights* routed = nullptr;
  ExpertPlan plan;
  int64_t pairs = 0;  // of the routed experts
  int64_t hidden = 0;
  int64_t inner = 0;
  float limit = 0;
  int units = 0;
  int items = 0;  // of a tile
};

struct Work {
  const Args& args;
  __device__ int units() const { return args.units; }
  __device__ int items() const { return args.items; }
  __device__ int64_t pairs() const { return args.pairs; }
  __device__ ExpertPlan::Tile tile(int number) const {
    const int at = static_cast<int>(args.plan.shared_tiles) + number / args.items;
    if (at >= static_cast<int>(args.plan.tile_count)) return {};
    return args.plan.tiles[at];
  }
  static __device__ Matrix matrix(const Fp4Weight& w) { return {w.codes, w.scales}; }
};

struct HiddenWork : Work {
  static constexpr int kMatrices = 2;
  struct Weights {
    Matrix matrix[2];
  };
  __device__ int columns() const { return static_cast<int>(args.hidden); }
  __device__ Weights weights(const ExpertPlan::Tile& tile) const {
    const ExpertWeights& w = args.routed[tile.count > 0 ? tile.expert : 0];
    return {{matrix(w.w1), matrix(w.w3)}};
  }
  // Until there are outputs, the inputs are where they will be.
  __device__ const bf16* inputs(const ExpertPlan::Tile& tile, int block) const {
    return args.plan.output + (block * args.pairs + tile.first) * kBlockColumns;
  }
  // Four lanes take an input: eight gates each, and the ups behind them. The unit's are a group of 32 columns of the second
  // product, the word of one lane in each piece of their two blocks.
  __device__ void finish(int tile_first, int count, int unit, const bf16* outputs) const {
    const int thread = thread_read_anew() % kWarpgroup;  // not kept while the products want registers
    const int part = thread % 4;
    for (int first = thread / kWarp * 8; first < count; first += kWarpgroup / 4) {
      const int i = first + thread % kWarp / 4;
      const bool there = i < count;
      const auto* own = reinterpret_cast<const uint4*>(outputs + i * kPanelOutStride) + part * 2;
      float h[8];
      gate_eight(own[0], own[1], args.limit, there ? args.plan.weight[tile_first + i] : 0.0f, h);
      float amax = 0;
#pragma unroll
      for (const float v : h) amax = fmaxf(amax, fabsf(v));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      round_to_fp8(h, amax);
      if (!there) continue;
      bf16* line = args.plan.hidden + ((unit / 4 * 2 + part / 2) * args.pairs + tile_first + i) * kBlockColumns;
      auto* to = reinterpret_cast<uint32_t*>(line) + unit % 4;
#pragma unroll
      for (int k = 0; k < 4; ++k) to[(part % 2 * 4 + k ^ i % 8) * 4] = narrow_pair(h[k], h[k + 4]);
    }
  }
};

struct OutputWork : Work {
  static constexpr int kMatrices = 1;
  struct Weights {
    Matrix matrix[1];
  };
  __device__ int columns() const { return static_cast<int>(args.inner); }
  __device__ Weights weights(const ExpertPlan::Tile& tile) const {
    return {{matrix(args.routed[tile.count > 0 ? tile.expert : 0].w2)}};
  }
  __device__ const bf16* inputs(const ExpertPlan::Tile& tile, int block) const {
    return args.plan.hidden + (block * args.pairs + tile.first) * kBlockColumns;
  }
  __device__ void finish(int tile_first, int count, int unit, const bf16* outputs) const {
    const int thread = thread_read_anew() % kWarpgroup;  // not kept while the products want registers
    const int at = thread % 8 * 8;
    bf16* to = args.plan.output + tile_first * args.hidden + unit * kPanelGroupRows + at;
    for (int i = thread / 8; i < count; i += kWarpgroup / 8)
      *reinterpret_cast<uint4*>(to + i * args.hidden) = *reinterpret_cast<const uint4*>(outputs + i * kPanelOutStride + at);
  }
};

// Tiles of a few inputs, of which many warpgroups can be at work; and larger ones, whose sums leave registers for fewer. `call`
// with a number of inputs that `count` fit in.
struct FewBlock : PanelBlock<4, kPanelInputs[0], 2> {
  template <typename Call>
  static __device__ void with_inputs(int count, const Call& call) {
    if (count <= 8) return call.template operator()<8>();
    if (count <= 16) return call.template operator()<16>();
    if (count <= 24) return call.template operator()<24>();
    if (count <= 32) return call.template operator()<32>();
    if (count <= 40 || kInputs == 40) return call.template operator()<40>();
    return call.template operator()<kInputs>();
  }
};
struct SomeBlock : PanelBlock<3, kPanelInputs[1], 1> {
  template <typename Call>
  static __device__ void with_inputs(int count, const Call& call) {
    if (count <= 32) return call.template operator()<32>();
    if (count <= 56) return call.template operator()<56>();
    if (count <= 64) return call.template operator()<64>();
    if (count <= 72) return call.template operator()<72>();
    if (count <= 80) return call.template operator()<80>();
    if (count <= 88) return call.template operator()<88>();
    return call.template operator()<kInputs>();
  }
};
struct ManyBlock : PanelBlock<2, kPanelInputs[2], 1> {
  template <typename Call>
  static __device__ void with_inputs(int count, const Call& call) {
    if (count <= 64) return call.template operator()<64>();
    if (count <= 96) return call.template operator()<96>();
    if (count <= 112) return call.template operator()<112>();
    if (count <= 120) return call.template operator()<120>();
    if (count <= 128) return call.template operator()<128>();
    if (count <= 136) return call.template operator()<136>();
    if (count <= 144) return call.template operator()<144>();
    return call.template operator()<160>();
  }
};

// Grid: as many blocks as run at a time; each takes every so many-th item.
template <typename Block>
__global__ void __launch_bounds__(Block::kThreads, 1) hidden_panels_kernel(const __grid_constant__ Args args) {
  take_turn();
  run_panels<Block>(HiddenWork{{args}});
}
template <typename Block>
__global__ void __launch_bounds__(Block::kThreads, 1) output_panels_kernel(const __grid_constant__ Args args) {
  take_turn();
  run_panels<Block>(OutputWork{{args}});
}

constexpr int kPackBlocks = 8;

// Inputs of the first product, [columns / 64, pairs, 64] in the order of shared memory. Grid: tiles, kPackBlocks of 64 columns.
__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ Args args) {
  take_turn();
  const ExpertPlan& plan = args.plan;
  const ExpertPlan::Tile tile = plan.tiles[plan.shared_tiles + blockIdx.x];
  const auto first_block = static_cast<int>(blockIdx.y) * kPackBlocks;
  const int blocks = min(kPackBlocks, static_cast<int>(args.hidden) / kBlockColumns - first_block);
  for (int k = static_cast<int>(threadIdx.x); k < tile.count * kPackBlocks * 8; k += static_cast<int>(blockDim.x)) {
    const int i = k / (kPackBlocks * 8);
    const int block = k / 8 % kPackBlocks;
    const int piece = k % 8;
    if (block >= blocks) continue;
    const int64_t pair = tile.first + i;
    const bf16* from = plan.input + plan.token[pair] * plan.input_columns + (first_block + block) * kBlockColumns;
    bf16* to = plan.output + ((first_block + block) * args.pairs + pair) * kBlockColumns;
    reinterpret_cast<uint4*>(to)[piece ^ i % 8] = reinterpret_cast<const uint4*>(from)[piece];
  }
}

Args arguments(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan) {
  Args own;
  own.routed = routed;
  own.plan = plan;
  own.pairs = plan.pairs / (args.topk + 1) * args.topk;
  own.hidden = args.shared_w1.in;
  own.inner = args.shared_w1.out;
  own.limit = args.swiglu_limit;
  return own;
}

template <typename Block>
void launch(void (*kernel)(Args), Args args, int64_t units, LaunchStream& stream) {
  args.units = static_cast<int>(units);
  args.items = (args.units + Block::kGroups - 1) / Block::kGroups;
  const int64_t items = args.items * (args.plan.tile_count - args.plan.shared_tiles);
  stream.launch(kernel, static_cast<unsigned>(std::min<int64_t>(kMultiprocessors, items)), Block::kThreads, Block::kLayout.bytes,
                args);
}

}  // namespace

bool takes_panels(const ExpertsArgs& args) {
  return args.shared_w1.in % kFp4ChunkColumns == 0 && args.shared_w1.out % kFp4ChunkColumns == 0;
}

void multiply_hidden_panels(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  if (!plan.arranged) cuda_failed(__FILE__, __LINE__, "experts", "weights that do not lie in panels");
  const Args own = arguments(args, routed, plan);
  const auto blocks = static_cast<unsigned>(own.hidden / kBlockColumns);
  stream.launch(pack_kernel,
                dim3(static_cast<unsigned>(plan.tile_count - plan.shared_tiles), (blocks + kPackBlocks - 1) / kPackBlocks), 256,
                0, own);
  const int64_t units = own.inner / kFp4PanelRows;
  if (plan.tile_inputs <= FewBlock::kInputs) return launch<FewBlock>(hidden_panels_kernel<FewBlock>, own, units, stream);
  if (plan.tile_inputs <= SomeBlock::kInputs) return launch<SomeBlock>(hidden_panels_kernel<SomeBlock>, own, units, stream);
  launch<ManyBlock>(hidden_panels_kernel<ManyBlock>, own, units, stream);
}
void multiply_output_panels(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  const Args own = arguments(args, routed, plan);
  const int64_t units = own.hidden / kPanelGroupRows;
  if (plan.tile_inputs <= FewBlock::kInputs) return launch<FewBlock>(output_panels_kernel<FewBlock>, own, units, stream);
  if (plan.tile_inputs <= SomeBlock::kInputs) return launch<SomeBlock>(output_panels_kernel<SomeBlock>, own, units, stream);
  launch<ManyBlock>(output_panels_kernel<ManyBlock>, own, units, stream);
}

}  // namespace deepinfer::cuda
