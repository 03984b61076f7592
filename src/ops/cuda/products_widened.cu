// Dense FP8 products of many rows (widened.cuh), with the bits of those of products.cu.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/widened.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;

constexpr int kOrderRows = 4;  // a thread's, eight apart
constexpr int kOrderColumns = kWarp * 8;

// As ordered_piece, for products whose weights come from registers (pair_place): each of the four threads that have the same
// eight of a quarter's columns gets one word of all of them.
template <ChunkOrder kOrder>
__device__ uint4 register_piece(const uint32_t (&words)[4], uint32_t* piece) {
  const uint32_t lane = threadIdx.x % kWarp;
  constexpr uint32_t kStep = kOrder == ChunkOrder::kRegisters ? 2 : 1;
  const uint32_t quarter = lane / kStep % 4;
  const auto word = [](const uint32_t(&of)[4], uint32_t i) {
    const uint32_t low = i % 2 == 0 ? of[0] : of[1];
    const uint32_t high = i % 2 == 0 ? of[2] : of[3];
    return i < 2 ? low : high;
  };
  uint32_t got[4];  // of the quarter ^ r
#pragma unroll
  for (uint32_t r = 0; r < 4; ++r) got[r] = __shfl_xor_sync(0xffffffffu, word(words, quarter ^ r), static_cast<int>(r * kStep));
  *piece = (kStep == 2 ? lane % 2 : lane / 4 % 2) * 4 + quarter;
  return make_uint4(word(got, quarter), word(got, quarter ^ 1), word(got, quarter ^ 2), word(got, quarter ^ 3));
}

// Grid: blocks of kOrderColumns columns, of 8 kOrderRows rows, groups.
template <bool kQuantize, ChunkOrder kOrder>
__global__ void __launch_bounds__(256) order_widened_kernel(const bf16* x, int64_t rows, int64_t columns, bf16* y) {
  take_turn();
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp) * 8;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * 8 * kOrderRows + threadIdx.x / kWarp;
  const auto group = static_cast<int64_t>(blockIdx.z);
  uint4 v[kOrderRows];
#pragma unroll
  for (int i = 0; i < kOrderRows; ++i) {
    const int64_t row = first + i * 8;
    v[i] = make_uint4(0, 0, 0, 0);
    if (row < rows && column < columns) v[i] = *reinterpret_cast<const uint4*>(x + (row * gridDim.z + group) * columns + column);
  }
#pragma unroll
  for (int i = 0; i < kOrderRows; ++i) {
    uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
    if constexpr (kQuantize) {
      float f[8];
      float amax = widen_eight(v[i], f);
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      const uint4 rounded = round_eight(f, e8m0_value(fp8_scale_bits(amax)));
      words[0] = rounded.x, words[1] = rounded.y, words[2] = rounded.z, words[3] = rounded.w;
    }
    uint32_t piece;
    const uint4 out = kOrder == ChunkOrder::kShared ? ordered_piece(static_cast<uint32_t>(column), words, &piece)
                                                    : register_piece<kOrder>(words, &piece);
    const int64_t row = first + i * 8;
    if (row < rows && column < columns)
      store_ordered(y + group * rows * columns, rows, row, static_cast<uint32_t>(column), piece, out);
  }
}

// A block of weight rows, of all parts of all outputs.
struct Panel {
  int64_t first_row, last_row;
  int part, which;
};
__device__ inline Panel find_panel(const ProductArgs& args, const WidenedProduct& cut, int number) {
  Panel p;
  p.part = number / cut.panels;
  int64_t panel = number % cut.panels;
  p.which = find_output(args, kWidenedRows, panel);
  const int64_t part_rows = args.outputs[p.which].weight.out / args.groups;
  p.first_row = p.part * part_rows + panel * kWidenedRows;
  p.last_row = (p.part + 1) * part_rows - 1;
  return p;
}

