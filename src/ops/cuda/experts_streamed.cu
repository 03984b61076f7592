// Experts of a few tokens each (streamed.cuh, streamed_panels.cuh): the products of experts.cu for tiles of up to 16 inputs, with
// the same bits. A warp takes a panel of a tile's gates and the same of its ups, or two panels of outputs, and all their columns.
// Of the shared expert, whose weights have twice the bytes, it takes one; those of the gates and of the ups meet at the end.
// Warps of a block share the inputs' place in the first-level cache and nothing else.
//
// Hidden values and outputs are one grid: warps of a tile's outputs have asked for their first weights when they wait for its
// hidden values, which are older by all that lies between, and nobody waits for the last hidden values of all.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/ready.cuh"
#include "ops/cuda/streamed.cuh"
#include "ops/cuda/streamed_panels.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMostWarps = 4;  // of a block
constexpr int kBlocks = 3;     // of as many warps, on a multiprocessor: their rings fill its shared memory

// How blocks are given to tiles: those of the hidden values, then those of the outputs.
struct Grid {
  struct Part {
    int shared_blocks;  // of a tile
    int blocks;         // likewise, of routed experts
    int others;         // of these between two blocks of the shared expert for all its tiles
  };
  int shared_tiles;
  int tiles;  // others
  Part hidden, outputs;
  __host__ __device__ int blocks(const Part& part) const { return shared_tiles * part.shared_blocks + tiles * part.blocks; }
};

// Where a warp works. Blocks of the shared expert's tiles go tile by tile over the same panel, which the second-level cache then
// has; they lie among the others at even distances, for they take instructions where those take memory. Others go panel by panel.
struct Place {
  int64_t tile;
  int64_t item;  // of the tile: one a warp, which is a panel or two
  bool shared;
  bool output;
};
__device__ Place place_of(const Grid& grid) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  auto block = static_cast<int>(blockIdx.x);
  const int hidden = grid.blocks(grid.hidden);
  const bool output = block >= hidden;
  const Grid::Part& part = output ? grid.outputs : grid.hidden;
  if (output) block -= hidden;
  // A round is all tiles of one of the shared expert's blocks, then others; those that are left follow the last round.
  const int round = min(block / (grid.shared_tiles + part.others), part.shared_blocks);
  const int in_round = block - round * (grid.shared_tiles + part.others);
  if (round < part.shared_blocks && in_round < grid.shared_tiles) return {in_round, round * warps + warp, true, output};
  const int other = round * part.others + in_round - (round < part.shared_blocks ? grid.shared_tiles : 0);
  return {grid.shared_tiles + other / part.blocks, other % part.blocks * warps + warp, false, output};
}

// Warps of 32 columns of the hidden values: the first has the gates.
template <int kPanels>
constexpr int kTeam = 2 / kPanels;

// A warp's shared memory.
constexpr uint32_t kMemory =
    (std::max({StreamLayout<1>::kBytes, StreamLayout<2>::kBytes, PanelStream<2>::kBytes}) + 127) / 128 * 128;
__device__ uint8_t* memory_of(int warp) { return dynamic_shared<uint8_t>() + static_cast<uint32_t>(warp) * kMemory; }

