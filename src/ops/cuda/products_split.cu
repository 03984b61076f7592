// Products of steps of some rows: too many for each panel of weight rows to read all inputs, too few to fill the device with
// panels that are larger. A block has one segment of the columns: its inputs stay in shared memory while warps bring panels of 16
// weight rows after each other straight to their registers. So weights are read once for up to 64 rows, and inputs a few times.
// The sums of the segments go to memory, in practice to the second-level cache, and a second kernel adds them. Chains and order
// of the sums are those of fragments.cuh and segments.cuh.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/half_panels.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/products.h"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kInputStride = kSegment + 8;  // bf16, of an input row in shared memory: no two lanes of a load meet in a bank
constexpr int kMostTiles = 8;               // of eight rows that a block has
constexpr int kAddThreads = 128;            // of a block of the second kernel

// Of a block, alone on its multiprocessor: sums of more tiles of eight rows are more registers.
template <int kTiles>
constexpr int kWarps = kTiles > 4   ? 8
                       : kTiles > 2 ? 12
                                    : 16;

struct SplitGrid : PanelGrid {
  int segments = 0;
  int blocks = 0;  // that share the panels of a group and segment
  int input_blocks = 0;
  int tiles = 0;  // of eight rows, of all input blocks

  // Parts of 16 weight rows, eight rows and a segment lie as warps have their sums, a quadruple a lane. Of one segment:
  __host__ __device__ int64_t part_tiles() const { return int64_t{groups} * panels * tiles; }
};

__device__ WeightPanel<WeightFormat::kFp8> rows_of(const ProductArgs& args, const SplitGrid& grid, int group, int number,
                                                   int lane) {
  const HalfPanel panel = panel_of(grid, group, number);
  return {args.outputs[panel.which].weight, panel.first_row, panel.last_row, lane};
}

// A segment of `count` input rows, with zeros behind them and behind the last column; kQuantize: rounded and in order as by
// quantize_rows, 8 columns a thread, 4 threads a group of scales. For the whole block.
template <bool kQuantize, int kTiles>
__device__ void bring_inputs(const bf16* x, int64_t stride, int count, int first, int columns, bf16* to) {
  constexpr int kPieces = kSegment / 8;
  constexpr int kThreads = kWarps<kTiles> * kWarp;
  constexpr int kOwn = (kTiles * 8 * kPieces + kThreads - 1) / kThreads;  // of a thread
  static_assert(kThreads % kPieces == 0);
  uint4 v[kOwn];
  const auto row = [](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / kPieces; };
  const int at = static_cast<int>(threadIdx.x) % kPieces * 8;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    v[i] = row(i) < count && first + at < columns ? load_again(x + row(i) * stride + first + at) : make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if constexpr (kQuantize) {
      float f[8];
      float amax = widen_eight(v[i], f);
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      v[i] = round_eight(f, e8m0_value(fp8_scale_bits(amax)));
    }
    if (row(i) < kTiles * 8) *reinterpret_cast<uint4*>(to + row(i) * kInputStride + at) = v[i];
  }
}

// The sums of a panel and a segment some of whose scales need two factors: those are rare, and the panel is read again.
template <bool kInterleaved, int kTiles>
__device__ void multiply_again(const WeightPanel<WeightFormat::kFp8>& panel, int first, int lane, const bf16* own,
                               float (&c)[kTiles][4]) {
  constexpr int kChunk = chunk_columns(WeightFormat::kFp8);
#pragma unroll
  for (auto& tile : c) {
#pragma unroll
    for (float& v : tile) v = 0;
  }
#pragma unroll 1
  for (int at = 0; at < kSegment; at += kChunk) {
    HalfChunk chunk;
    load_half<WeightFormat::kFp8>(panel, first + at, lane, chunk);
    const bool inside = first + at + lane % 4 * (kChunk / 4) < panel.columns;
    const uint32_t scales[2] = {inside ? chunk.scales[0] : 127, inside ? chunk.scales[1] : 127};
    add_scaled<WeightFormat::kFp8, kInterleaved, true>(
        chunk, scales, [&](int tile, int pair) { return load_again(own + tile * 8 * kInputStride + at + pair * 8); }, c);
  }
}

// What a block has to do.
struct SplitWork {
  int group, segment, first_tile;
  int count;       // input rows
  int begin, end;  // panels
};

template <int kTiles>
constexpr int kAhead = kTiles > 4 ? 8 : 4;  // chunks of a warp on their way