// Grid: chunks, kWidenChunks each, and panels. As stages have them: [panels, chunks, kWidenedRows, 64].
template <bool kInterleaved>
__global__ void __launch_bounds__(kWarpgroup)
    widen_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ WidenedProduct cut) {
  let_next_begin();
  const Panel panel = find_panel(args, cut, cut.first_panel + static_cast<int>(blockIdx.y));
  const WeightView view[1] = {args.outputs[panel.which].weight};
  const auto chunks = static_cast<int>(view[0].in / kWidenedColumns);
  const int first = static_cast<int>(blockIdx.x) * kWidenChunks;
  widen_block<kInterleaved>(view, panel.first_row, panel.last_row, first, chunks);
  wait_for_earlier();
  store_widened_block(args.room + static_cast<int64_t>(blockIdx.y) * kWidenedRows * view[0].in, first, chunks);
}

struct ProductWork {
  struct Item {
    int64_t input = 0;  // first row
    int panel = 0;      // in the launch
    int count = 0;
    Panel rows;
  };

  const ProductArgs& args;
  const WidenedProduct& cut;

  __device__ int items() const { return cut.panel_count * cut.row_blocks; }
  __device__ int chunks() const { return static_cast<int>(args.outputs[0].weight.in) / kWidenedColumns; }
  __device__ Item find(int number) const {
    Item item;
    const WidenedPlace at = place_in_bands(number, cut.panel_count, cut.row_blocks, WidenedProduct::kBand);
    item.input = static_cast<int64_t>(at.block) * cut.block_rows;
    item.count = static_cast<int>(min(static_cast<int64_t>(cut.block_rows), args.rows - item.input));
    item.panel = at.panel;
    item.rows = find_panel(args, cut, cut.first_panel + at.panel);
    return item;
  }
  __device__ const bf16* weights(const Item& item, int chunk) const {
    return args.room + (static_cast<int64_t>(item.panel) * chunks() + chunk) * (kWidenedRows * kWidenedColumns);
  }
  __device__ const bf16* inputs(const Item& item, int chunk) const {
    const auto block = static_cast<int64_t>(item.rows.part) * chunks() + chunk;
    return args.x + (block * args.rows + item.input) * kWidenedColumns;
  }
  __device__ void finish(const Item& item, const bf16* outputs, int group) const {
    const int64_t out = args.outputs[item.rows.which].weight.out;
    auto* y = static_cast<bf16*>(args.outputs[item.rows.which].y) + item.input * out;
    store_widened_outputs(outputs, group, item.rows.first_row, item.rows.last_row, item.count, y, out);
  }
};

// Grid: as many blocks as run at a time; each takes every so many-th item.
template <int kInputs>
__global__ void __launch_bounds__(kWidenedThreads, 1)
    product_widened_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ WidenedProduct cut) {
  take_turn();
  run_widened<kInputs>(ProductWork{args, cut});
}

template <int kInputs>
void launch(const ProductArgs& args, const WidenedProduct& cut, LaunchStream& stream) {
  const int64_t items = int64_t{cut.panel_count} * cut.row_blocks;
  stream.launch(product_widened_kernel<kInputs>, static_cast<unsigned>(std::min<int64_t>(kMultiprocessors, items)),
                kWidenedThreads, widened_layout(kInputs).bytes, args, cut);
}

}  // namespace

