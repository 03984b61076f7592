#pragma once

// Router choices (spec/backbone §4, steps 2-4), of a row whose logits are there.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// Smaller is better: higher score first, equal scores lower index first; -0 and +0 are one score, NaN comes last (ops/top_k.h).
/// The index is the second half of the key.
__device__ inline uint32_t rank_of(float score) {
  if (score != score) return 0xffffffffu;
  const uint32_t u = __float_as_uint(score + 0.0f);
  return (u & 0x80000000u) != 0 ? u : ~(u | 0x80000000u);
}

__device__ inline float router_score(float logit, float temperature) {
  const float z = logit / temperature;
  return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}

__device__ inline const float* router_bias(const RouteArgs& args, int64_t row) {
  return args.image != nullptr && args.image[row] != 0 ? args.bias_vl : args.bias;
}

/// A warp's row: each round the best that is left. Lanes have every 32nd expert, and know the best of them; only the lane whose
/// best was chosen looks again, for the best that is worse. `score`, `rank` [n]: shared memory, as `chosen` and `weights` [topk]
/// are, which get what the row's outputs get.
__device__ inline void choose_for_row(const RouteArgs& args, int64_t row, bool counted, const float* score, const uint32_t* rank,
                                      int* chosen, float* weights) {
  const auto n = static_cast<int>(args.gate.out);
  const auto topk = static_cast<int>(args.topk);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t best = 0xffffffffu;  // rank
  uint32_t mine = 0xffffffffu;  // whose it is; none left
  const auto look = [&](uint32_t last_rank, int last) {
    best = mine = 0xffffffffu;
#pragma unroll 4
    for (int e = lane; e < n; e += kWarp) {
      const uint32_t v = rank[e];
      const bool left = v > last_rank || (v == last_rank && e > last);
      // Ascending experts: of equals the first stays.
      if (left && (v < best || mine == 0xffffffffu)) best = v, mine = static_cast<uint32_t>(e);
    }
  };
  look(0, -1);
  float sum = 0;
  for (int k = 0; k < topk; ++k) {
    const uint32_t last_rank = __reduce_min_sync(0xffffffffu, best);
    const auto last = static_cast<int>(__reduce_min_sync(0xffffffffu, best == last_rank ? mine : 0xffffffffu));
    sum += score[last];
    if (lane == 0) chosen[k] = last;
    if (mine == static_cast<uint32_t>(last)) look(last_rank, last);
  }
  __syncwarp();
  for (int k = lane; k < topk; k += kWarp) {
    const int e = chosen[k];
    float w = score[e];
    if (args.normalize && topk > 1) w /= sum + 1e-20f;
    weights[k] = w * args.scale;
    args.experts[row * topk + k] = e;
    args.weights[row * topk + k] = w * args.scale;
    if (counted) atomicAdd(reinterpret_cast<unsigned long long*>(args.counts + e), 1ull);
  }
}

}  // namespace deepinfer::cuda
