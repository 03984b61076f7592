// Products of few rows and small matrices, where time is what a block waits for: panels of 16 rows, so that more multiprocessors
// read, and every warp asks for a whole segment before its turn. One or two rows are brought to shared memory, and quantised, by
// the warps that multiply them. Chains and order of the sums are those of fragments.cuh and segments.cuh.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/half_panels.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/segments.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMostKept = 2;     // rows that warps bring themselves
constexpr int kSmallWarps = 16;  // of a block, alone on its multiprocessor

// Where the inputs lie that a warp brings: behind the sums of `segments` segments.
template <int kTiles>
__device__ bf16* kept_room(float* parts, int segments, int warp) {
  return reinterpret_cast<bf16*>(parts + segments * kTiles * 8 * kPartStride) + warp * kMostKept * kSegment;
}

// Grid: panels of all outputs; with `apart` segments, else 1; groups. A warp has every warps-th segment; with `apart` the block,
// one warp, has one, and its sums are the output [segments][rows][weight rows]. Shared memory: parts as of segments.cuh, then
// with kKeeps the warps' inputs [warps][kMostKept][kSegment].
template <WeightFormat kFormat, bool kInterleaved, bool kKeeps, int kTiles>
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
  bf16* kept = kept_room<kTiles>(parts, own_segments, warp);
  for (int segment = first_segment; segment < segments; segment += apart ? segments : warps) {
    const int first = segment * kSegment;
    if constexpr (kKeeps) bring_segment<kInterleaved>(x, args.x_stride, rows, first, columns, kept);
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
          return load_again((kKeeps ? kept + r * kSegment - first : x + r * args.x_stride) + at + pair * 8);
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

size_t shared_bytes(int64_t segments, int tiles, int64_t keeping_warps) {
  return static_cast<size_t>(part_floats(segments, tiles)) * sizeof(float) +
         static_cast<size_t>(keeping_warps * kMostKept * kSegment) * sizeof(bf16);
}

template <WeightFormat kFormat, bool kInterleaved, bool kKeeps, int kTiles>
void launch_small(const ProductArgs& args, bool apart, LaunchStream& stream) {
  const int64_t segments = segments_of(args);
  const int64_t warps = apart ? 1 : segment_warps(segments, kSmallWarps);
  const dim3 grid(static_cast<unsigned>(panels_of(args, kHalfPanelRows)), apart ? static_cast<unsigned>(segments) : 1,
                  static_cast<unsigned>(args.groups));
  stream.launch(small_kernel<kFormat, kInterleaved, kKeeps, kTiles>, grid, static_cast<unsigned>(warps * kWarp),
                shared_bytes(apart ? 1 : segments, kTiles, kKeeps ? warps : 0), args, apart);
}

// kInterleaved: FP8 whose inputs are quantised.
template <WeightFormat kFormat, bool kInterleaved>
void launch_far(const ProductArgs& args, bool apart, LaunchStream& stream) {
  if (args.rows <= 8) return launch_small<kFormat, kInterleaved, false, 1>(args, apart, stream);
  launch_small<kFormat, kInterleaved, false, 2>(args, apart, stream);
}

}  // namespace

bool takes_few_products(const ProductArgs& args) {
  constexpr int64_t kMostSegments = 64;  // whose sums fit
  return args.rows > 0 && args.rows <= kFewRows && args.output_count > 0 && segments_of(args) <= kMostSegments && is_small(args);
}

void multiply_fp8_quantized_few(const ProductArgs& args, bf16* scratch, LaunchStream& stream) {
  if (args.rows <= kMostKept) return launch_small<WeightFormat::kFp8, true, true, 1>(args, false, stream);
  const int64_t in = args.outputs[0].weight.in;
  ProductArgs ordered = args;
  ordered.x = scratch;
  ordered.x_group = in;
  ordered.x_stride = args.groups * in;
  quantize_rows(args.x, args.rows * args.groups, in, InputOrder::kLanes, scratch, stream);
  launch_far<WeightFormat::kFp8, true>(ordered, false, stream);
}

void multiply_fp8_few(const ProductArgs& args, LaunchStream& stream) {
  if (args.rows <= kMostKept) return launch_small<WeightFormat::kFp8, false, true, 1>(args, false, stream);
  launch_far<WeightFormat::kFp8, false>(args, false, stream);
}

void multiply_bf16_few(const ProductArgs& args, bool apart, LaunchStream& stream) {
  if (args.rows <= kMostKept) return launch_small<WeightFormat::kBf16, false, true, 1>(args, apart, stream);
  launch_far<WeightFormat::kBf16, false>(args, apart, stream);
}

}  // namespace deepinfer::cuda
