#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/segments.cuh"
#include "ops/cuda/tiled.cuh"
#include "ops/cuda/wide.cuh"

namespace deepinfer::cuda {
namespace {

// Grid: panels of all outputs, blocks of input rows, groups.
template <WeightFormat kFormat, bool kInterleaved, int kTiles>
__global__ void __launch_bounds__(512, 1) product_kernel(const __grid_constant__ ProductArgs args) {
  let_next_begin();
  auto* parts = dynamic_shared<float>();
  int64_t panel = blockIdx.x;
  const int which = find_output(args, kPanelRows, panel);
  const WeightView& w = args.outputs[which].weight;
  const int64_t group = blockIdx.z;
  const int64_t group_rows = w.out / args.groups;
  const int64_t first_row = group * group_rows + panel * kPanelRows;
  const int64_t last_row = (group + 1) * group_rows - 1;
  if (args.fetch_bytes > 0 && blockIdx.x < kFetching && threadIdx.x == 0)
    fetch_panel<kFormat>(w, first_row, last_row, args.fetch_bytes);
  wait_for_earlier();
  const int64_t first_input = static_cast<int64_t>(blockIdx.y) * kTiles * 8;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  InputRows<kTiles> x;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t r = first_input + tile * 8 + lane / 4;
    x.row[tile] = r < args.rows ? args.x + r * args.x_stride + group * args.x_group : nullptr;
  }
  const auto segments = static_cast<int>((w.in + kSegment - 1) / kSegment);
  multiply_segments<kFormat, kInterleaved, kTiles>(w, first_row, last_row, x, warp, static_cast<int>(blockDim.x) / kWarp,
                                                   segments, parts);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * 8 * kPanelRows; i += static_cast<int>(blockDim.x)) {
    const int input = i / kPanelRows;
    const int row = i % kPanelRows;
    if (first_input + input >= args.rows || first_row + row > last_row) continue;
    const float total = sum_parts(parts, segments, kTiles * 8 * kPartStride, input, row);
    store_product(args, which, (first_input + input) * w.out + first_row + row, total);
  }
}

// Grid: blocks of input rows, blocks of kTiledWarps panels of all outputs, groups. Blocks that share weights run together.
template <WeightFormat kFormat, bool kInterleaved>
__global__ void __launch_bounds__(kTiledThreads, 1) tiled_kernel(const __grid_constant__ ProductArgs args) {
  take_turn();
  auto* stages = dynamic_shared<uint4>();
  int64_t block = blockIdx.y;
  const int which = find_output(args, kTiledWarps * kPanelRows, block);
  const WeightView& w = args.outputs[which].weight;
  const int64_t group = blockIdx.z;
  const int64_t group_rows = w.out / args.groups;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first_row = group * group_rows + (block * kTiledWarps + warp) * kPanelRows;
  const int64_t last_row = (group + 1) * group_rows - 1;
  const int64_t first_input = static_cast<int64_t>(blockIdx.x) * kTiledInputs;
  const auto row_of = [&](int i) {
    const int64_t r = first_input + i;
    return r < args.rows ? args.x + r * args.x_stride + group * args.x_group : nullptr;
  };
  float* part = reinterpret_cast<float*>(stages + kStages * kTiledInputs * kMostRowSlots) + warp * kPartFloats;
  const bool active = first_row <= last_row;
  multiply_tiled<kFormat, kInterleaved>(w, first_row, last_row, active, row_of, stages, part);
  __syncwarp();
  if (first_row + lane > last_row) return;
  for (int input = 0; input < kTiledInputs && first_input + input < args.rows; ++input)
    store_product(args, which, (first_input + input) * w.out + first_row + lane, part[input * kPartStride + lane]);
}

// How a step is cut into blocks of the wide kernel: `inputs` rows each, bands of kBand of them, in which blocks that run together
// share weights and inputs.
struct WideGrid {
  static constexpr int kBand = 16;
  int inputs = 0;
  int row_blocks = 0;
  int panels = 0;  // of all outputs, in one group
};

