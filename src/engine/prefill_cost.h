#pragma once

namespace deepinfer {

/// What computing rows of prompts takes, in seconds. All 0: unknown.
struct PrefillCost {
  double average_seconds = 0;    ///< of a row in a layer with its share of the step, in steps of many rows
  double row_layer_seconds = 0;  ///< of one row more in a layer
  double step_seconds = 0;       ///< of a step besides its rows
  double direct_seconds = 0;     ///< more for a step that is launched operator by operator, as those are that wait for pages

  bool known() const { return row_layer_seconds > 0 || step_seconds > 0; }
};

}  // namespace deepinfer
