// Experts of a few tokens each (streamed.cuh): the products of experts.cu for tiles of up to 16 inputs, with the same bits. A
// warp takes a panel of a tile's gates and the same of its ups, or two panels of outputs, and all their columns. Where there are
// too few of these, a warp takes one panel, and those of the gates and the ups meet at the end. Warps of a block share the
// inputs' place in the first-level cache and nothing else.

#include <algorithm>

#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/streamed.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMostWarps = 4;  // of a block
constexpr int kBlocks = 3;     // of as many warps, on a multiprocessor: their rings fill its shared memory

// Where a warp works. Blocks of tiles of the shared expert, if those are the first, go tile by tile over the same panel, which
// the second-level cache then has; others panel by panel.
struct Place {
  int64_t tile;
  int64_t item;  // of the tile: one a warp, which is a panel or two
};
__device__ Place place_of(const ExpertPlan& plan, int64_t block, int64_t tile_blocks) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t warps = blockDim.x / kWarp;
  const int64_t shared = plan.shared_first ? plan.shared_tiles : 0;
  if (block < shared * tile_blocks) return {block % shared, block / shared * warps + warp};
  return {block / tile_blocks, block % tile_blocks * warps + warp};
}

template <int kPanels>
__device__ uint8_t* memory_of(int warp) {
  return dynamic_shared<uint8_t>() + static_cast<uint32_t>(warp) * StreamLayout<kPanels>::kBytes;
}

// Calls act<tiles of eight inputs>(): those that `count` <= 16 inputs need.
template <typename Act>
__device__ void with_tiles(int count, const Act& act) {
  if (count <= 8) {
    act.template operator()<1>();
  } else {
    act.template operator()<2>();
  }
}

template <WeightFormat kRouted, int kPanels, int kTiles>
__device__ void multiply(uint8_t* memory, bool shared, const Fp8Weight* const (&fp8)[kPanels],
                         const Fp4Weight* const (&fp4)[kPanels], const int64_t (&first_row)[kPanels], const InputRows<kTiles>& x,
                         int lane, float (&total)[kPanels][2][kTiles][4]) {
  StreamedWeights<kPanels> weights;
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    weights.weight[p] = shared ? device_view(*fp8[p]) : device_view(*fp4[p]);
    weights.first_row[p] = first_row[p];
  }
  if (shared) {
    multiply_streamed<WeightFormat::kFp8>(memory, weights, x, lane, total);
  } else {
    multiply_streamed<kRouted>(memory, weights, x, lane, total);
  }
}

// Grid: blocks of tiles. kPanels 1: even warps have gates, odd ones ups.
template <WeightFormat kRouted, int kPanels>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks)
    hidden_streamed_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count,
                           float limit, const __grid_constant__ ExpertPlan plan, int tile_blocks) {
  let_next_begin();
  constexpr int kTeam = 2 / kPanels;  // warps of 32 columns of the hidden values
  const Place place = place_of(plan, blockIdx.x, tile_blocks);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int own = warp % kTeam;
  const int64_t inner = shared.w1.out;
  const int64_t columns = shared.w1.in;
  const int64_t first_row = place.item / kTeam * kPanelRows;
  const bool there = first_row < inner;
  // Where the shared expert's tiles lie is known before what lies in them.
  if (plan.shared_first && place.tile < plan.shared_tiles && there && lane == 0 && own == 0) {
    fetch_panel<WeightFormat::kFp8>(device_view(shared.w1), first_row, inner - 1, plan.fetch_bytes);
    fetch_panel<WeightFormat::kFp8>(device_view(shared.w3), first_row, inner - 1, plan.fetch_bytes);
  }
  wait_for_earlier();
  if (!there) return;
  const ExpertPlan::Tile tile = plan.tiles[place.tile];
  if (tile.count == 0) return;
  const bool is_shared = tile.expert == expert_count;
  const ExpertWeights* w = routed + (is_shared ? 0 : tile.expert);
  const float weight = lane < tile.count ? plan.weight[tile.first + lane] : 0.0f;
  with_tiles(tile.count, [&]<int kTiles>() {
    InputRows<kTiles> x;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int input = i * 8 + lane / 4;
      x.row[i] = input < tile.count ? plan.input + static_cast<int64_t>(plan.token[tile.first + input]) * columns : nullptr;
    }
    float total[kPanels][2][kTiles][4];
    uint8_t* memory = memory_of<kPanels>(warp);
    if constexpr (kPanels == 2) {
      multiply<kRouted, 2, kTiles>(memory, is_shared, {&shared.w1, &shared.w3}, {&w->w1, &w->w3}, {first_row, first_row}, x, lane,
                                   total);
    } else {
      multiply<kRouted, 1, kTiles>(memory, is_shared, {own == 0 ? &shared.w1 : &shared.w3}, {own == 0 ? &w->w1 : &w->w3},
                                   {first_row}, x, lane, total);
    }
    const float* gates = share_sums<kPanels, kTiles>(memory, total, lane);
    const float* values = gates + kTiles * 8 * kPartStride;
    if constexpr (kTeam > 1) {
      named_barrier(1 + warp / kTeam, kTeam * kWarp);
      gates = reinterpret_cast<const float*>(memory_of<kPanels>(warp - own));
      values = reinterpret_cast<const float*>(memory_of<kPanels>(warp - own + 1));
    }
    for (int input = own; input < tile.count; input += kTeam) {
      const float v = hidden_value(gates[input * kPartStride + lane], values[input * kPartStride + lane], limit,
                                   __shfl_sync(0xffffffffu, weight, input));
      plan.hidden[(tile.first + input) * inner + first_row + interleaved(lane)] = narrow(v);
    }
  });
}

