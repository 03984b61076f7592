// Sorting a step's tokens by expert, and beside it their inputs rounded for the products. Where a pair lies among those of its
// expert is left to chance: no result depends on it.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/expert_plan.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/products.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 1024;

// Exclusive prefix sums of v over the block; *total is the sum of all.
__device__ int exclusive_scan(int v, int* warps, int* total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int sum = v;
#pragma unroll
  for (int step = 1; step < kWarp; step <<= 1) {
    const int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  *total = all;
  __syncthreads();
  return before + sum - v;
}

// As quantize_rows in the order kLanes does it, eight columns a thread, of the blocks behind the first.
__device__ void quantize_inputs(const bf16* v, int64_t count, bf16* to) {
  const int64_t at = ((static_cast<int64_t>(blockIdx.x) - 1) * kThreads + threadIdx.x) * 8;
  const uint4 own = at < count ? *reinterpret_cast<const uint4*>(v + at) : make_uint4(0, 0, 0, 0);
  float f[8];
  float amax = widen_eight(own, f);
  amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
  if (at < count) *reinterpret_cast<uint4*>(to + at) = round_eight(f, e8m0_value(fp8_scale_bits(amax)));
}

// The first block. Shared memory: counts, then cursors, of the experts.
__global__ void __launch_bounds__(kThreads) plan_kernel(const int32_t* experts, const float* weights, const bf16* v, int rows,
                                                        int topk, int expert_count, const ExpertPlan plan) {
  take_turn();
  if (blockIdx.x > 0) return quantize_inputs(v, rows * plan.input_columns, plan.input);
  auto* cursor = dynamic_shared_behind<int>();
  __shared__ int warps[kThreads / kWarp];
  const auto t = static_cast<int>(threadIdx.x);
  for (int e = t; e < expert_count; e += kThreads) cursor[e] = 0;
  __syncthreads();
  for (int i = t; i < rows * topk; i += kThreads) atomicAdd(&cursor[experts[i]], 1);
  __syncthreads();
  int pairs = 0;
  int tiles = 0;
  // The shared expert is one more, with every token.
  for (int base = 0; base <= expert_count; base += kThreads) {
    const int e = base + t;
    const int count = e < expert_count ? cursor[e] : e == expert_count ? rows : 0;
    int pair_total = 0;
    int tile_total = 0;
    const int first = pairs + exclusive_scan(count, warps, &pair_total);
    const int most = e == expert_count ? plan.shared_inputs : plan.tile_inputs;
    const int own_tiles = (count + most - 1) / most;
    const int first_tile = tiles + exclusive_scan(own_tiles, warps, &tile_total);
    // The shared expert's come last in the sums; its tiles may lie before all others.
    const int behind = plan.shared_first ? static_cast<int>(plan.shared_tiles) : 0;
    const int place = plan.shared_first && e == expert_count ? 0 : first_tile + behind;
    // Tiles whose cost follows their size are of equal sizes, in eights; none is empty, for the most they may have is a
    // multiple of 8 itself.
    const int share = plan.staged && own_tiles > 0 ? ((count + own_tiles - 1) / own_tiles + 7) / 8 * 8 : most;
    for (int i = 0; i < own_tiles; ++i) plan.tiles[place + i] = {e, first + i * share, min(share, count - i * share)};
    if (e < expert_count) cursor[e] = first;
    pairs += pair_total;
    tiles += tile_total;
  }
  for (int i = tiles + t; i < plan.tile_count; i += kThreads) plan.tiles[i] = {0, 0, 0};
  __syncthreads();
  for (int r = t; r < rows; r += kThreads) {
    int last = -1;
    for (int k = 0; k < topk; ++k) {
      int next = expert_count;
      int slot = 0;
      for (int i = 0; i < topk; ++i) {
        const int e = experts[r * topk + i];
        if (e > last && e < next) next = e, slot = i;
      }
      last = next;
      const int pair = atomicAdd(&cursor[next], 1);
      plan.token[pair] = r;
      plan.weight[pair] = weights[r * topk + slot];
      plan.pair_of[r * (topk + 1) + k] = pair;
    }
    const int pair = rows * topk + r;
    plan.token[pair] = r;
    plan.weight[pair] = 1.0f;  // the shared expert has no weight
    plan.pair_of[r * (topk + 1) + topk] = pair;
  }
}

}  // namespace

void sort_pairs(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream) {
  const auto experts = static_cast<int>(args.routed.size());
  const size_t shared = static_cast<size_t>(experts) * sizeof(int);
  const int64_t pieces = plan.wide ? 0 : (rows * plan.input_columns + 8 * kThreads - 1) / (8 * kThreads);
  stream.launch(plan_kernel, static_cast<unsigned>(1 + pieces), kThreads, shared, args.experts, args.weights, args.v,
                static_cast<int>(rows), static_cast<int>(args.topk), experts, plan);
}

}  // namespace deepinfer::cuda
