#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/model.h"

namespace deepinfer {

/// Seconds that a row of a prompt takes in a layer when `rows` of them run at once, measured: the best of two or three passes
/// over a prompt of its own. No other step may be under way. The passes count in the model's expert load.
Result<double> measure_row_layer_seconds(Model& model, int64_t rows);

}  // namespace deepinfer
