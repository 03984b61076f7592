#pragma once

// Router and experts (spec/backbone §4).

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/products.h"
#include "ops/cuda/scratch_sizes.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// `logits` [parts, rows, gate.out]: the gate's products, or sums of parts of their columns, to be added in this order.
void choose_experts(const RouteArgs& args, int64_t rows, const float* logits, int64_t parts, LaunchStream& stream);

/// Scratch of a step's experts, and what the kernels make of the choices: pairs of a token and an expert, sorted by expert, the
/// shared expert's pairs last; tiles of pairs that use the same weights.
struct ExpertPlan : ExpertSizes {
  struct Tile {
    int32_t expert = 0;  ///< number of experts: the shared one
    int32_t first = 0;   ///< pair
    int32_t count = 0;   ///< 0: nothing to do
    int32_t done = 0;    ///< streamed plans: warps that have written their part of the hidden values
  };
  int32_t* token = nullptr;    ///< [pairs]
  float* weight = nullptr;     ///< [pairs]
  int32_t* pair_of = nullptr;  ///< [rows, topk + 1] pairs of a token in ascending order of the experts
  Tile* tiles = nullptr;       ///< [tile_count]
  int64_t fetch_bytes = 0;     ///< of a weight of the shared expert that its blocks ask for ahead
  bool shared_first = false;   ///< the shared expert's tiles are the first ones, and known before the others
  bool shared_apart = false;   ///< the shared expert goes to experts_widened.cu, not with the others; staged plans
  bool arranged = false;       ///< routed weights are in the order of fp4_order.h
  bf16* widened = nullptr;     ///< widened_shared_weights, if shared_apart
  bf16* input = nullptr;       ///< [rows, input_columns] quantised, in the order of the products (products.h)
  bf16* hidden = nullptr;      ///< [pairs, hidden_columns] likewise
  bf16* output = nullptr;      ///< [pairs, hidden]
};

/// A matrix of FP4 codes and their scales into the order of fp4_order.h, in place. `scratch`: bytes of both.
void arrange_panels(uint8_t* codes, uint8_t* scales, int64_t out, int64_t in, uint8_t* scratch, LaunchStream& stream);
/// The products of run_experts for a plan that is `staged` (experts_staged.cu).
void multiply_experts_staged(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream);
/// Those for a plan that is `streamed` (experts_streamed.cu).
void multiply_experts_streamed(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan,
                               LaunchStream& stream);
/// Whether the shared expert of a plan can be `shared_apart` (experts_widened.cu), and whether that pays: its last product.
WidenedProduct widened_shared(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan);
/// bf16 values of its widened weights.
int64_t widened_shared_weights(const ExpertsArgs& args);
/// Its inputs, behind the others', are in the order of widened.cuh.
void multiply_shared_widened(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream);
/// Whether experts of these shapes can have a plan with `panels` (experts_panels.cu); their weights have to be arranged.
bool takes_panels(const ExpertsArgs& args);
/// The routed experts' products of such a plan.
void multiply_hidden_panels(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream);
void multiply_output_panels(const ExpertsArgs& args, const ExpertWeights* routed, const ExpertPlan& plan, LaunchStream& stream);
/// `routed`: device copy of args.routed. `planned`: what `plan` points to is there, but for inputs of wide plans (route_few.h).
void run_experts(const ExpertsArgs& args, const ExpertWeights* routed, int64_t rows, const ExpertPlan& plan, LaunchStream& stream,
                 bool planned = false);
/// y [rows, hidden]: outputs of a token's experts in ascending order, the shared one last.
void sum_experts(const ExpertsArgs& args, int64_t rows, const ExpertPlan& plan, LaunchStream& stream);

}  // namespace deepinfer::cuda
