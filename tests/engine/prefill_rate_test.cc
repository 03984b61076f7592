#include "engine/prefill_rate.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(PrefillCost, IsALineThroughTwoSteps) {
  PrefillCost cost = prefill_cost_of(3.0, 10, 12.0, 100);
  EXPECT_DOUBLE_EQ(cost.row_layer_seconds, 0.1);
  EXPECT_DOUBLE_EQ(cost.step_seconds, 2.0);
  EXPECT_DOUBLE_EQ(cost.average_seconds, 0.12);
  // Rows that cost nothing, as far as can be seen.
  cost = prefill_cost_of(5.0, 10, 4.0, 100);
  EXPECT_DOUBLE_EQ(cost.row_layer_seconds, 0);
  EXPECT_DOUBLE_EQ(cost.step_seconds, 4.0);
  // Few rows that took no time: a step costs nothing, and no less.
  cost = prefill_cost_of(0.0, 10, 9.0, 100);
  EXPECT_DOUBLE_EQ(cost.row_layer_seconds, 0.09);
  EXPECT_NEAR(cost.step_seconds, 0, 1e-12);
  // One size alone, and none.
  EXPECT_DOUBLE_EQ(prefill_cost_of(2.0, 15, 2.0, 15).step_seconds, 2.0);
  EXPECT_FALSE(prefill_cost_of(0, 0, 0, 0).known());
}

}  // namespace
}  // namespace deepinfer
