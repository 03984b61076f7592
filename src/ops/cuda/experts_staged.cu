// Experts whose weights come by way of shared memory (staged.cuh): the products of experts.cu for more than a few rows, with the
// same bits.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/staged.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;

struct ExpertItem : StagedItem {
  const ExpertWeights* weights = nullptr;
  int first = 0;  // pair
  int panel = 0;  // of the weight rows
};

// Items: panels of a tile one after the other, tile after tile. Those that are at work together share inputs. kMixed: the shared
// expert's tiles, too.
template <WeightFormat kWeights, bool kMixed>
struct ExpertWork {
  using Item = ExpertItem;
  static constexpr WeightFormat kFormat = kWeights;
  static constexpr bool kShared = kMixed;
  static constexpr bool kInterleaved = true;

  const ExpertWeights* routed;
  const SharedExpert& shared;
  const ExpertPlan& plan;
  int expert_count;
  int panels;
  int columns;
  int first_tile;
  int last_tile;

  __device__ bool find(int number, Item& item) const {
    const int at = first_tile + number / panels;
    if (at > last_tile) return false;
    const ExpertPlan::Tile tile = plan.tiles[at];
    item.count = tile.count;
    item.columns = columns;
    item.fp8 = kMixed ? tile.expert == expert_count : kWeights == WeightFormat::kFp8;
    item.weights = routed + (item.fp8 ? 0 : tile.expert);
    item.first = tile.first;
    item.panel = number % panels;
    return tile.count > 0;  // those behind have none either
  }
};

// Half of a block's rows are of w1, the other half of w3.
template <WeightFormat kWeights, bool kMixed>
struct HiddenWork : ExpertWork<kWeights, kMixed> {
  using Base = ExpertWork<kWeights, kMixed>;
  using Base::plan, Base::shared;
  float limit;

  __device__ StagedRows half(const ExpertItem& item, int h) const {
    const WeightView w =
        item.fp8 ? device_view(h == 0 ? shared.w1 : shared.w3) : device_view(h == 0 ? item.weights->w1 : item.weights->w3);
    return {w, item.fp8, static_cast<int64_t>(item.panel) * kStagedHalf, w.out - 1};
  }
  __device__ const bf16* input(const ExpertItem& item, int i) const {
    return plan.input + (item.fp8 ? plan.input_values / 2 : 0) +
           static_cast<int64_t>(plan.token[item.first + i]) * plan.input_columns;
  }
  // A warp takes whole inputs: 128 columns of the second product, which are put in its order in place of the gates.
  template <int kTiles>
  __device__ void finish(const ExpertItem& item, const Staged& s) const {
    constexpr int kWarps = kStagedGroups<kTiles> * kWarpgroup / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int64_t first_row = static_cast<int64_t>(item.panel) * kStagedHalf;
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < item.count; i += kWarps) {
      bf16* gate = s.outputs(0) + i * kStagedOutStride;
      const bf16* value = s.outputs(1) + i * kStagedOutStride;
      const float weight = plan.weight[item.first + i];
      bf16 h[kStagedHalf / kWarp];
#pragma unroll
      for (int k = 0; k < kStagedHalf / kWarp; ++k) {
        const int at = k * kWarp + lane;
        const float v = hidden_value(widen(gate[at]), widen(value[at]), limit, weight);
        h[k] = narrow(first_row + k * kWarp < shared.w1.out ? v : 0.0f);
      }
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kStagedHalf / kWarp; ++k) {
        const auto column = static_cast<uint32_t>(k * kWarp + lane);
        const PairPlace p = pair_place(item.fp8, column / 8 * 8, column % 4);
        gate[p.block * 64 + p.piece * 8 + p.word * 2 + column % 8 / 4] = h[k];
      }
      __syncwarp();
      if (lane < kStagedHalf / 8) {
        *reinterpret_cast<uint4*>(plan.hidden + static_cast<int64_t>(item.first + i) * plan.hidden_columns + first_row +
                                  lane * 8) = *reinterpret_cast<const uint4*>(gate + lane * 8);
      }
    }
  }
};

template <WeightFormat kWeights, bool kMixed>
struct OutputWork : ExpertWork<kWeights, kMixed> {
  using Base = ExpertWork<kWeights, kMixed>;
  using Base::plan, Base::shared;

  __device__ StagedRows half(const ExpertItem& item, int h) const {
    const WeightView w = item.fp8 ? device_view(shared.w2) : device_view(item.weights->w2);
    return {w, item.fp8, static_cast<int64_t>(item.panel) * kStagedRows + h * kStagedHalf, w.out - 1};
  }
  __device__ const bf16* input(const ExpertItem& item, int i) const {
    return plan.hidden + static_cast<int64_t>(item.first + i) * plan.hidden_columns;
  }
  template <int kTiles>
  __device__ void finish(const ExpertItem& item, const Staged& s) const {
    const int64_t out = shared.w2.out;
    store_staged<kTiles>(s, static_cast<int64_t>(item.panel) * kStagedRows, out - 1, item.count,
                         [&](int i) { return plan.output + static_cast<int64_t>(item.first + i) * out; });
  }
};