WidenedProduct widened_product(const ProductArgs& args) {
  constexpr int64_t kRows = 700;  // fewer have to pay for the widening alone
  constexpr int64_t kItems = 64;  // with fewer too many multiprocessors would be idle
  WidenedProduct cut;
  if (!args.widened || args.fp32 || args.rows == 0) return cut;
  const int64_t in = args.outputs[0].weight.in;
  if (in % kWidenedColumns != 0 || args.x_stride != in * args.groups || kWidenedRows * in > kMostWidened) return cut;
  for (int i = 0; i < args.output_count; ++i) {
    const WeightView& w = args.outputs[i].weight;
    // Whole blocks of scales, and loads of 16 bytes.
    if (args.groups > 1 && w.out / args.groups % kScaleGroup != 0) return cut;
    if (reinterpret_cast<uintptr_t>(w.values) % 16 != 0) return cut;
    cut.panels += static_cast<int>((w.out / args.groups + kWidenedRows - 1) / kWidenedRows);
  }
  // As many panels at a time as there is room for, in equal shares.
  const int64_t panels = cut.panels * args.groups;
  const int64_t most = kMostWidened / (kWidenedRows * in);
  const int64_t times = (panels + most - 1) / most;
  cut.panel_count = static_cast<int>((panels + times - 1) / times);
  const WidenedRows rows = widened_rows(args.rows, cut.panel_count, in);
  cut.inputs = rows.inputs, cut.row_blocks = rows.blocks, cut.block_rows = rows.block_rows;
  cut.fits = true;
  cut.pays = args.rows >= kRows && int64_t{cut.panel_count} * cut.row_blocks >= kItems && !mixed_product(args).pays;
  return cut;
}

int64_t widened_weights(const ProductArgs& args) {
  const WidenedProduct cut = widened_product(args);
  return cut.pays ? cut.panel_count * kWidenedRows * args.outputs[0].weight.in : 0;
}

void order_widened(const bf16* x, int64_t rows, int64_t groups, int64_t columns, bool quantize, bf16* y, LaunchStream& stream,
                   ChunkOrder order) {
  constexpr int64_t kRows = 8 * kOrderRows;
  constexpr auto kShared = ChunkOrder::kShared;
  constexpr auto kRegisters = ChunkOrder::kRegisters;
  stream.launch(order == ChunkOrder::kBf16Registers ? order_widened_kernel<false, ChunkOrder::kBf16Registers>
                : order == kShared
                    ? (quantize ? order_widened_kernel<true, kShared> : order_widened_kernel<false, kShared>)
                    : (quantize ? order_widened_kernel<true, kRegisters> : order_widened_kernel<false, kRegisters>),
                dim3(static_cast<unsigned>((columns + kOrderColumns - 1) / kOrderColumns),
                     static_cast<unsigned>((rows + kRows - 1) / kRows), static_cast<unsigned>(groups)),
                256, 0, x, rows, columns, y);
}

void multiply_fp8_ordered(const ProductArgs& args, const WidenedProduct& cut, bool quantized, LaunchStream& stream) {
  const auto chunks = args.outputs[0].weight.in / kWidenedColumns;
  const auto panels = static_cast<int>(cut.panels * args.groups);
  WidenedProduct own = cut;
  for (; own.first_panel < panels; own.first_panel += cut.panel_count) {
    own.panel_count = std::min(cut.panel_count, panels - own.first_panel);
    stream.launch(quantized ? widen_kernel<true> : widen_kernel<false>,
                  dim3(static_cast<unsigned>((chunks + kWidenChunks - 1) / kWidenChunks), static_cast<unsigned>(own.panel_count)),
                  kWarpgroup, kWidenBytes, args, own);
    if (cut.inputs == 96) launch<96>(args, own, stream);
    if (cut.inputs == 128) launch<128>(args, own, stream);
    if (cut.inputs == 160) launch<160>(args, own, stream);
    if (cut.inputs == 192) launch<192>(args, own, stream);
  }
}

void multiply_fp8_widened(const ProductArgs& args, const WidenedProduct& cut, bool quantize, bf16* scratch,
                          LaunchStream& stream) {
  order_widened(args.x, args.rows, args.groups, args.outputs[0].weight.in, quantize, scratch, stream);
  ProductArgs ordered = args;
  ordered.x = scratch;
  multiply_fp8_ordered(ordered, cut, quantize, stream);
}

}  // namespace deepinfer::cuda
