// The shared expert of many rows (widened.cuh), with the bits of experts.cu: its inputs and what lies between its products are in
// the order of shared memory.

#include <algorithm>

#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/widened.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kPanel = kWidenedRows / 2;  // rows of either matrix

struct HiddenArgs {
  SharedExpert shared;
  const bf16* inputs = nullptr;
  bf16* weights = nullptr;
  bf16* hidden = nullptr;
  int64_t rows = 0;
  float limit = 0;
  WidenedRows cut;
  int panels = 0;
};

// Of each sixteen rows eight are of w1, eight of w3, so a warpgroup has both of a group of 32 columns of the second product.
// Grid: chunks, kWidenChunks each, and panels.
__global__ void __launch_bounds__(kWarpgroup) widen_gated_kernel(const __grid_constant__ HiddenArgs args) {
  let_next_begin();
  const WeightView views[2] = {device_view(args.shared.w1), device_view(args.shared.w3)};
  const auto chunks = static_cast<int>(views[0].in / kWidenedColumns);
  const int first = static_cast<int>(blockIdx.x) * kWidenChunks;
  widen_block<true>(views, static_cast<int64_t>(blockIdx.y) * kPanel, views[0].out - 1, first, chunks);
  wait_for_earlier();
  store_widened_block(args.weights + static_cast<int64_t>(blockIdx.y) * kWidenedRows * views[0].in, first, chunks);
}

struct HiddenWork {
  struct Item {
    int64_t input = 0;
    int panel = 0;
    int count = 0;
  };

  const HiddenArgs& args;

  __device__ int items() const { return args.panels * args.cut.blocks; }
  __device__ int chunks() const { return static_cast<int>(args.shared.w1.in) / kWidenedColumns; }
  __device__ Item find(int number) const {
    const WidenedPlace at = place_in_bands(number, args.panels, args.cut.blocks, WidenedProduct::kBand);
    const int64_t input = static_cast<int64_t>(at.block) * args.cut.block_rows;
    return {input, at.panel, static_cast<int>(min(static_cast<int64_t>(args.cut.block_rows), args.rows - input))};
  }
  __device__ const bf16* weights(const Item& item, int chunk) const {
    return args.weights + (static_cast<int64_t>(item.panel) * chunks() + chunk) * (kWidenedRows * kWidenedColumns);
  }
  __device__ const bf16* inputs(const Item& item, int chunk) const {
    return args.inputs + (chunk * args.rows + item.input) * kWidenedColumns;
  }
  // Four lanes take an input: eight gates each, and the ups behind them.
  __device__ void finish(const Item& item, const bf16* outputs, int group) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int part = thread % 4;
    const auto column = static_cast<uint32_t>(group * kScaleGroup + part * 8);  // of the panel's
    for (int first = thread / kWarp * 8; first < item.count; first += kWarpgroup / 4) {
      const int i = first + thread % kWarp / 4;
      const auto* own = reinterpret_cast<const uint4*>(outputs + i * kWidenedOutStride) + part * 2;
      float h[8];
      gate_eight(own[0], own[1], args.limit, 1.0f, h);
      float amax = 0;
#pragma unroll
      for (const float v : h) amax = fmaxf(amax, fabsf(v));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      round_to_fp8(h, amax);
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) words[k] = narrow_pair(h[k], h[k + 4]);
      uint32_t piece;
      const uint4 out = ordered_piece(column, words, &piece);
      if (i < item.count)
        store_ordered(args.hidden, args.rows, item.input + i, static_cast<uint32_t>(item.panel * kPanel) + column, piece, out);
    }
  }
};

template <int kInputs>
__global__ void __launch_bounds__(kWidenedThreads, 1) hidden_widened_kernel(const __grid_constant__ HiddenArgs args) {
  take_turn();
  run_widened<kInputs>(HiddenWork{args});
}

template <int kInputs>
void launch(const HiddenArgs& args, LaunchStream& stream) {
  stream.launch(hidden_widened_kernel<kInputs>,
                static_cast<unsigned>(std::min<int64_t>(kMultiprocessors, int64_t{args.panels} * args.cut.blocks)),
                kWidenedThreads, widened_layout(kInputs).bytes, args);
}

int64_t gated_weights(const ExpertsArgs& args) { return 2 * args.shared_w1.out * args.shared_w1.in; }

ProductArgs output_product(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan) {
  ProductArgs product;
  product.x = plan.hidden + rows * args.topk * plan.hidden_columns;
  product.rows = rows;
  product.x_stride = args.shared_w2.in;
  product.outputs[product.output_count++] = {view(args.shared_w2), plan.output + rows * args.topk * args.shared_w2.out};
  product.widened = true;
  if (plan.widened != nullptr) product.room = plan.widened + gated_weights(args);
  return product;
}

}  // namespace

WidenedProduct widened_shared(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan) {
  if (!plan.staged || args.shared_w1.in % kWidenedColumns != 0) return {};
  for (const Fp8Weight* w : {&args.shared_w1, &args.shared_w3}) {
    if (reinterpret_cast<uintptr_t>(w->values) % 16 != 0) return {};
  }
  WidenedProduct down = widened_product(output_product(args, rows, plan));
  if (widened_shared_weights(args) > kMostWidened) down.fits = down.pays = false;
  return down;
}

int64_t widened_shared_weights(const ExpertsArgs& args) {
  const int64_t panels = (args.shared_w2.out + kWidenedRows - 1) / kWidenedRows;
  return gated_weights(args) + panels * kWidenedRows * args.shared_w2.in;
}

void multiply_shared_widened(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream) {
  const ProductArgs down = output_product(args, rows, plan);
  HiddenArgs own;
  own.shared = {args.shared_w1, args.shared_w2, args.shared_w3};
  own.inputs = plan.input + plan.input_values / 2;
  own.weights = plan.widened;
  own.hidden = plan.hidden + rows * args.topk * plan.hidden_columns;
  own.rows = rows;
  own.limit = args.swiglu_limit;
  own.panels = static_cast<int>(args.shared_w1.out / kPanel);
  own.cut = widened_rows(rows, own.panels, args.shared_w1.in);
  const auto chunks = static_cast<unsigned>(args.shared_w1.in / kWidenedColumns);
  stream.launch(widen_gated_kernel, dim3((chunks + kWidenChunks - 1) / kWidenChunks, static_cast<unsigned>(own.panels)),
                kWarpgroup, kWidenBytes, own);
  if (own.cut.inputs == 96) launch<96>(own, stream);
  if (own.cut.inputs == 128) launch<128>(own, stream);
  if (own.cut.inputs == 160) launch<160>(own, stream);
  if (own.cut.inputs == 192) launch<192>(own, stream);
  multiply_fp8_ordered(down, widened_product(down), true, stream);
}

}  // namespace deepinfer::cuda