// Grid: panels times blocks of rows, groups.
template <WeightFormat kFormat, bool kInterleaved>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ WideGrid grid) {
  take_turn();
  auto* dynamic = dynamic_shared<uint4>();
  WideShared& s = wide_shared(dynamic);
  const int per_band = WideGrid::kBand * grid.panels;
  const int band = static_cast<int>(blockIdx.x) / per_band;
  const int in_band = static_cast<int>(blockIdx.x) % per_band;
  const int band_blocks = min(WideGrid::kBand, grid.row_blocks - band * WideGrid::kBand);
  int64_t panel = in_band / band_blocks;
  const int64_t first_input = static_cast<int64_t>(band * WideGrid::kBand + in_band % band_blocks) * grid.inputs;
  const int which = find_output(args, kWideRows, panel);
  const WeightView& w = args.outputs[which].weight;
  const int64_t part = blockIdx.y;
  const int64_t part_rows = w.out / args.groups;
  const auto count = static_cast<int>(min(static_cast<int64_t>(grid.inputs), args.rows - first_input));
  wide_begin(s, [&](int i) { return i < count ? args.x + (first_input + i) * args.x_stride + part * args.x_group : nullptr; });
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int64_t block_row = part * part_rows + panel * kWideRows;
  const int64_t last_row = (part + 1) * part_rows - 1;
  if (group == kWideGroups) {
    give_registers<40>();
    with_inputs(count, [&]<int kInputs>() { wide_load<kInputs>(s, static_cast<int>(args.x_group)); });
  } else {
    take_registers<232>();
    const int64_t first_row = block_row + group * kWideGroupRows;
    const WeightPanel<kFormat> rows = wide_panel<kFormat>(w, first_row, last_row);
    with_inputs(count, [&]<int kInputs>() {
      float c[2][kInputs / 8][4];
      wide_multiply<kFormat, kInterleaved, kInputs>(s, rows, group, c);
      const bf16* out = wide_outputs<kInputs>(s, group, c);
      auto* y = static_cast<bf16*>(args.outputs[which].y) + first_input * w.out;
      wide_store(out, group, first_row, last_row, count, [&](int input) { return y + input * w.out; });
    });
  }
}

// Of all outputs, in one group and for one block of input rows.
int64_t panel_blocks(const ProductArgs& args) {
  constexpr int64_t kRows = kTiledWarps * kPanelRows;
  int64_t blocks = 0;
  for (int i = 0; i < args.output_count; ++i) blocks += (args.outputs[i].weight.out / args.groups + kRows - 1) / kRows;
  return blocks;
}

int64_t tiled_blocks(const ProductArgs& args) {
  return panel_blocks(args) * args.groups * ((args.rows + kTiledInputs - 1) / kTiledInputs);
}

template <WeightFormat kFormat, bool kInterleaved>
void launch_tiled(const ProductArgs& args, LaunchStream& stream) {
  const dim3 grid(static_cast<unsigned>((args.rows + kTiledInputs - 1) / kTiledInputs), static_cast<unsigned>(panel_blocks(args)),
                  static_cast<unsigned>(args.groups));
  stream.launch(tiled_kernel<kFormat, kInterleaved>, grid, kTiledThreads, kTiledShared, args);
}

// The number of rows a block takes is the one that should be fastest: a wave of blocks takes about as long as its inputs, and
// kOverhead more for what does not depend on them.
WideGrid wide_grid(const ProductArgs& args) {
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kOverhead = 48;
  WideGrid grid;
  for (int i = 0; i < args.output_count; ++i)
    grid.panels += static_cast<int>((args.outputs[i].weight.out / args.groups + kWideRows - 1) / kWideRows);
  int64_t best = INT64_MAX;
  for (const int inputs : {128, 96, 64, 32}) {
    const int64_t blocks = (args.rows + inputs - 1) / inputs;
    const int64_t waves = (blocks * grid.panels * args.groups + kMultiprocessors - 1) / kMultiprocessors;
    const int64_t cost = waves * (inputs + kOverhead);
    if (cost >= best) continue;
    best = cost;
    grid.inputs = inputs;
    grid.row_blocks = static_cast<int>(blocks);
  }
  return grid;
}

template <WeightFormat kFormat, bool kInterleaved>
void launch_wide(const ProductArgs& args, const WideGrid& grid, LaunchStream& stream) {
  stream.launch(wide_kernel<kFormat, kInterleaved>,
                dim3(static_cast<unsigned>(grid.panels * grid.row_blocks), static_cast<unsigned>(args.groups)), kWideThreads,
                kWideBytes, args, grid);
}

