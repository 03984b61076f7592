#include <gtest/gtest.h>

#include "engine/core_harness.h"
#include "engine/random_schedule.h"
#include "testing/sanitizer.h"

namespace deepinfer::testing {
namespace {

TEST(CoreSchedules, AnswersDoNotDependOnThem) { random_schedule(1, thinned(300)); }

// The same schedule twice makes the same plans, step for step.
TEST(CoreSchedules, ReplayTheSame) {
  std::vector<std::string> first;
  for (int round = 0; round < 2; ++round) {
    CoreSetup setup;
    setup.pages = 10;
    setup.max_num_seqs = 5;
    setup.max_num_batched_tokens = 64;
    CoreHarness h(setup);
    h.keep_plans = true;
    for (uint64_t i = 0; i < 12; ++i) h.submit(make_request(random_prompt(40 + 50 * static_cast<int64_t>(i), i), 150, i));
    h.run();
    if (round == 0) first = h.plans;
    EXPECT_EQ(h.plans, first);
    EXPECT_GT(h.core().stats().preemptions, 0);
  }
}

}  // namespace
}  // namespace deepinfer::testing
