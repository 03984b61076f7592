// Products of FP8 weights and one or two rows at the speed of memory, where all warps of the machine have equal shares. A team, a
// block or a cluster of two, has some panels of 16 weight rows, whose segments are dealt to its warps in turn: what they read at
// a time lies side by side. A warp asks for its weights long before its turn, by a ring of its own (panel_ring.cuh) that a
// segment fills, and multiplies them in fp16 (fp16_segments.cuh). Blocks meet once, when all sums are there: those of a panel
// whose segments two blocks have go to one of them, from shared memory to shared memory. Chains and order of the sums are those
// of fragments.cuh and segments.cuh.

#include <algorithm>
#include <numeric>

#include "ops/cuda/cluster_instructions.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/fp16_segments.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/panel_ring.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/products_dealt.h"

namespace deepinfer::cuda {
namespace {

constexpr WeightFormat kFormat = WeightFormat::kFp8;
constexpr int kMultiprocessors = 132;
constexpr int kMostWarps = 10;  // of a block, two at once on a multiprocessor
constexpr int kWarpsAtOnce = 20;
constexpr uint32_t kMostShared = 227 << 10;  // of a multiprocessor's blocks, each with kSharedOfBlock more
constexpr uint32_t kSharedOfBlock = 1 << 10;
constexpr int kMostRows = 2;
constexpr int64_t kMostUnits = 1 << 14;  // of a team: the sums of more have no room
constexpr int kRowStride = 20;           // floats between input rows of sums: no two lanes of a store meet in a bank
constexpr int kStage = kStageColumns<kFormat>;

struct DealtGrid : PanelGrid {
  int segments = 0;  // of a panel
  int columns = 0;
  int cluster = 1;                         // blocks of a team
  int warps = 0;                           // of a block
  int teams = 0;                           // of a group
  int most = 0;                            // panels of the first teams
  int larger = 0;                          // teams that have them, the others one less
  int more_panels = 0, more_segments = 0;  // from a warp's unit to its next
  int own = 0;                             // segments of a warp, whose inputs it keeps itself; 0: a block keeps all of them

  __host__ __device__ int width(int segment) const { return min(columns - segment * kSegment, kSegment); }
  __host__ __device__ int panels_of(int team) const { return team < larger ? most : most - 1; }
  __host__ __device__ int first_panel(int team) const { return team * (most - 1) + min(team, larger); }
  __host__ __device__ int team_warps() const { return cluster * warps; }
  __host__ __device__ int kept() const { return own > 0 ? own * warps : segments; }  // of a block
};

// Shared memory of a block: rings of all warps; inputs [kept][rows][kSegment] as of place_segment, and their places; a
// barrier; sums [panels][segments][rows][kRowStride] of every cluster-th panel of the team.
struct DealtLayout {
  uint32_t inputs = 0, places = 0, barrier = 0, sums = 0, bytes = 0;
};
__host__ __device__ inline DealtLayout layout_of(const DealtGrid& grid, int rows) {
  DealtLayout layout;
  const auto items = static_cast<uint32_t>(grid.kept() * rows);
  layout.inputs = static_cast<uint32_t>(grid.warps) * kRingBytes;
  layout.places = layout.inputs + items * kSegment * 2;
  layout.barrier = layout.places + (items + 3) / 4 * 16;
  layout.sums = layout.barrier + 16;
  const int panels = (grid.most + grid.cluster - 1) / grid.cluster;
  layout.bytes = layout.sums + static_cast<uint32_t>(panels * grid.segments * rows * kRowStride) * 4;
  return layout;
}

// The sums of a half panel and a segment that fp16 does not have: those are rare, and the weights are read again.
template <bool kInterleaved>
__device__ void multiply_again(const WeightView& w, const HalfPanel& half, int first, int last, int lane, const bf16* row,
                               int place, float (&c)[1][4]) {
  const WeightPanel<kFormat> panel(w, half.first_row, half.last_row, lane);
#pragma unroll
  for (float& v : c[0]) v = 0;
#pragma unroll 1
  for (int at = 0; first + at < last; at += chunk_columns(kFormat)) {
    HalfChunk chunk;
    load_half<kFormat>(panel, first + at, lane, chunk);
    const auto inputs = [&](int, int pair) {
      const uint4 x = placed_bf16(load_again(row + at + pair * 8), place);
      return kInterleaved ? interleave(x) : x;
    };
    add_scaled<kFormat, kInterleaved, true>(chunk, chunk.scales, inputs, c);
  }
}

// A warp's units: a unit is a segment of a panel, and a warp has every team_warps-th, so that what a team reads at a time lies
// side by side.
class Units {
 public:
  __device__ Units(const DealtGrid& grid, int panels, int team_warp)
      : segments_(grid.segments),
        panels_(panels),
        more_panels_(grid.more_panels),
        more_segments_(grid.more_segments),
        panel_(team_warp / grid.segments),
        segment_(team_warp % grid.segments) {}
  __device__ bool any() const { return panel_ < panels_; }
  __device__ int segment() const { return segment_; }
  __device__ int panel() const { return panel_; }
  __device__ void next() {
    panel_ += more_panels_;
    segment_ += more_segments_;
    if (segment_ >= segments_) segment_ -= segments_, ++panel_;
  }

