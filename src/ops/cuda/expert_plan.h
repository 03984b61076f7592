#pragma once

#include "ops/cuda/experts.h"

namespace deepinfer::cuda {

/// Fills token, weight, pair_of, tiles, and if the plan is not wide the inputs.
void sort_pairs(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream);

}  // namespace deepinfer::cuda
