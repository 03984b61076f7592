// A device's memory is taken at the start: no step asks for more, whatever it does.

#include <gtest/gtest.h>

#include "engine/core_harness.h"

namespace deepinfer::testing {
namespace {

TEST(CoreMemory, NoStepAllocates) {
  if (device_allocations() < 0) GTEST_SKIP() << "the backend's memory is the host's own";
  for (const auto& [speculation, replay] :
       {std::pair(SpeculationMode::kOff, ReplayMode::kBounded), std::pair(SpeculationMode::kFixed, ReplayMode::kExact)}) {
    CoreSetup setup;
    setup.speculation = speculation;
    setup.replay = replay;
    CoreHarness h(setup);
    const int64_t before = device_allocations();
    std::vector<Request> requests;
    for (int64_t i = 0; i < 9; ++i) {
      Request r = make_request(random_prompt(i % 5 == 0 ? 600 : 3 + 17 * i, static_cast<uint64_t>(i)), 3 + i % 9 * 2,
                               static_cast<uint64_t>(i));
      r.replay = replay;
      if (i % 4 == 1) r.n = 3;
      if (i % 6 == 2) r.prompt_logprobs = 2;
      if (i % 3 == 0) r.logprobs.reset();
      requests.push_back(std::move(r));
    }
    for (const Request& r : requests) h.submit(r);
    h.run();
    // Prefixes are hit and windows restored now.
    for (const Request& r : requests) h.submit(r);
    h.run();
    EXPECT_EQ(device_allocations(), before) << speculation_mode_name(speculation) << ", " << replay_mode_name(replay);
  }
}

}  // namespace
}  // namespace deepinfer::testing
