// Products of one or two rows at the speed of memory. A panel of 16 weight rows belongs to a team of warps, which take segments
// of its columns each; blocks stay, with as many teams as have room, and go from panel to panel. A warp's weights come by a ring
// of its own (panel_ring.cuh), and inputs are kept in shared memory. Chains and order of the sums are those of fragments.cuh and
// segments.cuh.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/panel_ring.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kMostWarps = 10;  // of a block, two at once on a multiprocessor
constexpr int kWarpsAtOnce = 20;
constexpr uint32_t kMostShared = 220 << 10;  // of a multiprocessor's blocks
constexpr int kMostRows = 2;                 // more have no room in shared memory, and are read too often elsewhere
constexpr int kRowStride = 20;               // floats between input rows of sums: no two lanes of a store meet in a bank

struct StreamGrid : PanelGrid {
  int segments = 0;  // of a panel
  int warps = 0;     // of a team
  int teams = 0;     // of a block
  int blocks = 0;
};

// Shared memory of a block: rings of all warps; sums [teams][2][segments][rows][kRowStride]; inputs [rows][columns and
// kKeptGap].
constexpr int kKeptGap = 8;
struct StreamLayout {
  uint32_t sums = 0, inputs = 0, bytes = 0;
  uint32_t part = 0;  // floats of a segment's sums
};
__host__ __device__ inline StreamLayout layout_of(const StreamGrid& grid, int rows, int columns) {
  StreamLayout layout;
  layout.part = static_cast<uint32_t>(rows * kRowStride);
  layout.sums = static_cast<uint32_t>(grid.warps * grid.teams) * kRingBytes;
  layout.inputs = layout.sums + static_cast<uint32_t>(grid.teams * 2 * grid.segments) * layout.part * 4;
  layout.bytes = layout.inputs + static_cast<uint32_t>(rows * (columns + kKeptGap)) * 2;
  return layout;
}

// Keeps inputs, 8 columns a thread, 4 threads a group of scales; kQuantize: rounded and interleaved. For the whole block.
template <bool kQuantize>
__device__ void keep_inputs(const bf16* x, int64_t stride, int rows, int columns, bf16* to) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int pieces = columns / 8;
  for (int first = thread / kWarp * kWarp; first < rows * pieces; first += static_cast<int>(blockDim.x)) {
    const int i = first + thread % kWarp;
    const bool there = i < rows * pieces;
    const int row = there ? i / pieces : 0;
    const int column = (there ? i % pieces : 0) * 8;
    uint4 v = load_again(x + row * stride + column);
    if constexpr (kQuantize) {
      float f[8];
      float amax = widen_eight(v, f);
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      v = round_eight(f, e8m0_value(fp8_scale_bits(amax)));
    }
    if (there) *reinterpret_cast<uint4*>(to + row * (columns + kKeptGap) + column) = v;
  }
}

// The sums of a half panel and a segment some of whose scales need two factors: those are rare, and the weights are read again.
__device__ void multiply_again(const WeightView& w, const HalfPanel& half, int first, int last, int lane, const bf16* row,
                               float (&c)[1][4]) {
  constexpr WeightFormat kFormat = WeightFormat::kFp8;
  const WeightPanel<kFormat> panel(w, half.first_row, half.last_row, lane);
#pragma unroll
  for (float& v : c[0]) v = 0;
#pragma unroll 1
  for (int at = 0; first + at < last; at += chunk_columns(kFormat)) {
    HalfChunk chunk;
    load_half<kFormat>(panel, first + at, lane, chunk);
    add_scaled<kFormat, true, true>(
        chunk, chunk.scales,
        [&](int, int pair) { return row != nullptr ? load_again(row + at + pair * 8) : make_uint4(0, 0, 0, 0); }, c);
  }
}

// The quads that a warp asks for: those of its segments, panel after panel (RingRequests).
template <WeightFormat kFormat>
class Quads {
 public:
  __device__ Quads(const ProductArgs& args, const StreamGrid& grid, int panel, int step, int own, int lane)
      : args_(args), grid_(grid), panel_(panel), step_(step), own_(own), lane_(lane) {}