// Tiles first .. first + count - 1 of the plan.
struct TileRange {
  int first;
  int count;
};

// Grid: as many blocks as run at a time; each takes every so many-th item.
template <WeightFormat kWeights, bool kMixed, int kTiles>
__global__ void __launch_bounds__(kStagedThreads<kTiles>, 1)
    hidden_staged_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count, float limit,
                         const __grid_constant__ ExpertPlan plan, const __grid_constant__ StagedLayout layout, TileRange tiles) {
  take_turn();
  const auto panels = static_cast<int>((shared.w1.out + kStagedHalf - 1) / kStagedHalf);
  const HiddenWork<kWeights, kMixed> work{
      {routed, shared, plan, expert_count, panels, static_cast<int>(shared.w1.in), tiles.first, tiles.first + tiles.count - 1},
      limit};
  run_staged<kTiles>(layout, work);
}

template <WeightFormat kWeights, bool kMixed, int kTiles>
__global__ void __launch_bounds__(kStagedThreads<kTiles>, 1)
    output_staged_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count,
                         const __grid_constant__ ExpertPlan plan, const __grid_constant__ StagedLayout layout, TileRange tiles) {
  take_turn();
  const auto panels = static_cast<int>((shared.w2.out + kStagedRows - 1) / kStagedRows);
  const OutputWork<kWeights, kMixed> work{
      {routed, shared, plan, expert_count, panels, static_cast<int>(shared.w2.in), tiles.first, tiles.first + tiles.count - 1}};
  run_staged<kTiles>(layout, work);
}

class Launcher {
 public:
  Launcher(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream)
      : shared_{args.shared_w1, args.shared_w2, args.shared_w3},
        experts_(static_cast<int>(args.routed.size())),
        limit_(args.swiglu_limit),
        routed_(routed),
        plan_(plan),
        layout_(staged_layout(plan.tile_inputs)),
        stream_(stream) {}

  template <WeightFormat kRouted>
  void run() {
    const auto shared_tiles = static_cast<int>(plan_.shared_tiles);
    const auto tiles = static_cast<int>(plan_.tile_count);
    if (plan_.tile_inputs <= kMostFewInputs) {
      hidden<kRouted, true, 1>({0, tiles});
      output<kRouted, true, 1>({0, tiles});
      return;
    }
    // One kernel for both formats would need more registers than there are.
    hidden<WeightFormat::kFp8, false, 2>({0, shared_tiles});
    hidden<kRouted, false, 2>({shared_tiles, tiles - shared_tiles});
    output<WeightFormat::kFp8, false, 2>({0, shared_tiles});
    output<kRouted, false, 2>({shared_tiles, tiles - shared_tiles});
  }

 private:
  static unsigned blocks(int64_t out, int64_t rows, int tiles) {
    return static_cast<unsigned>(std::min<int64_t>(kMultiprocessors, (out + rows - 1) / rows * tiles));
  }
  template <WeightFormat kWeights, bool kMixed, int kTiles>
  void hidden(const TileRange& tiles) {
    stream_.launch(hidden_staged_kernel<kWeights, kMixed, kTiles>, blocks(shared_.w1.out, kStagedHalf, tiles.count),
                   kStagedThreads<kTiles>, layout_.bytes, routed_, shared_, experts_, limit_, plan_, layout_, tiles);
  }
  template <WeightFormat kWeights, bool kMixed, int kTiles>
  void output(const TileRange& tiles) {
    stream_.launch(output_staged_kernel<kWeights, kMixed, kTiles>, blocks(shared_.w2.out, kStagedRows, tiles.count),
                   kStagedThreads<kTiles>, layout_.bytes, routed_, shared_, experts_, plan_, layout_, tiles);
  }

  SharedExpert shared_;
  int experts_;
  float limit_;
  const ExpertWeights* routed_;
  const ExpertPlan& plan_;
  StagedLayout layout_;
  LaunchStream& stream_;
};

}  // namespace

void multiply_experts_staged(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  if (!plan.shared_first) cuda_failed(__FILE__, __LINE__, "experts", "a plan whose shared tiles are not the first");
  Launcher launcher(args, routed, plan, stream);
  if (plan.arranged) {
    launcher.run<WeightFormat::kFp4Arranged>();
  } else {
    launcher.run<WeightFormat::kFp4>();
  }
}

}  // namespace deepinfer::cuda
