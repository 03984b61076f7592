// Products of few rows, where time is what a block waits for. Small matrices go in panels of 16 rows, so that more
// multiprocessors read, and every warp asks for a whole segment before its turn. Large ones go as in products.cu, but all blocks
// at once. One or two rows are quantised by the warps that multiply them. Chains and order of the sums are those of fragments.cuh
// and segments.cuh.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/half_panels.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/segments.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMostQuantized = 2;  // rows that warps quantise themselves
constexpr int kSmallWarps = 16;    // of a block, alone on its multiprocessor
constexpr int kLargeWarps = 8;     // of a block, two at once

// A segment of `rows` rows, quantised and interleaved, 16 columns a lane; two lanes have a group of scales. For the whole warp.
__device__ void quantize_segment(const bf16* x, int64_t stride, int rows, int first, int columns, bf16* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = first + lane * 16;
  __syncwarp();  // what was there has been used
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    uint4 v[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      v[half] = column < columns ? load_again(x + r * stride + column + half * 8) : make_uint4(0, 0, 0, 0);
    float f[8];
    float amax = fmaxf(widen_eight(v[1], f), widen_eight(v[0], f));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    const float scale = e8m0_value(fp8_scale_bits(amax));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      widen_eight(v[half], f);
      *reinterpret_cast<uint4*>(to + r * kSegment + lane * 16 + half * 8) = round_eight(f, scale);
    }
  }
  __syncwarp();
}

// Where the inputs lie that a warp quantises: behind the sums of `segments` segments.
template <int kTiles>
__device__ bf16* quantized_room(float* parts, int segments, int warp) {
  return reinterpret_cast<bf16*>(parts + segments * kTiles * 8 * kPartStride) + warp * kMostQuantized * kSegment;
}

// Grid: panels of all outputs; with `apart` segments, else 1; groups. A warp has every warps-th segment; with `apart` the block,
// one warp, has one, and its sums are the output [segments][rows][weight rows]. Shared memory: parts as of segments.cuh, then
// with kQuantize the warps' inputs [warps][kMostQuantized][kSegment].
template <WeightFormat kFormat, bool kInterleaved, bool kQuantize, int kTiles>
__global__ void __launch_bounds__(kSmallWarps* kWarp, 1) small_kernel(const __grid_constant__ ProductArgs args, bool apart) {
  let_next_begin();
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kChunks = kSegment / kChunk;
  constexpr int kAhead = kTiles == 1 ? 8 : 4;  // chunks on their way
  static_assert(kChunks % kAhead == 0);
  auto* parts = reinterpret_cast<float*>(dynamic_shared<uint4>());
  int64_t panel_number = blockIdx.x;
  const int which = find_output(args, kHalfPanelRows, panel_number);
  const WeightView& w = args.outputs[which].weight;
  const int64_t group = blockIdx.z;
  const int64_t group_rows = w.out / args.groups;
  const int64_t first_row = group * group_rows + panel_number * kHalfPanelRows;
  const int64_t last_row = (group + 1) * group_rows - 1;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto columns = static_cast<int>(w.in);
  const int segments = (columns + kSegment - 1) / kSegment;
  const int own_segments = apart ? 1 : segments;  // of the block
  const int first_segment = apart ? static_cast<int>(blockIdx.y) : warp;
  const WeightPanel<kFormat> panel(w, first_row, last_row, lane);
  HalfChunk chunks[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_half<kFormat>(panel, first_segment * kSegment + i * kChunk, lane, chunks[i]);
  wait_for_earlier();
  const bf16* x = args.x + group * args.x_group;
  const auto rows = static_cast<int>(args.rows);
  bf16* quantized = quantized_room<kTiles>(parts, own_segments, warp);
  for (int segment = first_segment; segment < segments; segment += apart ? segments : warps) {
    const int first = segment * kSegment;
    if constexpr (kQuantize) quantize_segment(x, args.x_stride, rows, first, columns, quantized);
    const bool more = !apart && segment + warps < segments;
    float c[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int column = first + i * kChunk;
      if (column < columns) {
        const int at = column + t * (kChunk / 4);
        const auto inputs = [&](int tile, int pair) {
          const int r = tile * 8 + g;
          if (r >= rows || at >= columns) return make_uint4(0, 0, 0, 0);
          return load_again((kQuantize ? quantized + r * kSegment - first : x + r * args.x_stride) + at + pair * 8);
        };
        add_half<kFormat, kInterleaved>(chunks[i % kAhead], at < columns, inputs, c);
      }
      if (i + kAhead < kChunks) {
        load_half<kFormat>(panel, column + kAhead * kChunk, lane, chunks[i % kAhead]);
      } else if (more) {
        load_half<kFormat>(panel, (segment + warps) * kSegment + (i + kAhead - kChunks) * kChunk, lane, chunks[i % kAhead]);
      }
    }
    float* part = parts + (apart ? 0 : segment) * kTiles * 8 * kPartStride;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) part[(tile * 8 + t * 2 + i % 2) * kPartStride + g + i / 2 * 8] = c[tile][i];
    }
  }
  __syncthreads();
  const int64_t out = apart ? blockIdx.y * args.rows * w.out : 0;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kHalfPanelRows; i += static_cast<int>(blockDim.x)) {
    const int input = i / kHalfPanelRows;
    const int row = i % kHalfPanelRows;
    if (first_row + row > last_row) continue;
    store_product(args, which, out + input * w.out + first_row + row,
                  sum_parts(parts, own_segments, kTiles * 8 * kPartStride, input, row));
  }
}