 private:
  int segments_, panels_, more_panels_, more_segments_, panel_, segment_;
};

// The stages of a warp's units, a unit ahead: a unit fills the ring.
class Requests {
 public:
  __device__ Requests(const ProductArgs& args, const DealtGrid& grid, int group, int first_panel, const Units& units,
                      uint32_t ring, int lane)
      : args_(args), grid_(grid), group_(group), first_panel_(first_panel), units_(units), ring_(ring), lane_(lane) {
    find();
#pragma unroll
    for (int stage = 0; stage < kRingStages; ++stage) request(stage);
  }
  // Once all lanes have read stage `stage`, a constant.
  __device__ void behind(int stage) {
    if (stage == 0) find();
    request(stage);
  }

 private:
  __device__ void find() {
    stages_ = 0;
    if (!units_.any()) return;
    const HalfPanel panel = panel_of(grid_, group_, first_panel_ + units_.panel());
    rows_ = {args_.outputs[panel.which].weight, panel, units_.segment() * kSegment, lane_};
    stages_ = grid_.width(units_.segment()) / kStage;
    units_.next();
  }
  __device__ void request(int stage) {
    if (stage < stages_) rows_.request(ring_, stage, lane_);
    commit_copies();
  }

  const ProductArgs& args_;
  const DealtGrid& grid_;
  int group_, first_panel_;
  Units units_;
  uint32_t ring_;
  int lane_;
  int stages_ = 0;
  RingRows<kFormat> rows_;
};

// What a block does before its turn and then. kCluster: blocks of a team.
template <bool kQuantize, int kCluster>
class Dealt {
 public:
  __device__ Dealt(const ProductArgs& args, const DealtGrid& grid)
      : args_(args),
        grid_(grid),
        layout_(layout_of(grid, rows())),
        first_panel_(grid.first_panel(team())),
        panels_(grid.panels_of(team())),
        units_(grid, panels_, rank() * grid.warps + warp()),
        requests_(args, grid, group(), first_panel_, units_, ring(), lane()) {
    if constexpr (kCluster > 1) {
      if (threadIdx.x == 0) {
        barrier_init(barrier(), 1);
        show_barriers();
        barrier_arrive_expecting(barrier(), static_cast<uint32_t>(own_panels() * grid_.segments * rows() * kHalfPanelRows) * 4);
      }
      cluster_arrive();
    }
  }