  __device__ int operator()(RingRows<kFormat>& weights) {
    const auto columns = static_cast<int>(args_.outputs[0].weight.in);
    if (column_ >= 0) {
      int behind = kQuadColumns<kFormat>;
      if ((column_ + behind) % kSegment == 0) behind += (grid_.warps - 1) * kSegment;
      column_ += behind;
      if (column_ < columns) {
        weights.skip(behind);
      } else {
        panel_ += step_;
        column_ = -1;
      }
    }
    if (panel_ >= grid_.panels) return 0;
    if (column_ < 0) {
      column_ = own_ * kSegment;
      const HalfPanel panel = panel_of(grid_, 0, panel_);
      weights = {args_.outputs[panel.which].weight, panel, column_, lane_};
    }
    return min(kQuadColumns<kFormat>, columns - column_) / kStageColumns<kFormat>;
  }

 private:
  const ProductArgs& args_;
  const StreamGrid& grid_;
  int panel_, step_, own_, lane_;
  int column_ = -1;  // none of the panel yet
};

// Grid: blocks, of which each has every blocks-th panel, its teams in turn. Inputs of FP8 are rounded.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kMostWarps* kWarp, 2)
    streamed_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ StreamGrid grid) {
  if (!args.alone) let_next_begin();
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr bool kQuantize = kFormat == WeightFormat::kFp8;
  auto* memory = dynamic_shared<uint8_t>();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int team = warp / grid.warps;
  const int own = warp % grid.warps;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto rows = static_cast<int>(args.rows);
  const auto columns = static_cast<int>(args.outputs[0].weight.in);
  // Blocks read side by side, and those with a panel more than others come first, on different multiprocessors.
  const int first_panel = static_cast<int>(blockIdx.x) + team * grid.blocks;
  const int step = grid.blocks * grid.teams;
  const uint32_t ring = shared_address(memory) + static_cast<uint32_t>(warp) * kRingBytes;
  Quads<kFormat> quads(args, grid, first_panel, step, own, lane);
  RingRequests<kFormat> requests;
  requests.begin(ring, lane, quads);
  wait_for_earlier();
  if (args.alone) let_next_begin();

  const StreamLayout layout = layout_of(grid, rows, columns);
  const auto segments = static_cast<uint32_t>(grid.segments);
  float* sums = reinterpret_cast<float*>(memory + layout.sums) + static_cast<uint32_t>(team) * 2 * segments * layout.part;
  float* next_sums = sums + segments * layout.part;
  auto* kept = reinterpret_cast<bf16*>(memory + layout.inputs);
  keep_inputs<kQuantize>(args.x, args.x_stride, rows, columns, kept);
  __syncthreads();
  for (int number = first_panel; number < grid.panels; number += step) {
    const HalfPanel panel = panel_of(grid, 0, number);
    for (int segment = own; segment < grid.segments; segment += grid.warps) {
      const int first = segment * kSegment;
      const int last = min(first + kSegment, columns);
      const bf16* row = g < rows ? kept + g * (columns + kKeptGap) + first + t * (kChunk / 4) : nullptr;
      float c[1][4] = {};
      uint32_t all_scales = 0;
#pragma unroll 1
      for (int begin = first; begin < last; begin += kQuadColumns<kFormat>) {
#pragma unroll
        for (int stage = 0; stage < kRingStages; ++stage) {
          const int at = begin - first + stage * kStageColumns<kFormat>;
          wait_copies<kRingStages - 2>();
          __syncwarp();  // lanes copy for each other; all have read the stage before
          requests.before(ring, stage, lane, quads);
          if (first + at >= last) continue;
          RingStage now;
          now.load<kFormat>(ring, stage, lane);
          all_scales |= now.scales;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const auto inputs = [&](int, int pair) {
              return row != nullptr ? load_again(row + at + half * kChunk + pair * 8) : make_uint4(0, 0, 0, 0);
            };
            const uint32_t byte = now.scale(half, lane);
            const uint32_t both[2] = {byte, byte};
            add_scaled<kFormat, kQuantize, false>(now.chunks[half], both, inputs, c);
          }
        }
      }
      if constexpr (kFormat == WeightFormat::kFp8) {
        if ((all_scales & 0x80808080u) != 0)  // some need two factors, or nearly so
          multiply_again(args.outputs[panel.which].weight, panel, first, last, lane, row, c);
      }
      float* part = sums + static_cast<uint32_t>(segment) * layout.part;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (t * 2 + i % 2 < rows) part[(t * 2 + i % 2) * kRowStride + g + i / 2 * 8] = c[0][i];
      }
    }
    // Those that are here have read the sums of the panel before.
    if (grid.warps > 1) {
      named_barrier(1 + team, grid.warps * kWarp);
    } else {
      __syncwarp();
    }
    const int64_t out = args.outputs[panel.which].weight.out;
    for (int i = own * kWarp + lane; i < rows * kHalfPanelRows; i += grid.warps * kWarp) {
      const int input = i / kHalfPanelRows;
      const int weight_row = i % kHalfPanelRows;
      if (panel.first_row + weight_row > panel.last_row) continue;
      const float* p = sums + input * kRowStride + weight_row;
      float total = p[0];
#pragma unroll 8
      for (uint32_t s = 1; s < segments; ++s) total += p[s * layout.part];
      store_product(args, panel.which, input * out + panel.first_row + weight_row, total);
    }
    float* used = sums;
    sums = next_sums;
    next_sums = used;
  }
}