// As product_kernel of products.cu. Grid: panels of all outputs, groups. Shared memory: as above.
template <bool kInterleaved, bool kQuantize, int kTiles>
__global__ void __launch_bounds__(kLargeWarps* kWarp, 2) large_kernel(const __grid_constant__ ProductArgs args) {
  let_next_begin();
  constexpr WeightFormat kFormat = WeightFormat::kFp8;
  auto* parts = reinterpret_cast<float*>(dynamic_shared<uint4>());
  int64_t panel_number = blockIdx.x;
  const int which = find_output(args, kPanelRows, panel_number);
  const WeightView& w = args.outputs[which].weight;
  const int64_t group = blockIdx.y;
  const int64_t group_rows = w.out / args.groups;
  const int64_t first_row = group * group_rows + panel_number * kPanelRows;
  const int64_t last_row = (group + 1) * group_rows - 1;
  if (args.fetch_bytes > 0 && threadIdx.x == 0) fetch_panel<kFormat>(w, first_row, last_row, args.fetch_bytes);
  wait_for_earlier();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto columns = static_cast<int>(w.in);
  const int segments = (columns + kSegment - 1) / kSegment;
  const bf16* x = args.x + group * args.x_group;
  const auto rows = static_cast<int>(args.rows);
  bf16* quantized = quantized_room<kTiles>(parts, segments, warp);
  const WeightPanel<kFormat> panel(w, first_row, last_row, lane);
  for (int segment = warp; segment < segments; segment += warps) {
    if constexpr (kQuantize) quantize_segment(x, args.x_stride, rows, segment * kSegment, columns, quantized);
    InputRows<kTiles> inputs;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int r = tile * 8 + lane / 4;
      inputs.row[tile] = r >= rows ? nullptr : kQuantize ? quantized + (r - segment) * kSegment : x + r * args.x_stride;
    }
    float c[2][kTiles][4] = {};
    multiply_segment<kFormat, kInterleaved, kTiles>(panel, inputs, segment, lane, c);
    store_part<kTiles>(parts + static_cast<int64_t>(segment) * kTiles * 8 * kPartStride, lane, c);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPanelRows; i += static_cast<int>(blockDim.x)) {
    const int input = i / kPanelRows;
    const int row = i % kPanelRows;
    if (first_row + row > last_row) continue;
    store_product(args, which, input * w.out + first_row + row, sum_parts(parts, segments, kTiles * 8 * kPartStride, input, row));
  }
}

int64_t panels_of(const ProductArgs& args, int64_t panel_rows) {
  int64_t panels = 0;
  for (int i = 0; i < args.output_count; ++i) panels += (args.outputs[i].weight.out / args.groups + panel_rows - 1) / panel_rows;
  return panels;
}

int64_t segments_of(const ProductArgs& args) { return segment_count(args.outputs[0].weight.in); }

