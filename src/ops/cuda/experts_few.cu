// Hidden values of the experts of a step of one or two rows, where each weight is used once or twice: what counts is that
// memory is never idle. A unit of work is a segment of a panel of gates or of ups. Blocks stay, one a multiprocessor, and have as
// many units each, whose warps bring them by rings of their own (few_experts.cuh). Sums of segments go to memory; the block that
// has the last of a panel's adds them up.
//
// The shared expert's units do not depend on the router's choices, and go first, in the blocks that find a place while the router
// still runs.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts_few.h"
#include "ops/cuda/few_experts.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/ready.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kMostWarps = 20;
constexpr int kEarlyBlocks = 104;            // that find a place while the router runs
constexpr int kMostTiles = kWarp;            // a lane has one
constexpr uint32_t kMostShared = 227 << 10;  // of a block
constexpr int kKeptGap = 8;                  // columns between kept rows

struct Work {
  const ExpertWeights* routed = nullptr;
  SharedExpert shared;
  ExpertPlan plan;
  FewScratch few;
  const bf16* v = nullptr;
  int rows = 0;
  int shared_first = 0;  // the shared expert's first pair
  int experts = 0;
  float limit = 0;
  bool alone = false;
  int panels = 0;
  int segments = 0;    // of a panel
  int most_items = 0;  // panels of gates and ups that a block has a part of
};

// Pairs that use the same weights.
struct Pairs {
  int first = 0, count = 0;
  uint32_t tokens = 0;  // a byte each
};
// A tile of routed experts: its weights' gates and ups.
struct Tile {
  const uint8_t* codes[2];
  const uint8_t* scales[2];
  Pairs pairs;
};

// Shared memory of a block: rings; tiles; zeros in place of inputs that are not there; inputs [rows][columns and kKeptGap];
// counts of units that are done [2][most_items].
constexpr uint32_t kZeros = 64;
struct Layout {
  uint32_t tiles = 0, zeros = 0, inputs = 0, counts = 0, bytes = 0;
};
__host__ __device__ inline Layout layout_of(int warps, int rows, int columns, int items) {
  Layout l;
  l.tiles = static_cast<uint32_t>(warps) * few::kRing;
  l.zeros = l.tiles + kMostTiles * static_cast<uint32_t>(sizeof(Tile));
  l.inputs = l.zeros + kZeros;
  l.counts = l.inputs + static_cast<uint32_t>(rows * (columns + kKeptGap)) * 2;
  l.bytes = l.counts + static_cast<uint32_t>(2 * items) * 4;
  return l;
}

// Units of a block: as many of `tiles` tiles for each of the first `blocks`.
struct Share {
  int begin = 0, end = 0;
};
__device__ inline Share share_of(const Work& w, int tiles, int blocks) {
  const int64_t units = static_cast<int64_t>(tiles) * w.panels * 2 * w.segments;
  const auto block = static_cast<int>(blockIdx.x);
  if (block >= blocks) return {};
  return {static_cast<int>(units * block / blocks), static_cast<int>(units * (block + 1) / blocks)};
}

// Where a unit lies.
struct Place {
  int tile, panel, part;
  __device__ Place(const Work& w, int unit) {
    const int parts = 2 * w.segments;
    const int item = unit / parts;
    part = unit - item * parts;
    tile = item / w.panels;
    panel = item - tile * w.panels;
  }
  __device__ void skip(const Work& w, int units) {
    const int parts = 2 * w.segments;
    for (part += units; part >= parts; part -= parts) {
      if (++panel == w.panels) panel = 0, ++tile;
    }
  }
  __device__ bool up(const Work& w) const { return part >= w.segments; }
  __device__ int segment(const Work& w) const { return up(w) ? part - w.segments : part; }
};

// The shared expert's weights, and those of the tiles.
struct SharedSource {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  static constexpr int kFirstArrived = 0;
  // Chunks of a warp on their way: there is time, and more would slow the router down.
  static constexpr uint32_t kAhead = 2;
  const Work& w;
  __device__ WeightView matrix(const Place& p) const { return device_view(p.up(w) ? w.shared.w3 : w.shared.w1); }
  __device__ Pairs pairs(const Place& /*p*/) const { return {w.shared_first, w.rows, 0x020100u}; }
  __device__ float weight(int /*pair*/) const { return 1.0f; }
};
struct RoutedSource {
  static constexpr WeightFormat kFormat = WeightFormat::kFp4Panels;
  static constexpr int kFirstArrived = 1;
  static constexpr uint32_t kAhead = few::kSlots;
  const Work& w;
  const Tile* tiles;
  __device__ WeightView matrix(const Place& p) const {
    const int which = p.up(w) ? 1 : 0;
    return {tiles[p.tile].codes[which], tiles[p.tile].scales[which], w.shared.w1.out, w.shared.w1.in};
  }
  __device__ Pairs pairs(const Place& p) const { return tiles[p.tile].pairs; }
  __device__ float weight(int pair) const { return w.plan.weight[pair]; }
};

