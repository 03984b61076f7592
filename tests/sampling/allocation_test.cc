#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "sampling/sampler.h"
#include "testing/allocation_counter.h"

namespace deepinfer {
namespace {

TEST(Sampler, DoesNotAllocateAfterConstruction) {
  if (!testing::kCountsAllocations) GTEST_SKIP() << "sanitizers have their own operator new";
  constexpr int64_t kVocab = 5000;
  SamplingParams plain;
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  SamplingParams everything;
  everything.temperature = 0.7f;
  everything.top_p = 0.999f;
  everything.top_k = 3000;
  everything.min_p = 1e-6f;
  everything.repetition_penalty = 1.1f;
  everything.presence_penalty = 0.5f;
  everything.frequency_penalty = 0.1f;
  everything.min_tokens = 10;
  everything.stop_token_ids = {1, 2};
  everything.logit_bias = {{3, 1.0f}};
  everything.allowed_token_ids.resize(1000);
  std::iota(everything.allowed_token_ids.begin(), everything.allowed_token_ids.end(), 0);

  for (const SamplingParams& params : {plain, greedy, everything}) {
    Sampler sampler(params, kVocab);
    sampler.add_prompt(std::vector<int32_t>{5, 6, 7});
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> logits(kVocab);
    const std::vector<uint32_t> mask((kVocab + 31) / 32, 0x7fffffffu);
    for (int64_t position = 3; position < 200; ++position) {
      for (float& z : logits) z = normal(random);
      const int64_t before = testing::allocations_made();
      const int32_t token = sampler.sample(logits, position, mask);
      sampler.add_output(token);
      EXPECT_EQ(testing::allocations_made(), before);
    }
  }
}

}  // namespace
}  // namespace deepinfer
