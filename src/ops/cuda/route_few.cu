// Router, choices and plan of few rows in one launch (Backend::routed_experts), where time is what kernels wait for each other.
// Blocks multiply a panel of the gate each, as products_few.cu does it; the one that finds that all others are done chooses, a
// warp a row, and sorts the pairs. Beside them blocks round the experts' inputs.

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_plan.cuh"
#include "ops/cuda/half_panels.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/ready.cuh"
#include "ops/cuda/route_few.h"
#include "ops/cuda/route_math.cuh"
#include "ops/cuda/segments.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kWarps = 12;  // three a scheduler: registers for all that is on its way
constexpr int kThreads = kWarps * kWarp;
constexpr int kKeptStride = kSegment + 8;  // bf16: rows of a load lie in different banks
constexpr int kKeptAtOnce = 4;             // rows on their way
constexpr int kPartFloats = 8 * kPartStride;

struct Routing {
  RouteArgs args;
  WeightView gate;
  ExpertPlan plan;
  int rows = 0;
  int panels = 0;              // of the gate
  float* logits = nullptr;     // [rows, experts]
  bool alone = false;          // the next kernel reads what is older than this one before it waits
  int32_t* arrived = nullptr;  // blocks that have written theirs; 0 before and after
};

// Shared memory of a block that multiplies: sums of all segments, then a segment of the inputs a warp. Of the one that chooses,
// in their place: scores and ranks [rows, experts]; choices and their weights [rows, topk]; cursors [experts].
struct Layout {
  uint32_t kept = 0, ranks = 0, chosen = 0, weights = 0, cursors = 0, bytes = 0;
};
__host__ __device__ inline Layout layout_of(int rows, int columns, int experts, int topk) {
  const int segments = (columns + kSegment - 1) / kSegment;
  Layout l;
  l.kept = static_cast<uint32_t>(segments * kPartFloats) * 4;
  const uint32_t multiplied = l.kept + static_cast<uint32_t>((segments < kWarps ? segments : kWarps) * rows * kKeptStride) * 2;
  l.ranks = static_cast<uint32_t>(rows * experts) * 4;
  l.chosen = 2 * l.ranks;
  l.weights = l.chosen + static_cast<uint32_t>(rows * topk) * 4;
  l.cursors = l.weights + static_cast<uint32_t>(rows * topk) * 4;
  const uint32_t chosen = l.cursors + static_cast<uint32_t>(experts) * 4;
  l.bytes = multiplied > chosen ? multiplied : chosen;
  return l;
}

// A segment of the input rows, for the whole warp: 16 columns a lane, some rows at once.
__device__ void keep_segment(const bf16* x, int64_t stride, int rows, int first, int columns, bf16* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();  // what was there has been used
  for (int begin = 0; begin < rows; begin += kKeptAtOnce) {
    uint4 v[kKeptAtOnce][2];
#pragma unroll
    for (int k = 0; k < kKeptAtOnce; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = first + lane * 16 + half * 8;
        v[k][half] =
            begin + k < rows && column < columns ? load_again(x + (begin + k) * stride + column) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int k = 0; k < kKeptAtOnce; ++k) {
      if (begin + k >= rows) break;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<uint4*>(to + (begin + k) * kKeptStride + lane * 16 + half * 8) = v[k][half];
    }
  }
  __syncwarp();
}

// Grid: panels of the gate, then blocks that round inputs.
__global__ void __launch_bounds__(kThreads, 1) routed_kernel(const __grid_constant__ Routing r) {
  if (!r.alone) let_next_begin();
  constexpr WeightFormat kFormat = WeightFormat::kBf16;
  constexpr int kChunk = chunk_columns(kFormat);
  constexpr int kChunks = kSegment / kChunk;
  constexpr int kAhead = 8;  // chunks on their way
  static_assert(kChunks % kAhead == 0);
  auto* memory = dynamic_shared_behind<uint8_t>();
  __shared__ int warps[kWarps];
  __shared__ int number;
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto experts = static_cast<int>(r.gate.out);
  const auto columns = static_cast<int>(r.gate.in);
  const auto topk = static_cast<int>(r.args.topk);
  const int segments = (columns + kSegment - 1) / kSegment;
  const auto block = static_cast<int>(blockIdx.x);
  const bool multiplies = block < r.panels;
  const int first_row = min(block, r.panels - 1) * kHalfPanelRows;
  const WeightPanel<kFormat> panel(r.gate, first_row, experts - 1, lane);
  HalfChunk chunks[kAhead];
  if (multiplies && warp < segments) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_half<kFormat>(panel, warp * kSegment + i * kChunk, lane, chunks[i]);
    // The other half of its columns, of a row a lane, and what is added to the scores.
    const int behind = warp * kSegment + kAhead * kChunk;
    if (lane < kHalfPanelRows && first_row + lane < experts && behind < columns)
      fetch_ahead(r.gate.values + (static_cast<int64_t>(first_row + lane) * columns + behind) * 2,
                  min(columns - behind, kSegment - kAhead * kChunk) * 2);
    if (thread == 0) fetch_ahead(reinterpret_cast<const uint8_t*>(r.args.bias), experts * 4 / 16 * 16);
  }
  wait_for_earlier();
  if (r.alone) let_next_begin();
  if (!multiplies) return quantize_inputs<kThreads>(r.args.v, r.rows * r.plan.input_columns, block - r.panels, r.plan.input);
  const int counted_rows = r.args.counts != nullptr ? *r.args.counted : 0;
  const Layout layout = layout_of(r.rows, columns, experts, topk);
  auto* parts = reinterpret_cast<float*>(memory);
  auto* kept = reinterpret_cast<bf16*>(memory + layout.kept) + warp * r.rows * kKeptStride;
  for (int segment = warp; segment < segments; segment += kWarps) {
    const int first = segment * kSegment;
    keep_segment(r.args.v, columns, r.rows, first, columns, kept);
    float c[1][4] = {};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int column = first + i * kChunk;
      if (column < columns) {
        const auto inputs = [&](int, int) {
          return g < r.rows ? load_again(kept + g * kKeptStride + column - first + t * (kChunk / 4)) : make_uint4(0, 0, 0, 0);
        };
        add_half<kFormat, false>(chunks[i % kAhead], true, inputs, c);
      }
      if (i + kAhead < kChunks) {
        load_half<kFormat>(panel, column + kAhead * kChunk, lane, chunks[i % kAhead]);
      } else if (segment + kWarps < segments) {
        load_half<kFormat>(panel, (segment + kWarps) * kSegment + (i + kAhead - kChunks) * kChunk, lane, chunks[i % kAhead]);
      }
    }
    float* part = parts + segment * kPartFloats;
