#include "telemetry/expert_load.h"

#include <gtest/gtest.h>

namespace deepinfer::telemetry {
namespace {

TEST(ExpertLoad, CountsChoicesByLayer) {
  ExpertLoad load({4, 2});
  load.count(0, std::vector<int32_t>{0, 3, 3, 1});
  load.count(1, std::vector<int32_t>{1});
  load.count(0, std::vector<int32_t>{3});
  EXPECT_EQ(load.counts(), (std::vector<std::vector<int64_t>>{{1, 1, 0, 3}, {0, 1}}));
}

TEST(ExpertLoad, TakesWhatADeviceHasCounted) {
  ExpertLoad load({3, 2});
  load.count(1, std::vector<int32_t>{1});
  load.set(0, std::vector<int64_t>{5, 0, 7});
  load.set(0, std::vector<int64_t>{6, 1, 7});
  EXPECT_EQ(load.counts(), (std::vector<std::vector<int64_t>>{{6, 1, 7}, {0, 1}}));
}

}  // namespace
}  // namespace deepinfer::telemetry