// Grid: blocks of tiles.
template <WeightFormat kRouted, int kPanels>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks)
    output_streamed_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count,
                           const __grid_constant__ ExpertPlan plan, int tile_blocks) {
  let_next_begin();
  const Place place = place_of(plan, blockIdx.x, tile_blocks);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t out = shared.w2.out;
  const int64_t columns = shared.w2.in;
  const int64_t first_row = place.item * kPanels * kPanelRows;
  const bool there = first_row < out;
  if (plan.shared_first && place.tile < plan.shared_tiles && there && lane == 0) {
    fetch_panel<WeightFormat::kFp8>(device_view(shared.w2), first_row, out - 1, plan.fetch_bytes);
  }
  wait_for_earlier();
  if (!there) return;
  const ExpertPlan::Tile tile = plan.tiles[place.tile];
  if (tile.count == 0) return;
  const bool is_shared = tile.expert == expert_count;
  const ExpertWeights* w = routed + (is_shared ? 0 : tile.expert);
  with_tiles(tile.count, [&]<int kTiles>() {
    InputRows<kTiles> x;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int input = i * 8 + lane / 4;
      x.row[i] = input < tile.count ? plan.hidden + static_cast<int64_t>(tile.first + input) * columns : nullptr;
    }
    float total[kPanels][2][kTiles][4];
    uint8_t* memory = memory_of<kPanels>(warp);
    if constexpr (kPanels == 2) {
      multiply<kRouted, 2, kTiles>(memory, is_shared, {&shared.w2, &shared.w2}, {&w->w2, &w->w2},
                                   {first_row, first_row + kPanelRows}, x, lane, total);
    } else {
      multiply<kRouted, 1, kTiles>(memory, is_shared, {&shared.w2}, {&w->w2}, {first_row}, x, lane, total);
    }
    const float* sums = share_sums<kPanels, kTiles>(memory, total, lane);
    const int row = lane * 2;  // the lane's first of two
    if (row >= kPanels * kPanelRows || first_row + row >= out) return;
    const float* own = sums + row / kPanelRows * kTiles * 8 * kPartStride + row % kPanelRows;
    for (int input = 0; input < tile.count; ++input) {
      const float* pair = own + input * kPartStride;
      *reinterpret_cast<uint32_t*>(plan.output + (tile.first + input) * out + first_row + row) = narrow_pair(pair[0], pair[1]);
    }
  });
}

// Warps of a block for `items` of a tile: as many as divide them, if a number does. Teams are not cut in two.
int block_warps(int64_t items, int team) {
  if (items % kMostWarps == 0) return kMostWarps;
  if (team > 1) return team;
  return items % 3 == 0 ? 3 : static_cast<int>(std::min<int64_t>(items, kMostWarps));
}

template <WeightFormat kRouted, int kPanels>
void launch(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  const SharedExpert shared{args.shared_w1, args.shared_w2, args.shared_w3};
  const auto experts = static_cast<int>(args.routed.size());
  const auto put = [&](auto kernel, int64_t items, int team, auto... limit) {
    const int warps = block_warps(items, team);
    const int64_t tile_blocks = (items + warps - 1) / warps;
    stream.launch(kernel, static_cast<unsigned>(tile_blocks * plan.tile_count), static_cast<unsigned>(warps * kWarp),
                  static_cast<size_t>(warps) * StreamLayout<kPanels>::kBytes, routed, shared, experts, limit..., plan,
                  static_cast<int>(tile_blocks));
  };
  constexpr int kTeam = 2 / kPanels;
  constexpr int64_t kRows = kPanels * kPanelRows;
  put(hidden_streamed_kernel<kRouted, kPanels>, (args.shared_w1.out + kPanelRows - 1) / kPanelRows * kTeam, kTeam,
      args.swiglu_limit);
  put(output_streamed_kernel<kRouted, kPanels>, (args.shared_w2.out + kRows - 1) / kRows, 1);
}

template <WeightFormat kRouted>
void launch(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  if (plan.warp_panels == 1) return launch<kRouted, 1>(args, routed, plan, stream);
  launch<kRouted, 2>(args, routed, plan, stream);
}

}  // namespace

void multiply_experts_streamed(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan,
                               LaunchStream& stream) {
  if (plan.arranged) {
    launch<WeightFormat::kFp4Arranged>(args, routed, plan, stream);
  } else {
    launch<WeightFormat::kFp4>(args, routed, plan, stream);
  }
}

}  // namespace deepinfer::cuda
