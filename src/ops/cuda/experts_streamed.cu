// Experts of a few tokens each (streamed.cuh): the products of experts.cu for tiles of up to 16 inputs, with the same bits. A
// warp takes a panel of a tile's gates and the same of its ups, or two panels of outputs, and all their columns. Of the shared
// expert, whose weights have twice the bytes, it takes one; those of the gates and of the ups meet at the end. Warps of a block
// share the inputs' place in the first-level cache and nothing else.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/streamed.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMostWarps = 4;  // of a block
constexpr int kBlocks = 3;     // of as many warps, on a multiprocessor: their rings fill its shared memory

// How blocks are given to tiles: those of the shared expert, which are the first, then the others.
struct Grid {
  int shared_tiles;
  int shared_blocks;  // of a tile
  int blocks;         // likewise, of routed experts
};

// Where a warp works. Blocks of the shared expert's tiles go tile by tile over the same panel, which the second-level cache then
// has; others panel by panel.
struct Place {
  int64_t tile;
  int64_t item;  // of the tile: one a warp, which is a panel or two
  bool shared;
};
__device__ Place place_of(const Grid& grid) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const auto block = static_cast<int>(blockIdx.x);
  const int behind = block - grid.shared_tiles * grid.shared_blocks;
  if (behind < 0) return {block % grid.shared_tiles, block / grid.shared_tiles * warps + warp, true};
  return {grid.shared_tiles + behind / grid.blocks, behind % grid.blocks * warps + warp, false};
}

// Warps of 32 columns of the hidden values: the first has the gates.
template <int kPanels>
constexpr int kTeam = 2 / kPanels;

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

// Input rows of a tile, `columns` each, the last one again in place of those that are not there; `row(i)`: the number of its
// i-th.
template <int kTiles, typename Row>
__device__ InputRows<kTiles> inputs_of(const bf16* values, int64_t columns, int count, int lane, const Row& row) {
  InputRows<kTiles> x;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) x.row[i] = values + static_cast<int64_t>(row(min(i * 8 + lane / 4, count - 1))) * columns;
  return x;
}

template <WeightFormat kFormat, int kPanels>
__device__ void hidden_item(const WeightView& w1, const WeightView& w3, const ExpertPlan& plan, const ExpertPlan::Tile& tile,
                            int64_t first_row, float limit) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int own = warp % kTeam<kPanels>;
  const float weight = lane < tile.count ? plan.weight[tile.first + lane] : 0.0f;
  uint8_t* memory = memory_of<kPanels>(warp);
  with_tiles(tile.count, [&]<int kTiles>() {
    const auto x = inputs_of<kTiles>(plan.input, w1.in, tile.count, lane, [&](int i) { return plan.token[tile.first + i]; });
    float total[kPanels][2][kTiles][4];
    if constexpr (kPanels == 2) {
      multiply_streamed<kFormat, 2, kTiles>(memory, {{w1, w3}, {first_row, first_row}}, x, lane, total);
    } else {
      multiply_streamed<kFormat, 1, kTiles>(memory, {{own == 0 ? w1 : w3}, {first_row}}, x, lane, total);
    }
    const float* gates = share_sums<kPanels, kTiles>(memory, total, lane);
    const float* values = gates + kTiles * 8 * kPartStride;
    if constexpr (kPanels == 1) {
      named_barrier(1 + warp / 2, 2 * kWarp);
      gates = reinterpret_cast<const float*>(memory_of<kPanels>(warp - own));
      values = reinterpret_cast<const float*>(memory_of<kPanels>(warp - own + 1));
    }
    for (int input = own; input < tile.count; input += kTeam<kPanels>) {
      const float v = hidden_value(gates[input * kPartStride + lane], values[input * kPartStride + lane], limit,
                                   __shfl_sync(0xffffffffu, weight, input));
      plan.hidden[(tile.first + input) * w1.out + first_row + interleaved(lane)] = narrow(v);
    }
  });
}

// Grid: blocks of tiles.
template <WeightFormat kRouted>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks)
    hidden_streamed_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, float limit,
                           const __grid_constant__ ExpertPlan plan, const __grid_constant__ Grid grid) {
  let_next_begin();
  const Place place = place_of(grid);
  const int64_t inner = shared.w1.out;
  const int64_t first_row = place.item / (place.shared ? kTeam<1> : 1) * kPanelRows;
  const bool there = first_row < inner;
  // Where the shared expert's tiles lie is known before what lies in them.
  if (place.shared && there && threadIdx.x % kWarp == 0) {
    const Fp8Weight& w = place.item % kTeam<1> == 0 ? shared.w1 : shared.w3;
    fetch_panel<WeightFormat::kFp8>(device_view(w), first_row, inner - 1, plan.fetch_bytes);
  }
  wait_for_earlier();
  if (!there) return;
  const ExpertPlan::Tile tile = plan.tiles[place.tile];
  if (tile.count == 0) return;
  if (place.shared) {
    hidden_item<WeightFormat::kFp8, 1>(device_view(shared.w1), device_view(shared.w3), plan, tile, first_row, limit);
  } else {
    const ExpertWeights& w = routed[tile.expert];
    hidden_item<kRouted, 2>(device_view(w.w1), device_view(w.w3), plan, tile, first_row, limit);
  }
}