#pragma unroll
    for (int i = 0; i < 4; ++i) part[(t * 2 + i % 2) * kPartStride + g + i / 2 * 8] = c[0][i];
  }
  __syncthreads();
  for (int i = thread; i < r.rows * kHalfPanelRows; i += kThreads) {
    const int input = i / kHalfPanelRows;
    const int row = i % kHalfPanelRows;
    if (first_row + row < experts)
      r.logits[input * experts + first_row + row] = sum_parts(parts, segments, kPartFloats, input, row);
  }
  __syncthreads();
  if (thread == 0) number = take_number(r.arrived);
  __syncthreads();
  if (number != r.panels - 1) return;  // the last sees what all wrote
  if (thread == 0) *r.arrived = 0;
  auto* score = reinterpret_cast<float*>(memory);
  auto* rank = reinterpret_cast<uint32_t*>(memory + layout.ranks);
  auto* chosen = reinterpret_cast<int*>(memory + layout.chosen);
  auto* weights = reinterpret_cast<float*>(memory + layout.weights);
  for (int i = thread; i < r.rows * experts; i += kThreads) {
    const int row = i / experts;
    const float s = router_score(r.logits[i], r.args.temperature);
    score[i] = s;
    rank[i] = rank_of(s + router_bias(r.args, row)[i - row * experts]);
  }
  __syncthreads();
  if (warp < r.rows)
    choose_for_row(r.args, warp, warp < counted_rows, score + warp * experts, rank + warp * experts, chosen + warp * topk,
                   weights + warp * topk);
  __syncthreads();
  plan_pairs<kThreads>(chosen, weights, r.rows, topk, experts, r.plan, reinterpret_cast<int*>(memory + layout.cursors), warps);
}

Layout layout_of(const RouteArgs& args, int64_t rows) {
  return layout_of(static_cast<int>(rows), static_cast<int>(args.gate.in), static_cast<int>(args.gate.out),
                   static_cast<int>(args.topk));
}

}  // namespace

bool takes_few_routed(const RouteArgs& args, const ExpertsArgs& experts, int64_t rows, const ExpertPlan& plan) {
  constexpr uint32_t kMostShared = 200 << 10;
  return rows > 0 && rows <= kMostRoutedRows && !plan.wide && args.v == experts.v && args.experts == experts.experts &&
         args.weights == experts.weights && args.topk == experts.topk &&
         args.gate.out == static_cast<int64_t>(experts.routed.size()) && args.gate.in % 8 == 0 &&
         layout_of(args, rows).bytes <= kMostShared;
}

void route_few(const RouteArgs& args, int64_t rows, const ExpertPlan& plan, bool alone, float* logits, int32_t* arrived,
               LaunchStream& stream) {
  Routing r;
  r.args = args;
  r.gate = view(args.gate);
  r.plan = plan;
  r.rows = static_cast<int>(rows);
  r.panels = static_cast<int>((args.gate.out + kHalfPanelRows - 1) / kHalfPanelRows);
  r.alone = alone;
  r.logits = logits;
  r.arrived = arrived;
  const int64_t rounding = alone ? 0 : quantizing_blocks<kThreads>(rows * plan.input_columns);
  stream.launch(routed_kernel, static_cast<unsigned>(r.panels + rounding), kThreads, layout_of(args, rows).bytes, r);
}

}  // namespace deepinfer::cuda
