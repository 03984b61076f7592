// Experts (spec/backbone §4, steps 5-6): gate, up, SwiGLU, weight and quantisation in one kernel, the way down in another, the
// sum in a third. The shared expert is one more expert with FP8 weights.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_math.cuh"
#include "ops/cuda/expert_plan.h"
#include "ops/cuda/experts_few.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/segments.cuh"
#include "ops/cuda/wide.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

// Sums of the tile's pairs in `parts`.
template <WeightFormat kRouted, int kTiles>
__device__ void multiply_tile(bool shared, const Fp8Weight& fp8, const Fp4Weight& fp4, int64_t first_row,
                              const InputRows<kTiles>& x, int warp, int warps, int segments, float* parts) {
  if (shared) {
    multiply_segments<WeightFormat::kFp8, true, kTiles>(device_view(fp8), first_row, fp8.out - 1, x, warp, warps, segments,
                                                        parts);
  } else {
    multiply_segments<kRouted, true, kTiles>(device_view(fp4), first_row, fp4.out - 1, x, warp, warps, segments, parts);
  }
}

// Grid: panels of the inner dimension, tiles. The first half of the warps multiplies by w1, the second by w3.
template <WeightFormat kRouted, int kTiles>
__global__ void __launch_bounds__(256, kTiles == 1 ? 2 : 1)
    hidden_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count, float limit,
                  const __grid_constant__ ExpertPlan plan) {
  let_next_begin();
  auto* parts = dynamic_shared<float>();
  const int64_t inner = shared.w1.out;
  const int64_t columns = shared.w1.in;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kPanelRows;
  // Where the shared expert's tiles lie is known before what lies in them.
  if (plan.shared_first && blockIdx.y < plan.shared_tiles && threadIdx.x == 0) {
    fetch_panel<WeightFormat::kFp8>(device_view(shared.w1), first_row, inner - 1, plan.fetch_bytes);
    fetch_panel<WeightFormat::kFp8>(device_view(shared.w3), first_row, inner - 1, plan.fetch_bytes);
  }
  wait_for_earlier();
  const ExpertPlan::Tile tile = plan.tiles[blockIdx.y];
  if (tile.count == 0) return;
  const bool is_shared = tile.expert == expert_count;
  const ExpertWeights* w = routed + (is_shared ? 0 : tile.expert);
  const int warps = static_cast<int>(blockDim.x) / kWarp / 2;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool up = warp >= warps;
  InputRows<kTiles> x;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int input = i * 8 + lane / 4;
    x.row[i] = input < tile.count ? plan.input + static_cast<int64_t>(plan.token[tile.first + input]) * columns : nullptr;
  }
  const auto segments = static_cast<int>((columns + kSegment - 1) / kSegment);
  constexpr int64_t kPart = kTiles * 8 * kPartStride;
  multiply_tile<kRouted, kTiles>(is_shared, up ? shared.w3 : shared.w1, up ? w->w3 : w->w1, first_row, x,
                                 up ? warp - warps : warp, warps, segments, parts + (up ? segments * kPart : 0));
  __syncthreads();
  for (int input = warp; input < tile.count; input += 2 * warps) {
    const float gate = sum_parts(parts, segments, kPart, input, lane);
    const float value = sum_parts(parts + segments * kPart, segments, kPart, input, lane);
    plan.hidden[(tile.first + input) * inner + first_row + interleaved(lane)] =
        narrow(hidden_value(gate, value, limit, plan.weight[tile.first + input]));
  }
}