// The warp's units of a share: every warps-th.
template <typename Source>
class Units {
 public:
  static constexpr WeightFormat kFormat = Source::kFormat;
  static constexpr int kAhead = static_cast<int>(Source::kAhead);
  // Asks for the first chunks.
  __device__ Units(const Work& w, const Source& source, Share share, uint32_t ring, int lane)
      : w_(w),
        source_(source),
        share_(share),
        ring_(ring),
        lane_(lane),
        unit_(share.begin + static_cast<int>(threadIdx.x) / kWarp),
        first_item_(share.begin / (2 * w.segments)),
        next_unit_(unit_),
        next_(w, unit_) {
    begin();
#pragma unroll 1
    for (uint32_t slot = ring_; slot < ring_ + kAhead * few::kSlot; slot += few::kSlot) request(slot);
  }

  // `zeros`, `inputs`: in shared memory.
  __device__ void multiply(uint32_t zeros, uint32_t inputs, int* counts) {
    constexpr auto kInputs = static_cast<uint32_t>(chunk_columns(kFormat)) * 2;  // bytes of a chunk
    const auto columns = static_cast<int>(w_.shared.w1.in);
    const int g = lane_ / 4;
    const auto own = static_cast<uint32_t>(lane_ % 4) * (kInputs / 4);
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    Place place(w_, unit_);
    uint32_t slot = ring_;
    for (; unit_ < share_.end; unit_ += warps, place.skip(w_, warps)) {
      const Pairs pairs = source_.pairs(place);
      const int segment = place.segment(w_);
      uint32_t x = zeros;
      uint32_t step = 0;
      if (g < pairs.count) {
        const uint32_t token = pairs.tokens >> (8 * g) & 0xff;
        x = inputs + (token * static_cast<uint32_t>(columns + kKeptGap) + static_cast<uint32_t>(segment * kSegment)) * 2 + own;
        step = kInputs;
      }
      const uint32_t first = x;
      const int chunks = min(columns - segment * kSegment, kSegment) / chunk_columns(kFormat);
      float c[2][1][4] = {};
      uint32_t scales = 0;
#pragma unroll 1
      for (int i = 0; i < chunks; ++i) {
        wait_copies<kAhead - 1>();
        __syncwarp();  // lanes copy for each other
        few::Chunk<kFormat> chunk;
        chunk.load(slot, x, lane_);
        __syncwarp();
        request(slot_behind<kAhead>(slot));
        scales |= chunk.scales;
        chunk.multiply(i & 1, lane_, c);
        x += step;
        slot = slot_behind<1>(slot);
      }
      if (__any_sync(0xffffffffu, (scales & 0x80808080u) != 0))
        few::multiply_again<kFormat>(source_.matrix(place), place.panel, segment, first, step, lane_, c);
      store(place, pairs, c);
      if (arrive(place, counts)) finish(place.panel, pairs);
    }
  }

 private:
  template <uint32_t kSlots>
  __device__ uint32_t slot_behind(uint32_t slot) const {
    if (kSlots == few::kSlots) return slot;
    slot += kSlots * few::kSlot;
    return slot < ring_ + few::kRing ? slot : slot - few::kRing;
  }
  __device__ void begin() {
    if (next_unit_ < share_.end) left_ = few::Segment<kFormat>(source_.matrix(next_), next_.panel, next_.segment(w_), lane_);
  }
  __device__ void request(uint32_t slot) {
    if (left_.chunks > 0) {
      left_.request(slot, static_cast<int>(w_.shared.w1.in), lane_);
      if (left_.chunks == 0) {
        const int warps = static_cast<int>(blockDim.x) / kWarp;
        next_unit_ += warps;
        next_.skip(w_, warps);
        begin();
      }
    }
    commit_copies();
  }

  // Floats of a pair's parts, and of a panel's.
  __device__ int pair_floats() const { return w_.panels * panel_floats(); }
  __device__ int panel_floats() const { return 2 * w_.segments * kPanelRows; }

