#pragma once

// Experts of a step of few rows (experts_few.cu).

#include "ops/cuda/experts.h"

namespace deepinfer::cuda {

inline constexpr int64_t kMostFewExperts = 2;  ///< rows
inline constexpr int64_t kMostArrived = 8192;  ///< numbers of FewScratch

struct FewScratch {
  float* parts = nullptr;      ///< few_hidden_parts; nullptr: hidden values as of many rows
  int32_t* arrived = nullptr;  ///< [kMostArrived], 0 before and after
};

/// Whether multiply_hidden_few takes a step, and whether it has enough to do to be the faster way.
bool takes_few_hidden(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan);
bool pays_few_hidden(const ExpertsArgs& args, const ExpertPlan& plan);
/// Floats; more for more rows.
int64_t few_hidden_parts(const ExpertsArgs& args, int64_t rows);
/// Hidden values of all pairs. `alone`: the kernel before has taken its turn alone, and args.v is older than it.
void multiply_hidden_few(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const ExpertPlan& plan,
                         const FewScratch& few, bool alone, LaunchStream& stream);
/// run_experts of experts.h with them. `planned`: by route_few, which takes its turn alone.
void run_experts(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const ExpertPlan& plan,
                 const FewScratch& few, bool planned, LaunchStream& stream);

}  // namespace deepinfer::cuda
