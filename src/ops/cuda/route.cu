// Router choices (spec/backbone §4, steps 2-4).

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;

// Smaller is better: higher score first, equal scores lower index first; -0 and +0 are one score, NaN comes last (ops/top_k.h).
// The index is the second half of the key.
__device__ uint32_t rank_of(float score) {
  if (score != score) return 0xffffffffu;
  const uint32_t u = __float_as_uint(score + 0.0f);
  return (u & 0x80000000u) != 0 ? u : ~(u | 0x80000000u);
}

// One block a row: every thread scores, one warp chooses, each round the best that is left. Its lanes have every 32nd expert, and
// know the best of them; only the lane whose best was chosen looks again, for the best that is worse.
__global__ void __launch_bounds__(kThreads) route_kernel(const RouteArgs args, const float* logits, int64_t rows, int parts) {
  take_turn();
  auto* score = reinterpret_cast<float*>(dynamic_shared<uint4>());
  const int64_t row = blockIdx.x;
  const auto n = static_cast<int>(args.gate.out);
  const auto topk = static_cast<int>(args.topk);
  auto* rank = reinterpret_cast<uint32_t*>(score + n);
  auto* chosen = reinterpret_cast<int*>(rank + n);
  const bool counted = args.counts != nullptr && row < *args.counted;
  const float* bias = args.image != nullptr && args.image[row] != 0 ? args.bias_vl : args.bias;
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kThreads) {
    const float* logit = logits + row * n + e;
    float product = logit[0];
#pragma unroll 8
    for (int part = 1; part < parts; ++part) product += logit[part * rows * n];
    const float z = product / args.temperature;
    const float s = sqrtf(z > 20.0f ? z : log1pf(expf(z)));
    score[e] = s;
    rank[e] = rank_of(s + bias[e]);
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const auto lane = static_cast<int>(threadIdx.x);
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
    args.experts[row * topk + k] = e;
    args.weights[row * topk + k] = w * args.scale;
    if (counted) atomicAdd(reinterpret_cast<unsigned long long*>(args.counts + e), 1ull);
  }
}

}  // namespace

void choose_experts(const RouteArgs& args, int64_t rows, const float* logits, int64_t parts, LaunchStream& stream) {
  if (rows == 0) return;
  const auto shared =
      static_cast<size_t>(args.gate.out) * (sizeof(float) + sizeof(uint32_t)) + static_cast<size_t>(args.topk) * sizeof(int);
  if (shared > 220 << 10) cuda_failed(__FILE__, __LINE__, "route", "too many experts");
  stream.launch(route_kernel, static_cast<unsigned>(rows), kThreads, shared, args, logits, rows, static_cast<int>(parts));
}

}  // namespace deepinfer::cuda
