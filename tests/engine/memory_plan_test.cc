// What a device's memory is used for, planned before the first step.

#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "engine/core_harness.h"

namespace deepinfer::testing {
namespace {

class CoreMemoryPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    if (nano_model().backend->memory().total_bytes() == INT64_MAX) GTEST_SKIP() << "nobody knows how much memory there is";
    options_.model = "nano";
    options_.max_num_seqs = 4;
    options_.max_num_batched_tokens = 64;
    options_.max_model_len = 512;
  }
  Result<MemoryPlan> plan() { return plan_memory(nano_model(), options_, 8, 8, states_); }

  EngineOptions options_;
  std::vector<std::unique_ptr<SequenceState>> states_;
};

TEST_F(CoreMemoryPlan, PagesTakeWhatIsLeft) {
  const auto plan = this->plan();
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_EQ(plan->total, nano_model().backend->memory().total_bytes());
  EXPECT_EQ(plan->usable, static_cast<int64_t>(static_cast<double>(plan->total) * options_.gpu_memory_utilization));
  EXPECT_EQ(states_.size(), 4u);
  EXPECT_GT(plan->loaded, 0);
  EXPECT_GT(plan->sequences, 0);
  EXPECT_EQ(options_.kv_cache_memory, plan->pages);
  EXPECT_LE(plan->loaded + plan->workspace + plan->pages, plan->usable);  // sequences may fit into what was had already
  EXPECT_GT(plan->pages, plan->usable / 4);
  EXPECT_GT(nano_model().backend->memory().free_bytes(), plan->pages) << "it can be had";
}

TEST_F(CoreMemoryPlan, WhatIsAskedForIsChecked) {
  const auto text = [&] {
    const auto plan = this->plan();
    return plan ? plan->text() : plan.error().message();
  };
  options_.kv_cache_memory = int64_t{1} << 50;
  EXPECT_NE(text().find("pages (kv_cache_memory) take 1125899906842624 more, gpu_memory_utilization 0.9 of"), std::string::npos)
      << text();
  options_.kv_cache_memory = int64_t{1} << 20;
  EXPECT_NE(text().find("pages 0.00"), std::string::npos) << text();
  options_.max_num_seqs = int64_t{1} << 40;
  EXPECT_NE(text().find("1099511627776 sequences (max_num_seqs) take"), std::string::npos) << text();
}

TEST_F(CoreMemoryPlan, RowsOfAStepHaveALimit) {
  options_.max_num_batched_tokens = 65536;
  const auto plan = this->plan();
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().message(),
            "max_num_batched_tokens is 65536, a GPU takes at most 65535 rows a step, of which up to 0 are drafts");
  options_.max_num_batched_tokens = 65535;
  options_.speculation = SpeculationMode::kFixed;
  options_.num_speculative_tokens = 1;
  EXPECT_FALSE(this->plan().has_value());
}

}  // namespace
}  // namespace deepinfer::testing
