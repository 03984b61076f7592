#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/prefill_cost.h"
#include "model/model.h"

namespace deepinfer {

/// What rows of a prompt take, measured: the best passes over a prompt of `rows` tokens and over a short one. No other step may
/// be under way. The passes count in the model's expert load.
Result<PrefillCost> measure_prefill_cost(Model& model, int64_t rows);

/// The line through the times of two steps with `few` and `many` rows times layers; never less than 0.
PrefillCost prefill_cost_of(double few_seconds, int64_t few, double many_seconds, int64_t many);

}  // namespace deepinfer
