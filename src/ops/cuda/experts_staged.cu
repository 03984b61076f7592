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

// Items: panels of a tile one after the other, tile after tile. Those that are at work together share inputs. FP8: the shared
// expert.
template <WeightFormat kWeights>
struct ExpertWork {
  using Item = ExpertItem;
  static constexpr WeightFormat kFormat = kWeights;
  static constexpr bool kFp8 = kWeights == WeightFormat::kFp8;
  static constexpr bool kInterleaved = true;

  const ExpertWeights* routed;
  const SharedExpert& shared;
  const ExpertPlan& plan;
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
    item.weights = routed + (kFp8 ? 0 : tile.expert);
    item.first = tile.first;
    item.panel = number % panels;
    return tile.count > 0;  // those behind have none either
  }
};

// Half of a block's rows are of w1, the other half of w3.
template <WeightFormat kWeights>
struct HiddenWork : ExpertWork<kWeights> {
  using Base = ExpertWork<kWeights>;
  using Base::kFp8, Base::plan, Base::shared;
  float limit;

  __device__ StagedRows half(const ExpertItem& item, int h) const {
    const WeightView w =
        kFp8 ? device_view(h == 0 ? shared.w1 : shared.w3) : device_view(h == 0 ? item.weights->w1 : item.weights->w3);
    return {w, kFp8, static_cast<int64_t>(item.panel) * kStagedHalf, w.out - 1};
  }
  __device__ const bf16* inputs(const ExpertItem& /*item*/) const { return plan.input + (kFp8 ? plan.input_values / 2 : 0); }
  __device__ int64_t input(const ExpertItem& item, int i) const {
    return static_cast<int64_t>(plan.token[item.first + i]) * plan.input_columns;
  }
  // Eight lanes take an input: 64 columns of the second product, two groups that share a scale, eight columns each lane. They are
  // put in the order of that product in place of the gates.
  __device__ void finish(const ExpertItem& item, const Staged& s, int group) const {
    constexpr int kLanes = kStagedGroupRows / 8;
    const int lane = staged::thread() % kLanes;
    const auto column = static_cast<uint32_t>(group * kStagedGroupRows + lane * 8);  // of the panel's
    const int64_t first_row = static_cast<int64_t>(item.panel) * kStagedHalf;
    const bool inside = first_row + column < shared.w1.out;
    for (int i = staged::thread() / kLanes; i < (item.count + 15) / 16 * 16; i += kWarpgroup / kLanes) {
      const bool there = i < item.count;
      const float weight = there ? plan.weight[item.first + i] : 0.0f;
      bf16* own = s.outputs(group) + i * kStagedOutStride;
      float h[8];
      gate_eight(reinterpret_cast<const uint4*>(own)[lane], reinterpret_cast<const uint4*>(own + kStagedGroupRows)[lane], limit,
                 weight, h);
      float amax = 0;
#pragma unroll
      for (float& v : h) {
        v = inside ? v : 0.0f;
        amax = fmaxf(amax, fabsf(v));
      }
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));  // four lanes are a group
      round_to_fp8(h, amax);
      __syncwarp();
#pragma unroll
      for (uint32_t pair = 0; pair < 4; ++pair)
        reinterpret_cast<uint32_t*>(own)[place(column, pair)] = narrow_pair(h[pair], h[pair + 4]);
      __syncwarp();
      if (there) {
        store(plan.hidden + static_cast<int64_t>(item.first + i) * plan.hidden_columns + first_row, group, lane,
              reinterpret_cast<const uint4*>(own)[lane]);
      }
      __syncwarp();
    }
  }

 private:
  // The 64 columns are eight pieces of 16 bytes, or, as a piece is of 16 columns out of 128, halves of sixteen.
  static __device__ uint32_t place(uint32_t column, uint32_t pair) {
    const PairPlace p = pair_place(kFp8, column, pair);
    return kFp8 ? p.piece * 4 + p.word : (p.block * 8 + p.piece) * 2 + p.word % 2;
  }
  // The lane's four words of them, in a row of the second product's inputs.
  static __device__ void store(bf16* to, int group, int lane, const uint4& v) {
    if constexpr (kFp8) {
      reinterpret_cast<uint4*>(to + group * kStagedGroupRows)[lane] = v;
    } else {
      reinterpret_cast<uint2*>(to)[lane * 4 + group] = make_uint2(v.x, v.y);
      reinterpret_cast<uint2*>(to)[lane * 4 + 2 + group] = make_uint2(v.z, v.w);
    }
  }
};

template <WeightFormat kWeights>
struct OutputWork : ExpertWork<kWeights> {
  using Base = ExpertWork<kWeights>;
  using Base::kFp8, Base::plan, Base::shared;

