// Router choices (spec/backbone §4, steps 2-4).

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 128;

// Smaller is better: higher score first, equal scores lower index first; -0 and +0 are one score, NaN comes last (ops/top_k.h).
__device__ uint64_t rank_key(float score, uint32_t index) {
  if (score != score) return uint64_t{0xffffffffu} << 32 | index;
  const uint32_t u = __float_as_uint(score + 0.0f);
  const uint32_t ordered = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
  return static_cast<uint64_t>(~ordered) << 32 | index;
}

// One block a row. Each round takes the best key that is worse than the last one chosen.
__global__ void __launch_bounds__(kThreads) route_kernel(const RouteArgs args, float* logits) {
  take_turn();
  __shared__ uint64_t best[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  const auto n = static_cast<int>(args.gate.out);
  float* score = logits + row * n;
  const float* bias = args.image != nullptr && args.image[row] != 0 ? args.bias_vl : args.bias;
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kThreads) {
    const float z = score[e] / args.temperature;
    score[e] = sqrtf(z > 20.0f ? z : log1pf(expf(z)));
  }
  uint64_t last = 0;
  float sum = 0;
  const auto topk = static_cast<int>(args.topk);
  for (int k = 0; k < topk; ++k) {
    uint64_t mine = ~uint64_t{0};
    for (int e = static_cast<int>(threadIdx.x); e < n; e += kThreads) {  // each thread reads what it wrote
      const uint64_t key = rank_key(score[e] + bias[e], static_cast<uint32_t>(e));
      if ((k == 0 || key > last) && key < mine) mine = key;
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) mine = min(mine, __shfl_xor_sync(0xffffffffu, mine, step));
    if (threadIdx.x % kWarp == 0) best[threadIdx.x / kWarp] = mine;
    __syncthreads();
    last = best[0];
#pragma unroll
    for (int w = 1; w < kThreads / kWarp; ++w) last = min(last, best[w]);
    const auto e = static_cast<int32_t>(last & 0xffffffffu);
    const float s = score[e];
    sum += s;
    if (threadIdx.x == 0) {
      args.experts[row * topk + k] = e;
      args.weights[row * topk + k] = s;
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  for (int k = 0; k < topk; ++k) {
    float w = args.weights[row * topk + k];
    if (args.normalize && topk > 1) w /= sum + 1e-20f;
    args.weights[row * topk + k] = w * args.scale;
  }
  if (args.counts == nullptr || row >= *args.counted) return;
  for (int k = 0; k < topk; ++k)
    atomicAdd(reinterpret_cast<unsigned long long*>(args.counts + args.experts[row * topk + k]), 1ull);
}

}  // namespace

void choose_experts(const RouteArgs& args, int64_t rows, float* logits, LaunchStream& stream) {
  if (rows == 0) return;
  stream.launch(route_kernel, static_cast<unsigned>(rows), kThreads, 0, args, logits);
}

}  // namespace deepinfer::cuda
