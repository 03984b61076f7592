#pragma once

// Router and experts (spec/backbone §4).

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// `logits` [rows, gate.out]: the gate's products, which this rewrites.
void choose_experts(const RouteArgs& args, int64_t rows, float* logits, LaunchStream& stream);

/// Scratch of a step's experts, and what the kernels make of the choices: pairs of a token and an expert, sorted by expert, the
/// shared expert's pairs last; tiles of pairs that use the same weights.
struct ExpertPlan {
  struct Tile {
    int32_t expert = 0;  ///< number of experts: the shared one
    int32_t first = 0;   ///< pair
    int32_t count = 0;   ///< 0: nothing to do
  };
  int32_t* token = nullptr;    ///< [pairs]
  float* weight = nullptr;     ///< [pairs]
  int32_t* pair_of = nullptr;  ///< [rows, topk + 1] pairs of a token in ascending order of the experts
  Tile* tiles = nullptr;       ///< [tile_count]
  int64_t pairs = 0;
  int64_t tile_count = 0;
  int shared_tiles = 0;  ///< the first tiles are the shared expert's, as many as it has; 0: they are the last
  int tile_inputs = 8;   ///< pairs of a tile at most
  bool wide = false;     ///< warpgroups multiply (wide.cuh)
  int64_t input_columns = 0;
  int64_t hidden_columns = 0;
  int64_t input_values = 0;  ///< of `input` and, if wide, of a second one for the shared expert behind it
  bf16* input = nullptr;     ///< [rows, input_columns] quantised, in the order of the products (products.h)
  bf16* hidden = nullptr;    ///< [pairs, hidden_columns] likewise
  bf16* output = nullptr;    ///< [pairs, hidden]
};

/// Sizes of the plan for a step; pointers are the caller's to fill. `shared_first`: see shared_tiles.
ExpertPlan plan_experts(const ExpertsArgs& args, int64_t rows, bool shared_first);
/// `routed`: device copy of args.routed.
void run_experts(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const ExpertPlan& plan,
                 LaunchStream& stream);

}  // namespace deepinfer::cuda
