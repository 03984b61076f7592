// Dense FP8 products whose weights come by way of shared memory (staged.cuh), with the bits of those of products.cu.

#include <algorithm>

#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/staged.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;

struct ProductItem : StagedItem {
  int64_t input = 0;      // first row
  int64_t first_row = 0;  // of the weights
  int64_t last_row = 0;
  int part = 0;  // group
  int which = 0;
};

template <bool kQuantized>
struct ProductWork {
  using Item = ProductItem;
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  static constexpr bool kInterleaved = kQuantized;

  const ProductArgs& args;
  const StagedProduct& cut;

  // Bands of kBand blocks of rows, in which items that are at work together share weights and inputs.
  __device__ bool find(int number, Item& item) const {
    constexpr int kBand = 16;
    const int part_items = cut.panels * cut.row_blocks;
    item.part = number / part_items;
    if (item.part >= static_cast<int>(args.groups)) return false;
    const int in_part = number % part_items;
    const int band = in_part / (kBand * cut.panels);
    const int in_band = in_part % (kBand * cut.panels);
    const int band_blocks = min(kBand, cut.row_blocks - band * kBand);
    int64_t panel = in_band / band_blocks;
    item.input = static_cast<int64_t>(band * kBand + in_band % band_blocks) * cut.block_rows;
    item.count = static_cast<int>(min(static_cast<int64_t>(cut.block_rows),
                                      args.rows - item.input));  // of the last one too more than 0: see expert_plan.cu
    item.which = find_output(args, kStagedRows, panel);
    const WeightView& w = args.outputs[item.which].weight;
    const int64_t part_rows = w.out / args.groups;
    item.columns = static_cast<int>(w.in);
    item.first_row = item.part * part_rows + panel * kStagedRows;
    item.last_row = (item.part + 1) * part_rows - 1;
    return true;
  }
  __device__ StagedRows half(const Item& item, int h) const {
    return {args.outputs[item.which].weight, true, item.first_row + h * kStagedHalf, item.last_row};
  }
  __device__ const bf16* inputs(const Item& item) const { return args.x + item.input * args.x_stride + item.part * args.x_group; }
  __device__ int64_t input(const Item& /*item*/, int i) const { return i * args.x_stride; }
  __device__ void finish(const Item& item, const Staged& s, int group) const {
    const int64_t out = args.outputs[item.which].weight.out;
    auto* y = static_cast<bf16*>(args.outputs[item.which].y) + item.input * out;
    store_staged(s, group, item.first_row, item.last_row, item.count, [&](int i) { return y + i * out; });
  }
};

// Grid: as many blocks as run at a time; each takes every so many-th item.
template <bool kQuantized, bool kSmall>
__global__ void __launch_bounds__(kStagedThreads, 1)
    product_staged_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ StagedProduct cut,
                          const __grid_constant__ StagedLayout layout) {
  take_turn();
  run_staged<kSmall>(layout, ProductWork<kQuantized>{args, cut});
}

template <bool kQuantized>
void launch(const ProductArgs& args, const StagedProduct& cut, LaunchStream& stream) {
  const StagedLayout layout = staged_layout(cut.inputs, true);
  const int64_t items = int64_t{cut.panels} * cut.row_blocks * args.groups;
  stream.launch(
      cut.inputs <= kMostSmallInputs ? product_staged_kernel<kQuantized, true> : product_staged_kernel<kQuantized, false>,
      static_cast<unsigned>(std::min<int64_t>(kMultiprocessors, items)), kStagedThreads, layout.bytes, args, cut, layout);
}

}  // namespace

StagedProduct staged_product(const ProductArgs& args) {
  constexpr int64_t kRows = 16;
  constexpr int64_t kItems = 100;  // with fewer too many multiprocessors would be idle
  StagedProduct cut;
  if (!args.staged || args.rows <= kRows) return cut;
  for (int i = 0; i < args.output_count; ++i)
    cut.panels += static_cast<int>((args.outputs[i].weight.out / args.groups + kStagedRows - 1) / kStagedRows);
  cut.inputs = staged_fp8_tile(args.rows, cut.panels * args.groups);
  cut.row_blocks = static_cast<int>((args.rows + cut.inputs - 1) / cut.inputs);
  cut.block_rows = static_cast<int>(((args.rows + cut.row_blocks - 1) / cut.row_blocks + 7) / 8 * 8);
  cut.pays = int64_t{cut.panels} * cut.row_blocks * args.groups >= kItems;
  return cut;
}

void multiply_fp8_staged(const ProductArgs& args, const StagedProduct& cut, bool quantized, LaunchStream& stream) {
  if (quantized) return launch<true>(args, cut, stream);
  launch<false>(args, cut, stream);
}

}  // namespace deepinfer::cuda