// Calls act<tiles of eight inputs>(): those that `count` inputs need, up to 16, or up to 32 of the shared expert.
template <bool kShared, typename Act>
__device__ void with_tiles(int count, const Act& act) {
  if (count <= 8) {
    act.template operator()<1>();
  } else if (!kShared || count <= 16) {
    act.template operator()<2>();
  } else if constexpr (kShared) {
    act.template operator()<4>();
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

// Weights of a warp that come as they do for kFormat: asked for when this is made.
template <WeightFormat kFormat, int kPanels>
struct Stream {
  uint8_t* memory;
  const StreamedWeights<kPanels>& weights;
  int lane;
  template <int kTiles>
  __device__ void multiply(const InputRows<kTiles>& x, int /*count*/, float (&total)[kPanels][2][kTiles][4]) {
    multiply_streamed<kFormat, kPanels, kTiles>(memory, weights, x, lane, total);
  }
};
template <int kPanels>
struct Stream<WeightFormat::kFp4Panels, kPanels> : PanelStream<kPanels> {
  __device__ Stream(uint8_t* memory, const StreamedWeights<kPanels>& weights, int lane)
      : PanelStream<kPanels>(memory, weights, lane) {}
};

// The warp's part of the hidden values: the gates' sums, or those of both.
template <int kPanels, int kTiles>
__device__ void finish_hidden(const float* gates, const ExpertPlan& plan, const ExpertPlan::Tile& tile, int64_t inner,
                              int64_t first_row, float limit) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int own = warp % kTeam<kPanels>;
  const float weight = lane < tile.count ? plan.weight[tile.first + lane] : 0.0f;
  const float* values = gates + kTiles * 8 * kPartStride;
  if constexpr (kPanels == 1) {
    named_barrier(1 + warp / 2, 2 * kWarp);
    gates = reinterpret_cast<const float*>(memory_of(warp - own));
    values = reinterpret_cast<const float*>(memory_of(warp - own + 1));
  }
  for (int input = own; input < tile.count; input += kTeam<kPanels>) {
    const float v = hidden_value(gates[input * kPartStride + lane], values[input * kPartStride + lane], limit,
                                 __shfl_sync(0xffffffffu, weight, input));
    plan.hidden[(tile.first + input) * inner + first_row + interleaved(lane)] = narrow(v);
  }
}

template <int kPanels, int kTiles>
__device__ void finish_outputs(const float* sums, const ExpertPlan& plan, const ExpertPlan::Tile& tile, int64_t out,
                               int64_t first_row) {
  const int row = static_cast<int>(threadIdx.x) % kWarp * 2;  // the lane's first of two
  if (row >= kPanels * kPanelRows || first_row + row >= out) return;
  const float* own = sums + row / kPanelRows * kTiles * 8 * kPartStride + row % kPanelRows;
  for (int input = 0; input < tile.count; ++input) {
    const float* pair = own + input * kPartStride;
    *reinterpret_cast<uint32_t*>(plan.output + (tile.first + input) * out + first_row + row) = narrow_pair(pair[0], pair[1]);
  }
}

// `weights`: of the gates and the ups, or of the outputs.
template <WeightFormat kFormat, int kPanels>
__device__ void multiply_item(const StreamedWeights<kPanels>& weights, bool output, const ExpertPlan& plan, int64_t number,
                              const ExpertPlan::Tile& tile, int done, float limit) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint8_t* memory = memory_of(static_cast<int>(threadIdx.x) / kWarp);
  const int64_t rows = weights.weight[0].out;
  const int64_t first_row = weights.first_row[0];
  Stream<kFormat, kPanels> stream{memory, weights, lane};
  if (output) {
    if (lane == 0) wait_done(&plan.tiles[number].done, done);
    __syncwarp();
  }
  with_tiles<kFormat == WeightFormat::kFp8>(tile.count, [&]<int kTiles>() {
    const auto x = inputs_of<kTiles>(output ? plan.hidden : plan.input, weights.weight[0].in, tile.count, lane,
                                     [&](int i) { return output ? tile.first + i : plan.token[tile.first + i]; });
    float total[kPanels][2][kTiles][4];
    stream.template multiply<kTiles>(x, tile.count, total);
    const float* sums = share_sums<kPanels, kTiles>(memory, total, lane);
    if (output) {
      finish_outputs<kPanels, kTiles>(sums, plan, tile, rows, first_row);
    } else {
      finish_hidden<kPanels, kTiles>(sums, plan, tile, rows, first_row, limit);
    }
  });
  if (output) return;
  __syncwarp();
  if (lane == 0) count_done(&plan.tiles[number].done);
}