  __device__ void multiply() {
    bring_inputs();
    if constexpr (kCluster > 1) cluster_wait();  // the others' shared memory is there
    const int g = lane() / 4;
    const int t = lane() % 4;
    const int own_row = min(g, rows() - 1);  // lanes without a row have another one's, and sums that nobody reads
    const uint32_t first_row = shared_address(inputs() + own_row * kSegment + t * (chunk_columns(kFormat) / 4));
    int turn = 0;  // of the warp's own segments
#pragma unroll 1
    for (Units units = units_; units.any(); units.next()) {
      const int stages = grid_.width(units.segment()) / kStage;
      const int number = grid_.own > 0 ? warp() * grid_.own + turn : units.segment();
      turn = turn + 1 < grid_.own ? turn + 1 : 0;
      const uint32_t row = first_row + static_cast<uint32_t>(number * rows() * kSegment) * 2;
      Fp16Chain chain;
#pragma unroll
      for (int stage = 0; stage < kRingStages; ++stage) {
        wait_copies<kRingStages - 1>();
        __syncwarp();  // lanes copy for each other
        RingStage now;
        if (stage < stages) now.load<kFormat>(ring(), stage, lane());
        __syncwarp();  // all have read
        requests_.behind(stage);
        if (stage < stages) chain.add<kQuantize>(now, stage, row + static_cast<uint32_t>(stage * kStage) * 2, lane());
      }
      float c[1][4];
      int own_places[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) own_places[i] = places()[number * rows() + min(t * 2 + i, rows() - 1)];
      if (!chain.finish(own_places, c)) {
        const HalfPanel panel = panel_of(grid_, group(), first_panel_ + units.panel());
        const int column = units.segment() * kSegment;
        const int item = number * rows() + own_row;
        multiply_again<kQuantize>(args_.outputs[panel.which].weight, panel, column, column + stages * kStage, lane(),
                                  inputs() + item * kSegment + t * (chunk_columns(kFormat) / 4), places()[item], c);
      }
      store_sums(units, c[0]);
    }
    if constexpr (kCluster > 1) {
      barrier_wait(barrier(), 0);
    } else {
      __syncthreads();
    }
    add_sums();
  }

 private:
  __device__ static uint8_t* memory() { return dynamic_shared<uint8_t>(); }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int team() { return static_cast<int>(blockIdx.x) / kCluster; }
  __device__ static int rank() { return static_cast<int>(blockIdx.x) % kCluster; }
  __device__ static int group() { return static_cast<int>(blockIdx.y); }
  __device__ static uint32_t ring() { return shared_address(memory()) + static_cast<uint32_t>(warp()) * kRingBytes; }
  __device__ int rows() const { return static_cast<int>(args_.rows); }
  __device__ uint32_t part() const { return static_cast<uint32_t>(rows() * kRowStride); }
  __device__ float* sums() const { return reinterpret_cast<float*>(memory() + layout_.sums); }
  __device__ uint64_t* barrier() const { return reinterpret_cast<uint64_t*>(memory() + layout_.barrier); }
  __device__ int own_panels() const { return (panels_ - rank() + kCluster - 1) / kCluster; }
  __device__ bf16* inputs() const { return reinterpret_cast<bf16*>(memory() + layout_.inputs); }
  __device__ int* places() const { return reinterpret_cast<int*>(memory() + layout_.places); }