StreamGrid grid_of(const ProductArgs& args) {
  StreamGrid grid{PanelGrid(args)};
  grid.segments = static_cast<int>(segment_count(args.outputs[0].weight.in));
  const auto columns = static_cast<int>(args.outputs[0].weight.in);
  // Teams of the size with which the busiest warp has the fewest columns, the larger of equals.
  int64_t least = INT64_MAX;
  StreamGrid best = grid;
  for (int rounds = 1; rounds <= grid.segments; ++rounds) {
    grid.warps = (grid.segments + rounds - 1) / rounds;
    if (grid.warps > kMostWarps) continue;
    grid.teams =
        std::clamp((grid.panels + 2 * kMultiprocessors - 1) / (2 * kMultiprocessors), 1, std::min(kMostWarps / grid.warps, 8));
    const auto shared = layout_of(grid, static_cast<int>(args.rows), columns).bytes;
    const int at_once = std::min(kWarpsAtOnce / (grid.warps * grid.teams), static_cast<int>(std::max(kMostShared / shared, 1u)));
    grid.blocks = std::min(kMultiprocessors * at_once, (grid.panels + grid.teams - 1) / grid.teams);
    const int64_t turns = (grid.panels + grid.blocks * grid.teams - 1) / (grid.blocks * grid.teams);
    const int64_t busiest = turns * std::min(rounds * kSegment, columns);
    if (shared <= kMostShared && busiest < least) least = busiest, best = grid;
  }
  return best;
}

template <WeightFormat kFormat>
void launch(const ProductArgs& args, LaunchStream& stream) {
  const StreamGrid grid = grid_of(args);
  const uint32_t shared = layout_of(grid, static_cast<int>(args.rows), static_cast<int>(args.outputs[0].weight.in)).bytes;
  stream.launch(streamed_kernel<kFormat>, static_cast<unsigned>(grid.blocks),
                static_cast<unsigned>(grid.warps * grid.teams * kWarp), shared, args, grid);
}

}  // namespace

// Where they are faster: matrices of more than some megabytes, whose lines and words of scales are whole.
bool takes_streamed_products(const ProductArgs& args, WeightFormat format) {
  constexpr int64_t kEnough = 512;                                               // half panels times segments: 4 MiB of FP8
  if (args.rows == 0 || args.rows > kMostRows || args.groups > 1) return false;  // groups: others are faster
  if (!(format == WeightFormat::kFp8 ? fits_rings<WeightFormat::kFp8>(args) : fits_rings<WeightFormat::kBf16>(args)))
    return false;
  int64_t rows = 0;
  for (int i = 0; i < args.output_count; ++i) rows += args.outputs[i].weight.out;
  if (rows / kHalfPanelRows * segment_count(args.outputs[0].weight.in) < kEnough) return false;
  return grid_of(args).blocks > 0;
}

void multiply_fp8_quantized_streamed(const ProductArgs& args, LaunchStream& stream) { launch<WeightFormat::kFp8>(args, stream); }
void multiply_bf16_streamed(const ProductArgs& args, LaunchStream& stream) { launch<WeightFormat::kBf16>(args, stream); }

}  // namespace deepinfer::cuda
