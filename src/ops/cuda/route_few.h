#pragma once

#include "ops/cuda/experts.h"

namespace deepinfer::cuda {

inline constexpr int64_t kMostRoutedRows = 8;  ///< of route_few
/// Whether it takes them.
bool takes_few_routed(const RouteArgs& args, const ExpertsArgs& experts, int64_t rows, const ExpertPlan& plan);
/// What the gate's product, choose_experts and sort_pairs do, with the same bits. `logits`: [rows, experts] of scratch;
/// `arrived`: a number that is 0, and is 0 again behind it. `alone`: takes its turn alone, for a successor that rounds the inputs
/// for itself (experts_few.h).
void route_few(const RouteArgs& args, int64_t rows, const ExpertPlan& plan, bool alone, float* logits, int32_t* arrived,
               LaunchStream& stream);

}  // namespace deepinfer::cuda
