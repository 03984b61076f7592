#pragma once

// Sorting a step's tokens by expert, by one block, and inputs rounded for the products.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/instructions.cuh"

namespace deepinfer::cuda {

/// Exclusive prefix sums of v over a block of kThreads; *total is the sum of all. `warps`: shared, of as many as the block has.
template <int kThreads>
__device__ inline int exclusive_scan(int v, int* warps, int* total) {
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

/// As quantize_rows in the order kLanes does it, eight columns a thread, of block `block` of kThreads.
template <int kThreads>
__device__ inline void quantize_inputs(const bf16* v, int64_t count, int64_t block, bf16* to) {
  const int64_t at = (block * kThreads + threadIdx.x) * 8;
  const uint4 own = at < count ? *reinterpret_cast<const uint4*>(v + at) : make_uint4(0, 0, 0, 0);
  float f[8];
  float amax = widen_eight(own, f);
  amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
  if (at < count) *reinterpret_cast<uint4*>(to + at) = round_eight(f, e8m0_value(fp8_scale_bits(amax)));
}
template <int kThreads>
inline int64_t quantizing_blocks(int64_t count) {
  return (count + 8 * kThreads - 1) / (8 * kThreads);
}

/// For a whole block of kThreads. Shared memory: `cursor` [expert_count], `warps`. Where a pair lies among those of its expert is
/// left to chance: no result depends on it. `experts`, `weights` [rows, topk]: a row's experts are all different.
template <int kThreads>
__device__ inline void plan_pairs(const int32_t* experts, const float* weights, int rows, int topk, int expert_count,
                                  const ExpertPlan& plan, int* cursor, int* warps) {
  constexpr int kAhead = 4;  // pairs of a thread that are on their way at once
  const auto t = static_cast<int>(threadIdx.x);
  for (int e = t; e < expert_count; e += kThreads) cursor[e] = 0;
  __syncthreads();
  for (int base = t; base < rows * topk; base += kAhead * kThreads) {
    int e[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = base + a * kThreads;
      e[a] = i < rows * topk ? experts[i] : -1;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (e[a] >= 0) atomicAdd(&cursor[e[a]], 1);
    }
  }
  __syncthreads();
  // Tiles whose cost follows their size are of equal sizes, in eights; none is empty, for the most they may have is a multiple of
  // 8 itself.
  const auto share_of = [&](int count, int own_tiles, int most) {
    return plan.staged && own_tiles > 0 ? ((count + own_tiles - 1) / own_tiles + 7) / 8 * 8 : most;
  };
  // The shared expert's pairs, every token, are the last; its tiles may lie before all others.
  const int behind = plan.shared_first ? static_cast<int>(plan.shared_tiles) : 0;
  int pairs = 0;
  int tiles = 0;
  for (int base = 0; base < expert_count; base += kThreads) {
    const int e = base + t;
    const int count = e < expert_count ? cursor[e] : 0;
    int pair_total = 0;
    int tile_total = 0;
    const int first = pairs + exclusive_scan<kThreads>(count, warps, &pair_total);
    const int own_tiles = (count + plan.tile_inputs - 1) / plan.tile_inputs;
    const int place = tiles + exclusive_scan<kThreads>(own_tiles, warps, &tile_total) + behind;
    const int share = share_of(count, own_tiles, plan.tile_inputs);
    for (int i = 0; i < own_tiles; ++i) plan.tiles[place + i] = {e, first + i * share, min(share, count - i * share)};
    if (e < expert_count) cursor[e] = first;
    pairs += pair_total;
    tiles += tile_total;
  }
  const int own_tiles = (rows + plan.shared_inputs - 1) / plan.shared_inputs;
  const int share = share_of(rows, own_tiles, plan.shared_inputs);
  for (int i = t; i < own_tiles; i += kThreads)
    plan.tiles[(plan.shared_first ? 0 : tiles) + i] = {expert_count, pairs + i * share, min(share, rows - i * share)};
  tiles += own_tiles;
  for (int i = tiles + t; i < plan.tile_count; i += kThreads) plan.tiles[i] = {0, 0, 0};
  __syncthreads();
  const int slots = rows * (topk + 1);
  for (int base = t; base < slots; base += kAhead * kThreads) {
    int e[kAhead], before[kAhead];
    float weight[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = base + a * kThreads;
      const int r = i / (topk + 1);
      const int slot = i % (topk + 1);
      const bool routed = i < slots && slot < topk;
      e[a] = routed ? experts[r * topk + slot] : -1;
      weight[a] = routed ? weights[r * topk + slot] : 1.0f;  // the shared expert has none
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      before[a] = topk;  // the shared expert's pair comes last
      if (e[a] < 0) continue;
      const int r = (base + a * kThreads) / (topk + 1);
      before[a] = 0;
      for (int k = 0; k < topk; ++k) before[a] += experts[r * topk + k] < e[a] ? 1 : 0;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = base + a * kThreads;
      if (i >= slots) break;
      const int r = i / (topk + 1);
      const int pair = e[a] >= 0 ? atomicAdd(&cursor[e[a]], 1) : rows * topk + r;
      plan.token[pair] = r;
      plan.weight[pair] = weight[a];
      plan.pair_of[r * (topk + 1) + before[a]] = pair;
    }
  }
}

}  // namespace deepinfer::cuda