// A warp's panels, of which the first chunks of the first are on their way. kWhole: all columns of the segment exist; else chunks
// behind the last one are multiplied by zeros.
template <bool kInterleaved, int kTiles, bool kWhole>
__device__ void multiply_panels(const ProductArgs& args, const SplitGrid& grid, const SplitWork& work, int number, int lane,
                                const bf16* inputs, WeightPanel<WeightFormat::kFp8>& panel, HalfChunk (&chunks)[kAhead<kTiles>],
                                float4* parts) {
  constexpr WeightFormat kFormat = WeightFormat::kFp8;
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kChunks = kSegment / kChunk;
  static_assert(kChunks % kAhead<kTiles> == 0);
  const int first = work.segment * kSegment;
  const int own_column = lane % 4 * (kChunk / 4);
  const bf16* own = inputs + lane / 4 * kInputStride + own_column;
  auto whole = panel.whole_segment(first, lane);
  for (; number < work.end; number += kWarps<kTiles>) {
    const int next = number + kWarps<kTiles>;
    float c[kTiles][4] = {};
    uint32_t largest = 0;  // scale
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      HalfChunk& chunk = chunks[i % kAhead<kTiles>];
      const bool inside = kWhole || first + i * kChunk + own_column < panel.columns;
      const uint32_t scales[2] = {inside ? chunk.scales[0] : 127, inside ? chunk.scales[1] : 127};
      largest = max(largest, max(scales[0], scales[1]));
      add_scaled<kFormat, kInterleaved, false>(
          chunk, scales, [&](int tile, int pair) { return load_again(own + tile * 8 * kInputStride + i * kChunk + pair * 8); },
          c);
      const int ahead = i + kAhead<kTiles>;
      if (ahead == kChunks && next < work.end) {
        panel = rows_of(args, grid, work.group, next, lane);
        whole = panel.whole_segment(first, lane);
      }
      if (ahead < kChunks || next < work.end) {
        if constexpr (kWhole) {
          load_half<kFormat>(panel, whole, ahead % kChunks, chunk);
        } else {
          load_half<kFormat>(panel, first + ahead % kChunks * kChunk, lane, chunk);
        }
      }
    }
    if (__any_sync(0xffffffffu, largest > kMostScale<kFormat>))
      multiply_again<kInterleaved, kTiles>(rows_of(args, grid, work.group, number, lane), first, lane, own, c);
    const int64_t tile_number = (int64_t{work.group} * grid.panels + number) * grid.tiles + work.first_tile;
    float4* part = parts + (work.segment * grid.part_tiles() + tile_number) * kWarp + lane;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * 8 < work.count) part[tile * kWarp] = make_float4(c[tile][0], c[tile][1], c[tile][2], c[tile][3]);
    }
  }
}

// Grid: blocks that share the panels of a segment; segments; groups times blocks of 8 kTiles input rows. Warps of a block have
// every kWarps<kTiles>-th of its panels, and ask for the first before their turn. Shared memory: inputs [8 kTiles][kInputStride].
template <bool kInterleaved, bool kQuantize, int kTiles>
__global__ void __launch_bounds__(kWarps<kTiles>* kWarp, 1)
    split_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ SplitGrid grid, float4* parts) {
  let_next_begin();
  auto* inputs = dynamic_shared<bf16>();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto block = static_cast<int>(blockIdx.x);
  SplitWork work;
  work.group = static_cast<int>(blockIdx.z) % grid.groups;
  work.segment = static_cast<int>(blockIdx.y);
  work.first_tile = static_cast<int>(blockIdx.z) / grid.groups * kTiles;
  work.count = static_cast<int>(min(args.rows - work.first_tile * 8, static_cast<int64_t>(kTiles * 8)));
  work.begin = block * grid.panels / grid.blocks;
  work.end = (block + 1) * grid.panels / grid.blocks;
  const int number = work.begin + warp;
  const int first = work.segment * kSegment;
  auto panel = rows_of(args, grid, work.group, min(number, grid.panels - 1), lane);
  HalfChunk chunks[kAhead<kTiles>];
  if (number < work.end) {
#pragma unroll
    for (int i = 0; i < kAhead<kTiles>; ++i)
      load_half<WeightFormat::kFp8>(panel, first + i * chunk_columns(WeightFormat::kFp8), lane, chunks[i]);
  }
  wait_for_earlier();
  bring_inputs<kQuantize, kTiles>(args.x + work.first_tile * 8 * args.x_stride + work.group * args.x_group, args.x_stride,
                                  work.count, first, panel.columns, inputs);
  __syncthreads();
  if (first + kSegment <= panel.columns) {
    multiply_panels<kInterleaved, kTiles, true>(args, grid, work, number, lane, inputs, panel, chunks, parts);
  } else {
    multiply_panels<kInterleaved, kTiles, false>(args, grid, work, number, lane, inputs, panel, chunks, parts);
  }
}

// A warp a tile of 16 weight rows and eight input rows.
__global__ void __launch_bounds__(kAddThreads)
    add_segments_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ SplitGrid grid, const float4* parts) {
  take_turn();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto tile = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  if (tile >= grid.part_tiles()) return;
  const float4* part = parts + int64_t{tile} * kWarp + lane;
  const int64_t step = grid.part_tiles() * kWarp;
  float4 total = *part;
#pragma unroll 8
  for (int segment = 1; segment < grid.segments; ++segment) {
    const float4 v = part[segment * step];
    total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
  }
  const int panel_number = tile / grid.tiles;
  const HalfPanel panel = panel_of(grid, panel_number / grid.panels, panel_number % grid.panels);
  const int64_t out = args.outputs[panel.which].weight.out;
  const float sums[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t input = tile % grid.tiles * 8 + lane % 4 * 2 + i % 2;
    const int64_t row = panel.first_row + lane / 4 + i / 2 * 8;
    if (input < args.rows && row <= panel.last_row) store_product(args, panel.which, input * out + row, sums[i]);
  }
}

