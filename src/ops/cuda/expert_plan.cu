// A step's tokens sorted by expert, and beside it their inputs rounded for the products.

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/expert_plan.cuh"
#include "ops/cuda/expert_plan.h"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 1024;

// The first block sorts, the others round. Shared memory: counts, then cursors, of the experts.
__global__ void __launch_bounds__(kThreads) plan_kernel(const int32_t* experts, const float* weights, const bf16* v, int rows,
                                                        int topk, int expert_count, const ExpertPlan plan) {
  take_turn();
  if (blockIdx.x > 0)
    return quantize_inputs<kThreads>(v, rows * plan.input_columns, static_cast<int64_t>(blockIdx.x) - 1, plan.input);
  auto* cursor = dynamic_shared_behind<int>();
  __shared__ int warps[kThreads / kWarp];
  plan_pairs<kThreads>(experts, weights, rows, topk, expert_count, plan, cursor, warps);
}

}  // namespace

void sort_pairs(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream) {
  const auto experts = static_cast<int>(args.routed.size());
  const size_t shared = static_cast<size_t>(experts) * sizeof(int);
  const int64_t pieces = plan.wide ? 0 : quantizing_blocks<kThreads>(rows * plan.input_columns);
  stream.launch(plan_kernel, static_cast<unsigned>(1 + pieces), kThreads, shared, args.experts, args.weights, args.v,
                static_cast<int>(rows), static_cast<int>(args.topk), experts, plan);
}

}  // namespace deepinfer::cuda