  // Those of the warp's own segments or, where a block keeps all, of every warps-th; two at a time, so that it waits once.
  __device__ void bring_inputs() {
    constexpr int kAtOnce = 2;
    const bool own = grid_.own > 0;
    const int items = (own ? grid_.own : (grid_.segments - warp() + grid_.warps - 1) / grid_.warps) * rows();
    const int step = own ? grid_.more_segments : grid_.warps;  // to the next of them
    const int first_place = own ? warp() * grid_.own : warp();
    const int next_place = own ? 1 : grid_.warps;
    const bf16* x = args_.x + group() * args_.x_group + lane() * 16;
    int segment = own ? units_.segment() : warp();
#pragma unroll 1
    for (int begin = 0; begin < items; begin += kAtOnce) {
      uint4 v[kAtOnce][2] = {};
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int column = segment * kSegment;
        const bf16* from = x + (rows() == 1 ? 0 : k) * args_.x_stride + column;
        if (begin + k < items && column + lane() * 16 < grid_.columns) {
#pragma unroll
          for (int half = 0; half < 2; ++half) v[k][half] = load_inputs(from + half * 8);
        }
        if (rows() == 1 || k == 1) segment += step;
        if (segment >= grid_.segments) segment -= grid_.segments;
      }
#pragma unroll 1
      for (int k = 0; k < kAtOnce && begin + k < items; ++k) {
        const int at = rows() == 1 ? first_place + (begin + k) * next_place : (first_place + begin / 2 * next_place) * 2 + k;
        auto* to = reinterpret_cast<uint4*>(inputs() + at * kSegment) + lane() * 2;
        const int place = kQuantize ? place_rounded_segment(v[0]) : place_segment(v[0]);
        if (lane() == 0) places()[at] = place;
        to[0] = v[0][0];
        to[1] = v[0][1];
        v[0][0] = v[1][0];
        v[0][1] = v[1][1];
      }
    }
    if (own) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // To the block that adds them.
  __device__ void store_sums(const Units& units, const float (&c)[4]) const {
    const int g = lane() / 4;
    const int t = lane() % 4;
    float* to = sums() + static_cast<uint32_t>(units.panel() / kCluster * grid_.segments + units.segment()) * part();
    const auto owner = static_cast<uint32_t>(units.panel() % kCluster);
    const uint32_t far = kCluster > 1 ? shared_of(shared_address(to), owner) : 0;
    const uint32_t far_barrier = kCluster > 1 ? shared_of(shared_address(barrier()), owner) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (t * 2 + i % 2) * kRowStride + g + i / 2 * 8;
      if (t * 2 + i % 2 >= rows()) continue;
      if constexpr (kCluster > 1) {
        store_cluster(far + static_cast<uint32_t>(at) * 4, c[i], far_barrier);
      } else {
        to[at] = c[i];
      }
    }
  }

  __device__ void add_sums() const {
    const int values = rows() * kHalfPanelRows;
    for (auto i = static_cast<int>(threadIdx.x); i < own_panels() * values; i += static_cast<int>(blockDim.x)) {
      const int number = i / values;
      const int input = i % values / kHalfPanelRows;
      const int weight_row = i % kHalfPanelRows;
      const HalfPanel panel = panel_of(grid_, group(), first_panel_ + number * kCluster + rank());
      if (panel.first_row + weight_row > panel.last_row) continue;
      const float* p = sums() + static_cast<uint32_t>(number * grid_.segments) * part() + input * kRowStride + weight_row;
      float total = p[0];
#pragma unroll 8
      for (int s = 1; s < grid_.segments; ++s) total += p[static_cast<uint32_t>(s) * part()];
      store_product(args_, panel.which, input * args_.outputs[panel.which].weight.out + panel.first_row + weight_row, total);
    }
  }

  const ProductArgs& args_;
  const DealtGrid& grid_;
  DealtLayout layout_;
  int first_panel_, panels_;  // of the team
  Units units_;               // of the warp
  Requests requests_;
};

// Grid: blocks of a group, groups.
template <bool kQuantize, int kCluster>
__global__ void __launch_bounds__(kMostWarps* kWarp, 2)
    dealt_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ DealtGrid grid) {
  if (!args.alone) let_next_begin();
  Dealt<kQuantize, kCluster> dealt(args, grid);
  wait_for_earlier();
  if (args.alone) let_next_begin();
  dealt.multiply();
}

// Columns of the busiest warp of a team with all of its panels.
int busiest_columns(const DealtGrid& grid) {
  int busiest = 0;
  for (int warp = 0; warp < grid.team_warps(); ++warp) {
    int columns = 0;
    for (int unit = warp; unit < grid.most * grid.segments; unit += grid.team_warps())
      columns += grid.width(unit % grid.segments);
    busiest = std::max(busiest, columns);
  }
  return busiest;
}