// Grid: panels of the hidden dimension, tiles.
template <WeightFormat kRouted, int kTiles>
__global__ void __launch_bounds__(160, kTiles == 1 ? 3 : 2)
    output_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count,
                  const __grid_constant__ ExpertPlan plan) {
  let_next_begin();
  auto* parts = dynamic_shared<float>();
  const int64_t out = shared.w2.out;
  const int64_t columns = shared.w2.in;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kPanelRows;
  if (plan.shared_first && blockIdx.y < plan.shared_tiles && threadIdx.x == 0)
    fetch_panel<WeightFormat::kFp8>(device_view(shared.w2), first_row, out - 1, plan.fetch_bytes);
  wait_for_earlier();
  const ExpertPlan::Tile tile = plan.tiles[blockIdx.y];
  if (tile.count == 0) return;
  const bool is_shared = tile.expert == expert_count;
  const ExpertWeights* w = routed + (is_shared ? 0 : tile.expert);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  InputRows<kTiles> x;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int input = i * 8 + lane / 4;
    x.row[i] = input < tile.count ? plan.hidden + static_cast<int64_t>(tile.first + input) * columns : nullptr;
  }
  const auto segments = static_cast<int>((columns + kSegment - 1) / kSegment);
  multiply_tile<kRouted, kTiles>(is_shared, shared.w2, w->w2, first_row, x, static_cast<int>(threadIdx.x) / kWarp,
                                 static_cast<int>(blockDim.x) / kWarp, segments, parts);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tile.count * kPanelRows; i += static_cast<int>(blockDim.x)) {
    const int input = i / kPanelRows;
    const int row = i % kPanelRows;
    if (first_row + row >= out) continue;
    plan.output[(tile.first + input) * out + first_row + row] =
        narrow(sum_parts(parts, segments, kTiles * 8 * kPartStride, input, row));
  }
}

template <WeightFormat kRouted, int kInputs>
__device__ void multiply_wide(WideShared& s, bool shared, const Fp8Weight& fp8, const Fp4Weight& fp4, int64_t first_row,
                              int group, float (&c)[2][kInputs / 8][4]) {
  if (shared) {
    const auto panel = wide_panel<WeightFormat::kFp8>(device_view(fp8), first_row, fp8.out - 1);
    wide_multiply<WeightFormat::kFp8, true, kInputs>(s, panel, group, c);
  } else {
    const auto panel = wide_panel<kRouted>(device_view(fp4), first_row, fp4.out - 1);
    wide_multiply<kRouted, true, kInputs>(s, panel, group, c);
  }
}

// The same with many inputs a tile: the first warpgroup multiplies by w1, the second by w3. Grid: blocks of kWideGroupRows of the
// inner dimension, tiles.
template <WeightFormat kRouted>
__global__ void __launch_bounds__(kWideThreads, 1)
    hidden_wide_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count, float limit,
                       const __grid_constant__ ExpertPlan plan) {
  take_turn();
  auto* dynamic = dynamic_shared<uint4>();
  const ExpertPlan::Tile tile = plan.tiles[blockIdx.y];
  if (tile.count == 0) return;
  WideShared& s = wide_shared(dynamic);
  const bool is_shared = tile.expert == expert_count;
  const ExpertWeights* w = routed + (is_shared ? 0 : tile.expert);
  const int64_t inner = shared.w1.out;
  const bf16* input = plan.input + (is_shared ? plan.input_values / 2 : 0);
  wide_begin(s, [&](int i) {
    return i < tile.count ? input + static_cast<int64_t>(plan.token[tile.first + i]) * plan.input_columns : nullptr;
  });
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kWideGroupRows;
  if (group == kWideGroups) {
    give_registers<40>();
    with_inputs(tile.count, [&]<int kInputs>() { wide_load<kInputs>(s, static_cast<int>(plan.input_columns)); });
  } else {
    take_registers<232>();
    with_inputs(tile.count, [&]<int kInputs>() {
      float c[2][kInputs / 8][4];
      multiply_wide<kRouted, kInputs>(s, is_shared, group == 0 ? shared.w1 : shared.w3, group == 0 ? w->w1 : w->w3, first_row,
                                      group, c);
      wide_outputs<kInputs>(s, group, c);
    });
    named_barrier(3, kWideGroups * kWarpgroup);
    bf16* gates = reinterpret_cast<bf16*>(s.sums[0]);
    const auto* values = reinterpret_cast<const bf16*>(s.sums[1]);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    // A warp takes whole inputs: 128 columns of the second product, which are put in its order in place of the gates.
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < tile.count; i += kWideGroups * kWarpgroup / kWarp) {
      bf16* gate = gates + i * kWideOutStride;
      const bf16* value = values + i * kWideOutStride;
      bf16 h[kWideGroupRows / kWarp];
#pragma unroll
      for (int k = 0; k < kWideGroupRows / kWarp; ++k) {
        const int at = k * kWarp + lane;
        const float v = hidden_value(widen(gate[at]), widen(value[at]), limit, plan.weight[tile.first + i]);
        h[k] = narrow(first_row + k * kWarp < inner ? v : 0.0f);
      }
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kWideGroupRows / kWarp; ++k) gate[wide_place(is_shared, k * kWarp + lane)] = h[k];
      __syncwarp();
      if (lane < kWideGroupRows / 8) {
        *reinterpret_cast<uint4*>(plan.hidden + (tile.first + i) * plan.hidden_columns + first_row + lane * 8) =
            *reinterpret_cast<const uint4*>(gate + lane * 8);
      }
    }
  }
}

