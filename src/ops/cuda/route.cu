// Router choices of any number of rows.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/route_math.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;

// One block a row: every thread scores, one warp chooses.
__global__ void __launch_bounds__(kThreads) route_kernel(const RouteArgs args, const float* logits, int64_t rows, int parts) {
  take_turn();
  auto* score = reinterpret_cast<float*>(dynamic_shared<uint4>());
  const int64_t row = blockIdx.x;
  const auto n = static_cast<int>(args.gate.out);
  auto* rank = reinterpret_cast<uint32_t*>(score + n);
  auto* weights = reinterpret_cast<float*>(rank + n);
  auto* chosen = reinterpret_cast<int*>(weights + args.topk);
  const bool counted = args.counts != nullptr && row < *args.counted;
  const float* bias = router_bias(args, row);
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kThreads) {
    const float* logit = logits + row * n + e;
    float product = logit[0];
#pragma unroll 8
    for (int part = 1; part < parts; ++part) product += logit[part * rows * n];
    const float s = router_score(product, args.temperature);
    score[e] = s;
    rank[e] = rank_of(s + bias[e]);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) choose_for_row(args, row, counted, score, rank, chosen, weights);
}

}  // namespace

void choose_experts(const RouteArgs& args, int64_t rows, const float* logits, int64_t parts, LaunchStream& stream) {
  if (rows == 0) return;
  const auto shared = static_cast<size_t>(args.gate.out) * (sizeof(float) + sizeof(uint32_t)) +
                      static_cast<size_t>(args.topk) * (sizeof(float) + sizeof(int));
  if (shared > 220 << 10) cuda_failed(__FILE__, __LINE__, "route", "too many experts");
  stream.launch(route_kernel, static_cast<unsigned>(rows), kThreads, shared, args, logits, rows, static_cast<int>(parts));
}

}  // namespace deepinfer::cuda
