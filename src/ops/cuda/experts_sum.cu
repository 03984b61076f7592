// What the experts of a token add up to.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 8;  // outputs of a token that are on their way at once

template <int kWords>
struct alignas(kWords * 4) Words {
  uint32_t pair[kWords];
};

// 2 kWords columns a thread; a token's experts in ascending order, the shared one last.
template <int kWords>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const bf16* output, const int32_t* pair_of, int64_t count, int64_t hidden, int pairs, bf16* y) {
  take_turn();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 2 * kWords;
  if (at >= count) return;
  const int64_t row = at / hidden;
  const int64_t d = at % hidden;
  float low[kWords] = {}, high[kWords] = {};
  for (int first = 0; first < pairs; first += kAhead) {
    int32_t pair[kAhead];
    Words<kWords> v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) pair[k] = first + k < pairs ? pair_of[row * pairs + first + k] : -1;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (pair[k] >= 0) v[k] = *reinterpret_cast<const Words<kWords>*>(output + static_cast<int64_t>(pair[k]) * hidden + d);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (pair[k] < 0) break;
#pragma unroll
      for (int w = 0; w < kWords; ++w) low[w] += widen_low(v[k].pair[w]), high[w] += widen_high(v[k].pair[w]);
    }
  }
  Words<kWords> sum;
#pragma unroll
  for (int w = 0; w < kWords; ++w) sum.pair[w] = narrow_pair(low[w], high[w]);
  *reinterpret_cast<Words<kWords>*>(y + at) = sum;
}

template <int kWords>
void launch(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream) {
  const int64_t hidden = args.shared_w1.in;
  const int64_t threads = rows * hidden / (2 * kWords);
  stream.launch(sum_kernel<kWords>, static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, plan.output,
                plan.pair_of, rows * hidden, hidden, static_cast<int>(args.topk) + 1, args.y);
}

}  // namespace

void sum_experts(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream) {
  constexpr int64_t kManyRows = 16;  // that fill the device with eight columns a thread
  const bool aligned = (reinterpret_cast<uintptr_t>(args.y) | reinterpret_cast<uintptr_t>(plan.output)) % 16 == 0;
  if (rows >= kManyRows && args.shared_w1.in % 8 == 0 && aligned) return launch<4>(args, rows, plan, stream);
  launch<1>(args, rows, plan, stream);
}

}  // namespace deepinfer::cuda