// Grid: blocks of tiles.
template <WeightFormat kRouted>
__global__ void __launch_bounds__(kMostWarps* kWarp, kBlocks)
    streamed_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, float limit,
                    const __grid_constant__ ExpertPlan plan, const __grid_constant__ Grid grid) {
  let_next_begin();
  const Place place = place_of(grid);
  const int64_t inner = shared.w1.out;
  const int team = place.shared ? kTeam<1> : 1;  // of hidden values
  const int64_t panel = place.shared ? place.output ? place.item : place.item / kTeam<1> : place.item * (place.output ? 2 : 1);
  const int64_t first_row = panel * kPanelRows;
  const bool there = first_row < (place.output ? shared.w2.out : inner);
  const bool up = place.item % kTeam<1> != 0;
  // Where the shared expert's tiles lie is known before what lies in them.
  if (place.shared && !place.output && there && threadIdx.x % kWarp == 0)
    fetch_panel<WeightFormat::kFp8>(device_view(up ? shared.w3 : shared.w1), first_row, inner - 1, plan.fetch_bytes);
  wait_for_earlier();
  if (!there) return;
  const ExpertPlan::Tile tile = plan.tiles[place.tile];
  if (tile.count == 0) return;
  const int done = static_cast<int>(inner / kPanelRows) * team;
  if (place.shared) {
    const StreamedWeights<1> weights{{device_view(place.output ? shared.w2 : up ? shared.w3 : shared.w1)}, {first_row}};
    multiply_item<WeightFormat::kFp8, 1>(weights, place.output, plan, place.tile, tile, done, limit);
  } else {
    const ExpertWeights& w = routed[tile.expert];
    const StreamedWeights<2> weights{{device_view(place.output ? w.w2 : w.w1), device_view(place.output ? w.w2 : w.w3)},
                                     {first_row, first_row + (place.output ? kPanelRows : 0)}};
    multiply_item<kRouted, 2>(weights, place.output, plan, place.tile, tile, done, limit);
  }
}

template <WeightFormat kRouted>
void launch(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  if (!plan.shared_first) cuda_failed(__FILE__, __LINE__, "experts", "a plan whose shared tiles are not the first");
  if (args.shared_w1.out % kPanelRows != 0 || args.shared_w2.out % kPanelRows != 0)
    cuda_failed(__FILE__, __LINE__, "experts", "rows that are no whole panels");
  const SharedExpert shared{args.shared_w1, args.shared_w2, args.shared_w3};
  const int64_t inner = args.shared_w1.out / kPanelRows;
  const int64_t hidden = args.shared_w2.out / kPanelRows;
  const int64_t outputs = (hidden + 1) / 2;
  // Few warps without any item, and no team of two cut in two.
  const int warps = inner % kMostWarps == 0 && outputs % kMostWarps == 0 ? kMostWarps : 2;
  const auto blocks = [&](int64_t items) { return static_cast<int>((items + warps - 1) / warps); };
  const auto tiles = static_cast<int>(plan.tile_count - plan.shared_tiles);
  const auto part = [&](int64_t shared_items, int64_t items) {
    // Tiles behind the last that has pairs need nobody beside them.
    return Grid::Part{blocks(shared_items), blocks(items), tiles * blocks(items) / 4 * 3 / blocks(shared_items)};
  };
  const Grid grid{static_cast<int>(plan.shared_tiles), tiles, part(inner * kTeam<1>, inner), part(hidden, outputs)};
  stream.launch(streamed_kernel<kRouted>, static_cast<unsigned>(grid.blocks(grid.hidden) + grid.blocks(grid.outputs)),
                static_cast<unsigned>(warps * kWarp), static_cast<size_t>(warps) * kMemory, routed, shared, args.swiglu_limit,
                plan, grid);
}

}  // namespace

void multiply_experts_streamed(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan,
                               LaunchStream& stream) {
  if (plan.arranged) {
    launch<WeightFormat::kFp4Panels>(args, routed, plan, stream);
  } else {
    launch<WeightFormat::kFp4>(args, routed, plan, stream);
  }
}

}  // namespace deepinfer::cuda