  __device__ void store(const Place& place, const Pairs& pairs, const float (&c)[2][1][4]) const {
    float* part = w_.few.parts + pairs.first * pair_floats() + place.panel * panel_floats() + place.part * kPanelRows + lane_ / 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int input = lane_ % 4 * 2 + j;
      if (input >= pairs.count) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) part[input * pair_floats() + i * 8] = c[i / 2][0][i % 2 * 2 + j];
    }
  }

  // Whether the sums of all units of the panel are there, this one's with them.
  __device__ bool arrive(const Place& place, int* counts) const {
    __syncwarp();
    bool last = false;
    if (lane_ == 0) {
      const int parts = 2 * w_.segments;
      const int item = place.tile * w_.panels + place.panel;
      const int own = min(share_.end, (item + 1) * parts) - max(share_.begin, item * parts);
      if (take_number_of_block(counts + item - first_item_) == own - 1) {
        int32_t* arrived = w_.few.arrived + w_.panels * Source::kFirstArrived + item;
        last = own == parts || take_numbers(arrived, own) == parts - own;
        if (last && own != parts) *arrived = 0;
      }
    }
    last = __any_sync(0xffffffffu, last);
    __syncwarp();
    return last;
  }

  __device__ void finish(int panel, const Pairs& pairs) const {
    constexpr int kAtOnce = 10;
    const int64_t inner = w_.shared.w1.out;
    const int segments = w_.segments;
    const float* parts = w_.few.parts + pairs.first * pair_floats() + panel * panel_floats() + lane_;
#pragma unroll 1
    for (int pair = pairs.first; pair < pairs.first + pairs.count; ++pair, parts += pair_floats()) {
      float gate = -0.0f, value = -0.0f;  // and v is v, -0 too
#pragma unroll 1
      for (int begin = 0; begin < segments; begin += kAtOnce) {
        float v[2][kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
          v[0][s] = v[1][s] = -0.0f;
          if (begin + s < segments) {
            v[0][s] = parts[(begin + s) * kPanelRows];
            v[1][s] = parts[(segments + begin + s) * kPanelRows];
          }
        }
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) gate += v[0][s], value += v[1][s];
      }
      w_.plan.hidden[pair * inner + panel * kPanelRows + interleaved(lane_)] =
          narrow(hidden_value(gate, value, w_.limit, source_.weight(pair)));
    }
  }

  const Work& w_;
  const Source& source_;
  const Share share_;
  const uint32_t ring_;
  const int lane_;
  int unit_;
  const int first_item_;
  int next_unit_;  // whose chunks are asked for
  Place next_;
  few::Segment<kFormat> left_;
};

// Inputs as the products want them, for the whole block, and counts that begin.
__device__ void keep_inputs(const Work& w, uint8_t* memory, const Layout& layout) {
  if (!w.alone) wait_for_earlier();
  const auto columns = static_cast<int>(w.shared.w1.in);
  const auto thread = static_cast<int>(threadIdx.x);
  const int pieces = columns / 8;
  auto* kept = reinterpret_cast<bf16*>(memory + layout.inputs);
  for (int first = thread / kWarp * kWarp; first < w.rows * pieces; first += static_cast<int>(blockDim.x)) {
    const int i = min(first + thread % kWarp, w.rows * pieces - 1);
    const int row = i / pieces;
    const int column = i % pieces * 8;
    float f[8];
    float amax = widen_eight(load_again(w.v + static_cast<int64_t>(row) * columns + column), f);
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    *reinterpret_cast<uint4*>(kept + row * (columns + kKeptGap) + column) = round_eight(f, e8m0_value(fp8_scale_bits(amax)));
  }
  if (thread < static_cast<int>(kZeros / 16)) reinterpret_cast<uint4*>(memory + layout.zeros)[thread] = make_uint4(0, 0, 0, 0);
  auto* counts = reinterpret_cast<int*>(memory + layout.counts);
  for (int i = thread; i < 2 * w.most_items; i += static_cast<int>(blockDim.x)) counts[i] = 0;
}

// The tiles of routed experts that have pairs, by the first warp. Returns how many have.
__device__ int find_tiles(const Work& w, Tile* tiles) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ExpertPlan::Tile tile;
  if (lane < static_cast<int>(w.plan.tile_count)) tile = w.plan.tiles[lane];
  const bool there = tile.count > 0 && tile.expert < w.experts;
  const uint32_t all = __ballot_sync(0xffffffffu, there);
  if (there && threadIdx.x < kWarp) {
    const ExpertWeights& e = w.routed[tile.expert];
    Tile own{{e.w1.codes, e.w3.codes}, {e.w1.scales, e.w3.scales}, {tile.first, tile.count}};
    for (int i = 0; w.rows > 1 && i < tile.count; ++i)
      own.pairs.tokens |= static_cast<uint32_t>(w.plan.token[tile.first + i]) << 8 * i;
    tiles[__popc(all & ((1u << lane) - 1))] = own;
  }
  return __popc(all);
}