SplitGrid grid_of(const ProductArgs& args, int block_tiles) {
  SplitGrid grid{PanelGrid(args)};
  grid.segments = static_cast<int>(segment_count(args.outputs[0].weight.in));
  grid.tiles = static_cast<int>((args.rows + 7) / 8);
  grid.input_blocks = (grid.tiles + block_tiles - 1) / block_tiles;
  grid.blocks = std::clamp(kMultiprocessors / (grid.segments * grid.groups * grid.input_blocks), 1, grid.panels);
  return grid;
}

// Of a product whose rows are at most those of a launch.
template <bool kInterleaved, bool kQuantize, int kTiles>
void launch(const ProductArgs& args, float* parts, LaunchStream& stream) {
  const SplitGrid grid = grid_of(args, kTiles);
  auto* quadruples = reinterpret_cast<float4*>(parts);
  stream.launch(split_kernel<kInterleaved, kQuantize, kTiles>,
                dim3(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.segments),
                     static_cast<unsigned>(grid.groups * grid.input_blocks)),
                kWarps<kTiles> * kWarp, kTiles * 8 * kInputStride * sizeof(bf16), args, grid, quadruples);
  const int64_t threads = grid.part_tiles() * kWarp;
  stream.launch(add_segments_kernel, static_cast<unsigned>((threads + kAddThreads - 1) / kAddThreads), kAddThreads, 0, args, grid,
                static_cast<const float4*>(quadruples));
}

int64_t parts_of(const ProductArgs& args) {
  const SplitGrid grid = grid_of(args, kMostTiles);
  return int64_t{grid.groups} * grid.panels * grid.segments;
}

template <bool kInterleaved, bool kQuantize, int kTiles>
void multiply(const ProductArgs& args, float* parts, LaunchStream& stream) {
  const int64_t most = split_pass_rows(parts_of(args));
  for (int64_t begin = 0; begin < args.rows; begin += most) {
    ProductArgs pass = args;
    pass.x = args.x + begin * args.x_stride;
    pass.rows = std::min(most, args.rows - begin);
    for (int i = 0; i < args.output_count; ++i)
      pass.outputs[i].y = static_cast<bf16*>(args.outputs[i].y) + begin * args.outputs[i].weight.out;
    launch<kInterleaved, kQuantize, kTiles>(pass, parts, stream);
  }
}

// kQuantize: blocks quantise their inputs themselves.
template <bool kQuantize>
void multiply_few(const ProductArgs& args, float* parts, LaunchStream& stream) {
  if (args.rows <= 16) return multiply<kQuantize, kQuantize, 2>(args, parts, stream);
  multiply<kQuantize, kQuantize, 4>(args, parts, stream);
}

constexpr int64_t kFew = 32;  // rows of multiply_few: every block quantises them sooner than another kernel would

// Whether some steps take them: sums of segments have room, and there is work for every multiprocessor.
bool may_split(const ProductArgs& args) {
  if (args.rows == 0 || args.output_count == 0 || args.fp32) return false;
  const int64_t parts = parts_of(args);
  return segment_count(args.outputs[0].weight.in) > 1 && parts >= kMultiprocessors && split_pass_rows(parts) > 0;
}

}  // namespace

// As measured on an H200. Few rows are waited for elsewhere, unless the matrix is large and its panels are few; of many, the
// other kernels have blocks enough, the sooner the more weight rows there are.
bool takes_split_products(const ProductArgs& args) {
  constexpr int64_t kLeastRows = 9;
  constexpr int64_t kLarge = 4608;  // parts, 36 MiB of weights
  if (args.rows < kLeastRows || args.rows > kMostSplitRows || mixed_product(args).pays || !may_split(args)) return false;
  const int64_t parts = parts_of(args);
  const int64_t panels = parts / segment_count(args.outputs[0].weight.in) * kHalfPanelRows / 256;
  return panels < (args.rows <= 128 ? 96 : 12) && (args.rows > kFewRows || parts >= kLarge);
}

int64_t split_parts(const ProductArgs& args) { return may_split(args) ? split_scratch(args.rows, parts_of(args)) : 0; }

void multiply_fp8_quantized_split(const ProductArgs& args, bf16* scratch, float* parts, LaunchStream& stream) {
  if (args.rows <= kFew) return multiply_few<true>(args, parts, stream);
  const int64_t in = args.outputs[0].weight.in;
  ProductArgs ordered = args;
  ordered.x = scratch;
  ordered.x_group = in;
  ordered.x_stride = args.groups * in;
  quantize_rows(args.x, args.rows * args.groups, in, InputOrder::kLanes, scratch, stream);
  multiply<true, false, kMostTiles>(ordered, parts, stream);
}

void multiply_fp8_split(const ProductArgs& args, float* parts, LaunchStream& stream) {
  if (args.rows <= kFew) return multiply_few<false>(args, parts, stream);
  multiply<false, false, kMostTiles>(args, parts, stream);
}

}  // namespace deepinfer::cuda