// `grid` cut for teams of `cluster` blocks of `warps` warps, `at_once` blocks on a multiprocessor, all at once on the device.
DealtGrid cut(DealtGrid grid, int cluster, int warps, int at_once) {
  grid.cluster = cluster;
  grid.warps = warps;
  const int most_teams = kMultiprocessors * at_once / cluster / grid.groups;
  if (most_teams == 0) return grid;
  grid.teams = std::min(most_teams, grid.panels);
  grid.most = (grid.panels + grid.teams - 1) / grid.teams;
  grid.teams = (grid.panels + grid.most - 1) / grid.most;
  grid.larger = grid.panels - grid.teams * (grid.most - 1);
  grid.more_panels = grid.team_warps() / grid.segments;
  grid.more_segments = grid.team_warps() % grid.segments;
  const int own = grid.segments / std::gcd(grid.segments, grid.team_warps());
  grid.own = own * warps <= grid.segments ? own : 0;
  return grid;
}

// The cut with which the busiest warp has the fewest columns, of equals one whose warps keep their own inputs. No clusters of
// more than two: larger ones do not always fill the device. teams == 0: there is none.
DealtGrid grid_of(const ProductArgs& args) {
  DealtGrid whole{PanelGrid(args)};
  whole.columns = static_cast<int>(args.outputs[0].weight.in);
  whole.segments = static_cast<int>(segment_count(whole.columns));
  DealtGrid best = whole;
  int64_t least = INT64_MAX;
  for (const int cluster : {1, 2}) {
    for (int warps = kMostWarps; warps >= 2; --warps) {
      for (int at_once = kWarpsAtOnce / warps; at_once > 0; --at_once) {
        const DealtGrid grid = cut(whole, cluster, warps, at_once);
        if (grid.teams == 0 || int64_t{grid.most} * grid.segments > kMostUnits) continue;
        const uint32_t shared = layout_of(grid, static_cast<int>(args.rows)).bytes + kSharedOfBlock;
        if (shared * static_cast<uint32_t>(at_once) > kMostShared) continue;
        const int64_t cost = int64_t{busiest_columns(grid)} * 2 + (grid.own > 0 ? 0 : 1);
        if (cost < least) least = cost, best = grid;
      }
    }
  }
  return best;
}

}  // namespace

// Where they are faster: matrices of more than some megabytes, whose lines and words of scales are whole.
bool takes_dealt_products(const ProductArgs& args) {
  constexpr int64_t kEnough = 512;  // half panels times segments: 4 MiB
  if (args.rows == 0 || args.rows > kMostRows || !fits_rings<kFormat>(args)) return false;
  int64_t rows = 0;
  for (int i = 0; i < args.output_count; ++i) rows += args.outputs[i].weight.out;
  if (rows / kHalfPanelRows * segment_count(args.outputs[0].weight.in) < kEnough) return false;
  return grid_of(args).teams > 0;
}

void multiply_fp8_dealt(const ProductArgs& args, bool quantize, LaunchStream& stream) {
  const DealtGrid grid = grid_of(args);
  const uint32_t shared = layout_of(grid, static_cast<int>(args.rows)).bytes;
  const auto launch = [&](auto kernel) {
    if (grid.cluster > 1) {
      DI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeRequiredClusterWidth, grid.cluster));
      DI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeRequiredClusterHeight, 1));
      DI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeRequiredClusterDepth, 1));
    }
    stream.launch(kernel, dim3(static_cast<unsigned>(grid.teams * grid.cluster), static_cast<unsigned>(grid.groups)),
                  static_cast<unsigned>(grid.warps * kWarp), shared, args, grid);
  };
  if (grid.cluster == 2) return launch(quantize ? dealt_kernel<true, 2> : dealt_kernel<false, 2>);
  launch(quantize ? dealt_kernel<true, 1> : dealt_kernel<false, 1>);
}

}  // namespace deepinfer::cuda