template <WeightFormat kFormat, bool kInterleaved, int kTiles>
void launch(const ProductArgs& args, LaunchStream& stream) {
  int64_t panels = 0;
  for (int i = 0; i < args.output_count; ++i) panels += (args.outputs[i].weight.out / args.groups + kPanelRows - 1) / kPanelRows;
  const int64_t segments = segment_count(args.outputs[0].weight.in);
  const auto shared = static_cast<size_t>(part_floats(segments, kTiles)) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(panels), static_cast<unsigned>((args.rows + kTiles * 8 - 1) / (kTiles * 8)),
                  static_cast<unsigned>(args.groups));
  // Few blocks: more warps each, so that the segments of a panel are read at once.
  constexpr int64_t kFewBlocks = 264;
  const int64_t most_warps = static_cast<int64_t>(grid.x) * grid.y * grid.z < kFewBlocks ? 16 : 8;
  ProductArgs own = args;
  const int64_t bytes = panels * kPanelRows * args.groups * args.outputs[0].weight.in * (kFormat == WeightFormat::kBf16 ? 2 : 1);
  if (stream.overlaps()) own.fetch_bytes = fetch_budget(static_cast<int64_t>(grid.x) * grid.y * grid.z, bytes);
  stream.launch(product_kernel<kFormat, kInterleaved, kTiles>, grid,
                static_cast<unsigned>(segment_warps(segments, most_warps) * kWarp), shared, own);
}

// The number of input tiles a block takes only decides how often weights are read.
template <WeightFormat kFormat, bool kInterleaved>
void multiply(const ProductArgs& args, LaunchStream& stream) {
  constexpr int64_t kMostShared = 220 << 10;
  const int64_t segments = segment_count(args.outputs[0].weight.in);
  const auto fits = [&](int tiles) { return part_floats(segments, tiles) * static_cast<int64_t>(sizeof(float)) <= kMostShared; };
  if (!fits(1)) cuda_failed(__FILE__, __LINE__, "product", "too many columns");
  if constexpr (kFormat == WeightFormat::kBf16) {
    // Blocks with many rows pay once they fill the device.
    constexpr int64_t kEnoughBlocks = 96;
    if (args.rows > 48 && tiled_blocks(args) >= kEnoughBlocks) return launch_tiled<kFormat, kInterleaved>(args, stream);
  }
  if (args.rows > 16 && fits(4)) return launch<kFormat, kInterleaved, 4>(args, stream);
  if (args.rows > 8 && fits(2)) return launch<kFormat, kInterleaved, 2>(args, stream);
  launch<kFormat, kInterleaved, 1>(args, stream);
}

// Whether enough blocks have enough rows for the wide kernel.
bool is_wide(const ProductArgs& args, const WideGrid& grid) {
  constexpr int64_t kRows = 16;
  constexpr int64_t kBlocks = 60;
  return args.rows > kRows && int64_t{grid.panels} * grid.row_blocks * args.groups >= kBlocks;
}

__device__ uint32_t pick(const uint32_t (&words)[4], int i) {
  const uint32_t low = (i & 1) != 0 ? words[1] : words[0];
  const uint32_t high = (i & 1) != 0 ? words[3] : words[2];
  return (i & 2) != 0 ? high : low;
}

// 8 columns a thread; 4 threads a group of scales. `padded`: columns of a row of y.
template <bool kQuantize, InputOrder kOrder>
__global__ void order_kernel(const bf16* x, uint32_t rows, uint32_t columns, uint32_t padded, bf16* y) {
  take_turn();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t row = index / (padded / 8);
  const uint32_t column = index % (padded / 8) * 8;
  const bool inside = row < rows && column < columns;
  const uint4 v =
      inside ? *reinterpret_cast<const uint4*>(x + static_cast<int64_t>(row) * columns + column) : make_uint4(0, 0, 0, 0);
  uint32_t words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (kQuantize) {
    float f[8];
    float amax = widen_eight(v, f);
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    const uint4 rounded = round_eight(f, e8m0_value(fp8_scale_bits(amax)));
    words[0] = rounded.x, words[1] = rounded.y, words[2] = rounded.z, words[3] = rounded.w;
  }
  uint32_t place = column;
  if constexpr (kOrder != InputOrder::kLanes) {
    // The four threads of a chunk that have the same eight of a lane's columns exchange pairs: each gets one pair of each lane.
    constexpr int kStep = kOrder == InputOrder::kWideFp4 ? 4 : 2;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int t = lane / kStep % 4;
    uint32_t out[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint32_t got = __shfl_xor_sync(0xffffffffu, pick(words, t ^ r), r * kStep);
#pragma unroll
      for (int k = 0; k < 4; ++k) out[k] = k == (t ^ r) ? got : out[k];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = out[k];
    constexpr uint32_t kChunk = kStep * 32;
    place = column / kChunk * kChunk + static_cast<uint32_t>(lane % kStep * 32 + t * 8);
  }
  if (row < rows)
    *reinterpret_cast<uint4*>(y + static_cast<int64_t>(row) * padded + place) =
        make_uint4(words[0], words[1], words[2], words[3]);
}

template <bool kQuantize, InputOrder kOrder>
void launch_order(const bf16* x, int64_t rows, int64_t columns, bf16* y, LaunchStream& stream) {
  constexpr int kThreads = 256;
  const int64_t padded = ordered_columns(kOrder, columns);
  const int64_t threads = rows * padded / 8;
  if (threads == 0) return;
  if (threads > INT32_MAX) cuda_failed(__FILE__, __LINE__, "product", "too many inputs");
  stream.launch(order_kernel<kQuantize, kOrder>, static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, x,
                static_cast<uint32_t>(rows), static_cast<uint32_t>(columns), static_cast<uint32_t>(padded), y);
}

}  // namespace