// Whether all blocks of the small kernel are on the device at once.
bool is_small(const ProductArgs& args) {
  constexpr int64_t kMultiprocessors = 132;
  const int64_t at_once = kSmallWarps / segment_warps(segments_of(args), kSmallWarps);
  return panels_of(args, kHalfPanelRows) * args.groups <= kMultiprocessors * at_once;
}

size_t shared_bytes(int64_t segments, int tiles, int64_t quantizing_warps) {
  return static_cast<size_t>(part_floats(segments, tiles)) * sizeof(float) +
         static_cast<size_t>(quantizing_warps * kMostQuantized * kSegment) * sizeof(bf16);
}

template <WeightFormat kFormat, bool kInterleaved, bool kQuantize, int kTiles>
void launch_small(const ProductArgs& args, bool apart, LaunchStream& stream) {
  const int64_t segments = segments_of(args);
  const int64_t warps = apart ? 1 : segment_warps(segments, kSmallWarps);
  const dim3 grid(static_cast<unsigned>(panels_of(args, kHalfPanelRows)), apart ? static_cast<unsigned>(segments) : 1,
                  static_cast<unsigned>(args.groups));
  stream.launch(small_kernel<kFormat, kInterleaved, kQuantize, kTiles>, grid, static_cast<unsigned>(warps * kWarp),
                shared_bytes(apart ? 1 : segments, kTiles, kQuantize ? warps : 0), args, apart);
}

template <bool kInterleaved, bool kQuantize, int kTiles>
void launch_large(const ProductArgs& args, LaunchStream& stream) {
  const int64_t segments = segments_of(args);
  const int64_t warps = segment_warps(segments, kLargeWarps);
  const dim3 grid(static_cast<unsigned>(panels_of(args, kPanelRows)), static_cast<unsigned>(args.groups));
  ProductArgs own = args;
  if (stream.overlaps()) own.fetch_bytes = fetch_budget(static_cast<int64_t>(grid.x) * grid.y);
  stream.launch(large_kernel<kInterleaved, kQuantize, kTiles>, grid, static_cast<unsigned>(warps * kWarp),
                shared_bytes(segments, kTiles, kQuantize ? warps : 0), own);
}

template <bool kInterleaved, bool kQuantize>
void launch_fp8(const ProductArgs& args, LaunchStream& stream) {
  const auto launch = [&]<int kTiles>() {
    if (is_small(args)) return launch_small<WeightFormat::kFp8, kInterleaved, kQuantize, kTiles>(args, false, stream);
    launch_large<kInterleaved, kQuantize, kTiles>(args, stream);
  };
  if constexpr (!kQuantize) {
    if (args.rows > 8) return launch.template operator()<2>();
  }
  launch.template operator()<1>();
}

}  // namespace

bool takes_few_products(const ProductArgs& args, WeightFormat format) {
  constexpr int64_t kMostSegments = 64;  // whose sums fit
  if (args.rows == 0 || args.rows > kFewRows || args.output_count == 0 || segments_of(args) > kMostSegments) return false;
  // The kernel of products.cu reads large bf16 matrices about as fast as memory delivers.
  return format == WeightFormat::kFp8 || is_small(args);
}

void multiply_fp8_quantized_few(const ProductArgs& args, bf16* scratch, LaunchStream& stream) {
  if (args.rows <= kMostQuantized) return launch_fp8<true, true>(args, stream);
  const int64_t in = args.outputs[0].weight.in;
  ProductArgs ordered = args;
  ordered.x = scratch;
  ordered.x_group = in;
  ordered.x_stride = args.groups * in;
  quantize_rows(args.x, args.rows * args.groups, in, InputOrder::kLanes, scratch, stream);
  launch_fp8<true, false>(ordered, stream);
}

void multiply_fp8_few(const ProductArgs& args, LaunchStream& stream) { launch_fp8<false, false>(args, stream); }

void multiply_bf16_few(const ProductArgs& args, bool apart, LaunchStream& stream) {
  if (args.rows <= 8) return launch_small<WeightFormat::kBf16, false, false, 1>(args, apart, stream);
  launch_small<WeightFormat::kBf16, false, false, 2>(args, apart, stream);
}

}  // namespace deepinfer::cuda