template <WeightFormat kFormat, int kPanels>
__device__ void output_item(const WeightView& w2, const ExpertPlan& plan, const ExpertPlan::Tile& tile, int64_t first_row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint8_t* memory = memory_of<kPanels>(static_cast<int>(threadIdx.x) / kWarp);
  with_tiles(tile.count, [&]<int kTiles>() {
    const auto x = inputs_of<kTiles>(plan.hidden, w2.in, tile.count, lane, [&](int i) { return tile.first + i; });
    float total[kPanels][2][kTiles][4];
    StreamedWeights<kPanels> weights;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) weights.weight[p] = w2, weights.first_row[p] = first_row + p * kPanelRows;
    multiply_streamed<kFormat, kPanels, kTiles>(memory, weights, x, lane, total);
    const float* sums = share_sums<kPanels, kTiles>(memory, total, lane);
    const int row = lane * 2;  // the lane's first of two
    if (row >= kPanels * kPanelRows || first_row + row >= w2.out) return;
    const float* own = sums + row / kPanelRows * kTiles * 8 * kPartStride + row % kPanelRows;
    for (int input = 0; input < tile.count; ++input) {
      const float* pair = own + input * kPartStride;
      *reinterpret_cast<uint32_t*>(plan.output + (tile.first + input) * w2.out + first_row + row) = narrow_pair(pair[0], pair[1]);
    }
  });
}

// Grid: blocks of tiles.
template <WeightFormat kRouted>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks)
    output_streamed_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared,
                           const __grid_constant__ ExpertPlan plan, const __grid_constant__ Grid grid) {
  let_next_begin();
  const Place place = place_of(grid);
  const int64_t first_row = place.item * (place.shared ? 1 : 2) * kPanelRows;
  const bool there = first_row < shared.w2.out;
  if (place.shared && there && threadIdx.x % kWarp == 0)
    fetch_panel<WeightFormat::kFp8>(device_view(shared.w2), first_row, shared.w2.out - 1, plan.fetch_bytes);
  wait_for_earlier();
  if (!there) return;
  const ExpertPlan::Tile tile = plan.tiles[place.tile];
  if (tile.count == 0) return;
  if (place.shared) {
    output_item<WeightFormat::kFp8, 1>(device_view(shared.w2), plan, tile, first_row);
  } else {
    output_item<kRouted, 2>(device_view(routed[tile.expert].w2), plan, tile, first_row);
  }
}

// Warps of a block for `items` of a tile: few of them without any, and no team of two cut in two.
int block_warps(int64_t items) { return items % kMostWarps == 0 ? kMostWarps : 2; }

template <WeightFormat kRouted>
void launch(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  if (!plan.shared_first) cuda_failed(__FILE__, __LINE__, "experts", "a plan whose shared tiles are not the first");
  if (args.shared_w1.out % kPanelRows != 0 || args.shared_w2.out % kPanelRows != 0)
    cuda_failed(__FILE__, __LINE__, "experts", "rows that are no whole panels");
  const SharedExpert shared{args.shared_w1, args.shared_w2, args.shared_w3};
  // Items of a tile, `shared_items` of the shared expert's.
  const auto put = [&](auto kernel, int64_t items, int64_t shared_items, auto... limit) {
    const int warps = block_warps(items);
    const auto blocks = [&](int64_t n) { return static_cast<int>((n + warps - 1) / warps); };
    const Grid grid{static_cast<int>(plan.shared_tiles), blocks(shared_items), blocks(items)};
    const int64_t all = plan.shared_tiles * grid.shared_blocks + (plan.tile_count - plan.shared_tiles) * grid.blocks;
    stream.launch(kernel, static_cast<unsigned>(all), static_cast<unsigned>(warps * kWarp),
                  static_cast<size_t>(warps) * std::max(StreamLayout<2>::kBytes, StreamLayout<1>::kBytes), routed, shared,
                  limit..., plan, grid);
  };
  const int64_t inner = args.shared_w1.out / kPanelRows;
  const int64_t hidden = args.shared_w2.out / kPanelRows;
  put(hidden_streamed_kernel<kRouted>, inner, inner * kTeam<1>, args.swiglu_limit);
  put(output_streamed_kernel<kRouted>, (hidden + 1) / 2, hidden);
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