// Grid: blocks of kWideRows of the hidden dimension, tiles.
template <WeightFormat kRouted>
__global__ void __launch_bounds__(kWideThreads, 1)
    output_wide_kernel(const ExpertWeights* routed, const __grid_constant__ SharedExpert shared, int expert_count,
                       const __grid_constant__ ExpertPlan plan) {
  take_turn();
  auto* dynamic = dynamic_shared<uint4>();
  const ExpertPlan::Tile tile = plan.tiles[blockIdx.y];
  if (tile.count == 0) return;
  WideShared& s = wide_shared(dynamic);
  const bool is_shared = tile.expert == expert_count;
  const ExpertWeights* w = routed + (is_shared ? 0 : tile.expert);
  const int64_t out = shared.w2.out;
  wide_begin(s, [&](int i) { return i < tile.count ? plan.hidden + (tile.first + i) * plan.hidden_columns : nullptr; });
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (group == kWideGroups) {
    give_registers<40>();
    with_inputs(tile.count, [&]<int kInputs>() { wide_load<kInputs>(s, static_cast<int>(plan.hidden_columns)); });
  } else {
    take_registers<232>();
    const int64_t first_row = (static_cast<int64_t>(blockIdx.x) * kWideGroups + group) * kWideGroupRows;
    with_inputs(tile.count, [&]<int kInputs>() {
      float c[2][kInputs / 8][4];
      multiply_wide<kRouted, kInputs>(s, is_shared, shared.w2, w->w2, first_row, group, c);
      const bf16* from = wide_outputs<kInputs>(s, group, c);
      wide_store(from, group, first_row, out - 1, tile.count,
                 [&](int input) { return plan.output + static_cast<int64_t>(tile.first + input) * out; });
    });
  }
}

void check_shared(size_t bytes) {
  if (bytes > 220 << 10) cuda_failed(__FILE__, __LINE__, "experts", "too many columns");
}

template <WeightFormat kRouted, int kTiles>
void launch_outputs(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  const SharedExpert shared{args.shared_w1, args.shared_w2, args.shared_w3};
  const auto panels = static_cast<unsigned>((args.shared_w2.out + kPanelRows - 1) / kPanelRows);
  const int64_t segments = segment_count(args.shared_w2.in);
  const size_t bytes = static_cast<size_t>(part_floats(segments, kTiles)) * sizeof(float);
  check_shared(bytes);
  stream.launch(output_kernel<kRouted, kTiles>, dim3(panels, static_cast<unsigned>(plan.tile_count)),
                static_cast<unsigned>(segment_warps(segments, 5) * kWarp), bytes, routed, shared,
                static_cast<int>(args.routed.size()), plan);
}

template <WeightFormat kRouted, int kTiles>
void launch(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  const SharedExpert shared{args.shared_w1, args.shared_w2, args.shared_w3};
  const auto panels = static_cast<unsigned>((args.shared_w1.out + kPanelRows - 1) / kPanelRows);
  const int64_t segments = segment_count(args.shared_w1.in);
  const size_t bytes = static_cast<size_t>(2 * part_floats(segments, kTiles)) * sizeof(float);
  check_shared(bytes);
  stream.launch(hidden_kernel<kRouted, kTiles>, dim3(panels, static_cast<unsigned>(plan.tile_count)),
                static_cast<unsigned>(2 * segment_warps(segments, 4) * kWarp), bytes, routed, shared,
                static_cast<int>(args.routed.size()), args.swiglu_limit, plan);
  launch_outputs<kRouted, kTiles>(args, routed, plan, stream);
}