void quantize_rows(const bf16* x, int64_t rows, int64_t columns, InputOrder order, bf16* y, LaunchStream& stream) {
  if (order == InputOrder::kLanes) launch_order<true, InputOrder::kLanes>(x, rows, columns, y, stream);
  if (order == InputOrder::kWideFp8) launch_order<true, InputOrder::kWideFp8>(x, rows, columns, y, stream);
  if (order == InputOrder::kWideFp4) launch_order<true, InputOrder::kWideFp4>(x, rows, columns, y, stream);
}

void multiply_fp8_quantized(const ProductArgs& args, bf16* scratch, LaunchStream& stream) {
  if (args.rows == 0 || args.output_count == 0) return;
  if (const WidenedProduct widened = widened_product(args); widened.pays)
    return multiply_fp8_widened(args, widened, true, scratch, stream);
  if (const MixedProduct mixed = mixed_product(args); mixed.pays) return multiply_fp8_mixed(args, mixed, true, scratch, stream);
  const int64_t in = args.outputs[0].weight.in;
  const StagedProduct staged = staged_product(args);
  const WideGrid grid = wide_grid(args);
  const bool wide = !staged.pays && is_wide(args, grid);
  const InputOrder order = staged.pays || wide ? InputOrder::kWideFp8 : InputOrder::kLanes;
  ProductArgs ordered = args;
  ordered.x = scratch;
  ordered.x_group = ordered_columns(order, in);
  ordered.x_stride = args.groups * ordered.x_group;
  quantize_rows(args.x, args.rows * args.groups, in, order, scratch, stream);
  if (staged.pays) return multiply_fp8_staged(ordered, staged, true, stream);
  if (wide) return launch_wide<WeightFormat::kFp8, true>(ordered, grid, stream);
  multiply<WeightFormat::kFp8, true>(ordered, stream);
}

void multiply_fp8(const ProductArgs& args, bf16* scratch, LaunchStream& stream) {
  if (args.rows == 0 || args.output_count == 0) return;
  if (const WidenedProduct widened = widened_product(args); widened.pays)
    return multiply_fp8_widened(args, widened, false, scratch, stream);
  if (const MixedProduct mixed = mixed_product(args); mixed.pays) return multiply_fp8_mixed(args, mixed, false, scratch, stream);
  const StagedProduct staged = staged_product(args);
  const WideGrid grid = wide_grid(args);
  if (!staged.pays && !is_wide(args, grid)) return multiply<WeightFormat::kFp8, false>(args, stream);
  const int64_t in = args.outputs[0].weight.in;
  ProductArgs ordered = args;
  ordered.x = scratch;
  ordered.x_group = ordered_columns(InputOrder::kWideFp8, in);
  ordered.x_stride = args.groups * ordered.x_group;
  launch_order<false, InputOrder::kWideFp8>(args.x, args.rows * args.groups, in, scratch, stream);
  if (staged.pays) return multiply_fp8_staged(ordered, staged, false, stream);
  launch_wide<WeightFormat::kFp8, false>(ordered, grid, stream);
}

void multiply_bf16(const ProductArgs& args, LaunchStream& stream) {
  if (args.rows == 0 || args.output_count == 0) return;
  if (const MixedProduct mixed = mixed_bf16_product(args); mixed.pays && args.room != nullptr)
    return multiply_bf16_mixed(args, mixed, stream);
  multiply<WeightFormat::kBf16, false>(args, stream);
}

}  // namespace deepinfer::cuda