  __device__ StagedRows half(const ExpertItem& item, int h) const {
    const WeightView w = kFp8 ? device_view(shared.w2) : device_view(item.weights->w2);
    return {w, kFp8, static_cast<int64_t>(item.panel) * kStagedRows + h * kStagedHalf, w.out - 1};
  }
  __device__ const bf16* inputs(const ExpertItem& item) const {
    return plan.hidden + static_cast<int64_t>(item.first) * plan.hidden_columns;
  }
  __device__ int64_t input(const ExpertItem& /*item*/, int i) const { return i * plan.hidden_columns; }
  __device__ void finish(const ExpertItem& item, const Staged& s, int group) const {
    const int64_t out = shared.w2.out;
    store_staged(s, group, static_cast<int64_t>(item.panel) * kStagedRows, out - 1, item.count,
                 [&](int i) { return plan.output + static_cast<int64_t>(item.first + i) * out; });
  }
};

// Tiles first .. first + count - 1 of the plan.
struct TileRange {
  int first;
  int count;
};

// Grid: as many blocks as run at a time; each takes every so many-th item.
template <WeightFormat kWeights, bool kSmall>
__global__ void __launch_bounds__(kStagedThreads, 1)
    hidden_staged_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, float limit,
                         const __grid_constant__ ExpertPlan plan, const __grid_constant__ StagedLayout layout, TileRange tiles) {
  take_turn();
  const auto panels = static_cast<int>((shared.w1.out + kStagedHalf - 1) / kStagedHalf);
  const HiddenWork<kWeights> work{
      {routed, shared, plan, panels, static_cast<int>(shared.w1.in), tiles.first, tiles.first + tiles.count - 1}, limit};
  run_staged<kSmall>(layout, work);
}

template <WeightFormat kWeights, bool kSmall>
__global__ void __launch_bounds__(kStagedThreads, 1)
    output_staged_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared,
                         const __grid_constant__ ExpertPlan plan, const __grid_constant__ StagedLayout layout, TileRange tiles) {
  take_turn();
  const auto panels = static_cast<int>((shared.w2.out + kStagedRows - 1) / kStagedRows);
  const OutputWork<kWeights> work{
      {routed, shared, plan, panels, static_cast<int>(shared.w2.in), tiles.first, tiles.first + tiles.count - 1}};
  run_staged<kSmall>(layout, work);
}

class Launcher {
 public:
  Launcher(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream)
      : args_(args),
        shared_{args.shared_w1, args.shared_w2, args.shared_w3},
        limit_(args.swiglu_limit),
        routed_(routed),
        plan_(plan),
        stream_(stream) {}

  // One kernel for both formats would need more registers than there are.
  template <WeightFormat kRouted>
  void run() {
    const auto shared_tiles = static_cast<int>(plan_.shared_tiles);
    const TileRange shared{0, shared_tiles};
    const TileRange routed{shared_tiles, static_cast<int>(plan_.tile_count) - shared_tiles};
    if (!plan_.shared_apart) hidden<WeightFormat::kFp8>(shared);
    if (plan_.panels) {
      multiply_hidden_panels(args_, routed_, plan_, stream_);
    } else {
      hidden<kRouted>(routed);
    }
    if (!plan_.shared_apart) output<WeightFormat::kFp8>(shared);
    if (plan_.panels) {
      multiply_output_panels(args_, routed_, plan_, stream_);
    } else {
      output<kRouted>(routed);
    }
  }

 private:
  static unsigned blocks(int64_t out, int64_t rows, int tiles) {
    return static_cast<unsigned>(std::min<int64_t>(kMultiprocessors, (out + rows - 1) / rows * tiles));
  }
  template <WeightFormat kWeights>
  int inputs() const {
    return kWeights == WeightFormat::kFp8 ? plan_.shared_inputs : plan_.tile_inputs;
  }
  template <WeightFormat kWeights>
  void hidden(const TileRange& tiles) {
    const StagedLayout layout = staged_layout(inputs<kWeights>(), kWeights == WeightFormat::kFp8);
    stream_.launch(
        inputs<kWeights>() <= kMostSmallInputs ? hidden_staged_kernel<kWeights, true> : hidden_staged_kernel<kWeights, false>,
        blocks(shared_.w1.out, kStagedHalf, tiles.count), kStagedThreads, layout.bytes, routed_, shared_, limit_, plan_, layout,
        tiles);
  }
  template <WeightFormat kWeights>
  void output(const TileRange& tiles) {
    const StagedLayout layout = staged_layout(inputs<kWeights>(), kWeights == WeightFormat::kFp8);
    stream_.launch(
        inputs<kWeights>() <= kMostSmallInputs ? output_staged_kernel<kWeights, true> : output_staged_kernel<kWeights, false>,
        blocks(shared_.w2.out, kStagedRows, tiles.count), kStagedThreads, layout.bytes, routed_, shared_, plan_, layout, tiles);
  }

  const ExpertsArgs& args_;
  SharedExpert shared_;
  float limit_;
  const ExpertWeights* routed_;
  const ExpertPlan& plan_;
  LaunchStream& stream_;
};

}  // namespace

void multiply_experts_staged(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  if (!plan.shared_first) cuda_failed(__FILE__, __LINE__, "experts", "a plan whose shared tiles are not the first");
  Launcher launcher(args, routed, plan, stream);
  if (plan.arranged) {
    launcher.run<WeightFormat::kFp4Panels>();
  } else {
    launcher.run<WeightFormat::kFp4>();
  }
}

}  // namespace deepinfer::cuda