template <WeightFormat kRouted>
void launch_wide(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  const SharedExpert shared{args.shared_w1, args.shared_w2, args.shared_w3};
  const auto experts = static_cast<int>(args.routed.size());
  const auto blocks = [&](int64_t out, int64_t rows) {
    return dim3(static_cast<unsigned>((out + rows - 1) / rows), static_cast<unsigned>(plan.tile_count));
  };
  stream.launch(hidden_wide_kernel<kRouted>, blocks(args.shared_w1.out, kWideGroupRows), kWideThreads, kWideBytes, routed, shared,
                experts, args.swiglu_limit, plan);
  stream.launch(output_wide_kernel<kRouted>, blocks(args.shared_w2.out, kWideRows), kWideThreads, kWideBytes, routed, shared,
                experts, plan);
}

template <WeightFormat kRouted>
void launch_products(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream) {
  if (plan.staged) return multiply_experts_staged(args, routed, plan, stream);
  if (plan.streamed) return multiply_experts_streamed(args, routed, plan, stream);
  if (plan.wide) return launch_wide<kRouted>(args, routed, plan, stream);
  if (plan.tile_inputs == 8) launch<kRouted, 1>(args, routed, plan, stream);
  if (plan.tile_inputs == 16) launch<kRouted, 2>(args, routed, plan, stream);
}

// A group of 32 columns of a row a thread, from where a copy of the matrix lies.
__global__ void arrange_kernel(const uint8_t* from_codes, const uint8_t* from_scales, uint8_t* codes, uint8_t* scales,
                               int64_t groups, int64_t in) {
  take_turn();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= groups) return;
  const int64_t row = at / (in / kScaleGroup);
  const int64_t group = at % (in / kScaleGroup);
  const uint4 v = reinterpret_cast<const uint4*>(from_codes)[at];
  *reinterpret_cast<uint4*>(codes + fp4_codes_place(in, row, group)) =
      make_uint4(arrange_fp4(v.x), arrange_fp4(v.y), arrange_fp4(v.z), arrange_fp4(v.w));
  scales[fp4_scale_place(in, row, group)] = from_scales[at];
}

}  // namespace

void arrange_panels(uint8_t* codes, uint8_t* scales, int64_t out, int64_t in, uint8_t* scratch, LaunchStream& stream) {
  // The rows of one matrix of an expert are the columns of another, which come in whole groups.
  if (out % kFp4PanelRows != 0 || in % kScaleGroup != 0)
    cuda_failed(__FILE__, __LINE__, "experts", "rows that are no whole panels");
  const int64_t groups = out * (in / kScaleGroup);
  if (groups == 0) return;
  stream.copy(scratch, codes, static_cast<size_t>(groups * 16), cudaMemcpyDeviceToDevice);
  stream.copy(scratch + groups * 16, scales, static_cast<size_t>(groups), cudaMemcpyDeviceToDevice);
  stream.launch(arrange_kernel, static_cast<unsigned>((groups + kThreads - 1) / kThreads), kThreads, 0, scratch,
                scratch + groups * 16, codes, scales, groups, in);
}

void run_experts(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const ExpertPlan& plan, LaunchStream& stream,
                 bool planned) {
  run_experts(args, routed, rows, plan, {}, planned, stream);
}

void run_experts(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const ExpertPlan& plan,
                 const FewScratch& few, bool planned, LaunchStream& stream) {
  if (rows == 0) return;
  const int64_t hidden = args.shared_w1.in;
  if (!planned) sort_pairs(args, rows, plan, stream);
  if (plan.wide) {
    quantize_rows(args.v, rows, hidden, InputOrder::kWideFp4, plan.input, stream);
    if (plan.shared_apart) {
      order_widened(args.v, rows, 1, hidden, true, plan.input + plan.input_values / 2, stream);
      multiply_shared_widened(args, rows, plan, stream);
    } else {
      quantize_rows(args.v, rows, hidden, InputOrder::kWideFp8, plan.input + plan.input_values / 2, stream);
    }
  }
  if (few.parts != nullptr) {
    multiply_hidden_few(args, routed, rows, plan, few, planned, stream);
    launch_outputs<WeightFormat::kFp4Panels, 1>(args, routed, plan, stream);
  } else if (plan.arranged) {
    launch_products<WeightFormat::kFp4Panels>(args, routed, plan, stream);
  } else {
    launch_products<WeightFormat::kFp4>(args, routed, plan, stream);
  }
  sum_experts(args, rows, plan, stream);
}

}  // namespace deepinfer::cuda