__global__ void __launch_bounds__(kMostWarps* kWarp, 1) few_hidden_kernel(const __grid_constant__ Work w) {
  let_next_begin();
  auto* memory = dynamic_shared<uint8_t>();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Layout layout = layout_of(warps, w.rows, static_cast<int>(w.shared.w1.in), w.most_items);
  const uint32_t base = shared_address(memory);
  const uint32_t ring = base + threadIdx.x / kWarp * few::kRing;
  auto* counts = reinterpret_cast<int*>(memory + layout.counts);
  auto* tiles = reinterpret_cast<Tile*>(memory + layout.tiles);
  const SharedSource shared{w};
  Units<SharedSource> first(w, shared, share_of(w, 1, kEarlyBlocks), ring, lane);
  keep_inputs(w, memory, layout);
  __syncthreads();
  first.multiply(base + layout.zeros, base + layout.inputs, counts);
  wait_for_earlier();
  const int tile_count = find_tiles(w, tiles);
  __syncthreads();
  const RoutedSource routed{w, tiles};
  Units<RoutedSource>(w, routed, share_of(w, tile_count, static_cast<int>(gridDim.x)), ring, lane)
      .multiply(base + layout.zeros, base + layout.inputs, counts + w.most_items);
}

Work work_of(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, int& warps) {
  Work w;
  w.shared = {args.shared_w1, args.shared_w2, args.shared_w3};
  w.plan = plan;
  w.v = args.v;
  w.rows = static_cast<int>(rows);
  w.shared_first = static_cast<int>(rows * args.topk);
  w.experts = static_cast<int>(args.routed.size());
  w.limit = args.swiglu_limit;
  w.panels = static_cast<int>(args.shared_w1.out / kPanelRows);
  w.segments = static_cast<int>(segment_count(args.shared_w1.in));
  const int64_t items = plan.tile_count * w.panels / kEarlyBlocks + 3;
  w.most_items = static_cast<int>(items);
  const auto columns = static_cast<int>(args.shared_w1.in);
  const uint32_t others = layout_of(0, w.rows, columns, w.most_items).bytes;
  warps = others < kMostShared ? std::min(kMostWarps, static_cast<int>((kMostShared - others) / few::kRing)) : 0;
  return w;
}

}  // namespace

bool takes_few_hidden(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan) {
  const auto fits = [](const Fp8Weight& w) {
    return reinterpret_cast<uintptr_t>(w.values) % 16 == 0 && reinterpret_cast<uintptr_t>(w.scales) % 4 == 0;
  };
  const int64_t columns = args.shared_w1.in;
  if (rows <= 0 || rows > kMostFewExperts || !plan.arranged || plan.wide || plan.streamed || plan.tile_inputs != 8) return false;
  if (columns % 256 != 0 || columns > 1 << 15 || args.shared_w1.out % kPanelRows != 0 || args.shared_w1.out > 1 << 15)
    return false;
  if (!fits(args.shared_w1) || !fits(args.shared_w3) || reinterpret_cast<uintptr_t>(args.v) % 16 != 0) return false;
  if (plan.tile_count > kMostTiles || plan.tile_count * (args.shared_w1.out / kPanelRows) > kMostArrived) return false;
  int warps = 0;
  work_of(args, rows, plan, warps);
  return warps >= kMostWarps / 4;
}

bool pays_few_hidden(const ExpertsArgs& args, const ExpertPlan& plan) {
  constexpr int64_t kEnough = 2 * kMultiprocessors * kMostWarps;
  return plan.tile_count * (args.shared_w1.out / kPanelRows) * 2 * segment_count(args.shared_w1.in) >= kEnough;
}

int64_t few_hidden_parts(const ExpertsArgs& args, int64_t rows) {
  return rows * (args.topk + 1) * args.shared_w1.out * 2 * segment_count(args.shared_w1.in);
}

void multiply_hidden_few(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const ExpertPlan& plan,
                         const FewScratch& few, bool alone, LaunchStream& stream) {
  int warps = 0;
  Work w = work_of(args, rows, plan, warps);
  w.routed = routed;
  w.few = few;
  w.alone = alone;
  const uint32_t shared = layout_of(warps, w.rows, static_cast<int>(args.shared_w1.in), w.most_items).bytes;
  stream.launch(few_hidden_kernel, kMultiprocessors, static_cast<unsigned>(warps * kWarp), shared, w);
}

}  // namespace deepinfer::cuda
