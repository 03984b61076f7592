// Prefixes from the tiers below the device: answers are those of a cold run whatever was pulled, and whatever became of the pull.

#include <gtest/gtest.h>

#include "engine/core_harness.h"
#include "engine/memory_tiers.h"

namespace deepinfer::testing {
namespace {

KvPageShape nano_shape() { return page_shape(nano_model().model->page_layout()); }

Request prompt_of(int64_t tokens, uint64_t seed = 1, int64_t n = 1) {
  Request r = make_request(random_prompt(tokens, seed), 6, seed);
  r.replay = ReplayMode::kExact;
  r.n = n;
  return r;
}

void expect_cold(CoreHarness& h, RequestId id, const Request& request, const std::string& what) {
  const auto want = run_alone(request);
  for (size_t c = 0; c < want.size(); ++c) expect_same(h.answers(id)[c], want[c], what);
}

void fill(MemoryTiers& tiers, const Request& request) {
  CoreSetup setup;
  setup.tiers = &tiers;
  setup.staged_pages = 64;  // so that nothing is dropped
  CoreHarness h(setup);
  h.submit(request);
  h.run();
}

TEST(CoreTiers, PulledPrefixesGiveTheBitsOfAColdRun) {
  MemoryTiers tiers(nano_shape());
  const Request longest = prompt_of(700);
  fill(tiers, longest);
  ASSERT_GE(tiers.size(), 5);
  for (const bool async : {true, false}) {
    for (const int64_t n : {1, 3}) {
      for (const int64_t tokens : {129, 256, 257, 391, 700}) {
        CoreSetup setup;
        setup.tiers = &tiers;
        setup.async = async;
        CoreHarness h(setup);
        Request request = prompt_of(700, 1, n);
        request.prompt.resize(static_cast<size_t>(tokens));
        const RequestId id = h.submit(request);
        h.run();
        const std::string what = fmt::format("{} tokens, n {}, async {}", tokens, n, async);
        expect_cold(h, id, request, what);
        const Usage& usage = h.answers(id)[0].usage;
        EXPECT_EQ(usage.cached_tokens, (tokens - 1) / 128 * 128) << what;
        ASSERT_EQ(usage.tiers.parts.size(), 1u) << what;
        EXPECT_EQ(usage.tiers.parts[0].tier, "host") << what;
        EXPECT_EQ(usage.tiers.tokens(), usage.cached_tokens) << what;
        EXPECT_EQ(h.core().stats().pulled_tokens, usage.cached_tokens) << what;
        EXPECT_EQ(h.core().stats().cached_tokens, usage.cached_tokens) << what;
        // Now it is in the device's index.
        const int64_t pulls = h.core().stats().pulls;
        h.submit(request);
        h.run();
        EXPECT_EQ(h.core().stats().pulls, pulls) << what;
      }
    }
  }
}

TEST(CoreTiers, TheDeviceHasTheFirstPagesAndATierTheNext) {
  MemoryTiers tiers(nano_shape());
  fill(tiers, prompt_of(700));
  CoreSetup setup;
  setup.tiers = &tiers;
  CoreHarness h(setup);
  Request request = prompt_of(700);
  request.prompt.resize(300);
  h.submit(request);
  h.run();
  request = prompt_of(700);
  tiers.touched = 0;
  const RequestId id = h.submit(request);
  h.run();
  expect_cold(h, id, request, "mixture");
  EXPECT_EQ(tiers.touched, 2) << "what the device had was used, too; a pull touches the rest";
  EXPECT_EQ(h.answers(id)[0].usage.cached_tokens, 640);
  EXPECT_EQ(h.answers(id)[0].usage.tiers.tokens(), 384);
}

TEST(CoreTiers, APullThatFailsAnywhereCostsTimeOnly) {
  MemoryTiers tiers(nano_shape());
  const Request request = prompt_of(600, 1, 2), other = prompt_of(200, 9);
  fill(tiers, request);
  const auto groups = static_cast<int64_t>(tiers.shape().group_bytes.size());
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t page = 0; page < 4; ++page) {
      tiers.failing_group = group;
      tiers.failing_page = page;
      CoreSetup setup;
      setup.tiers = &tiers;
      setup.max_num_batched_tokens = 1024;
      CoreHarness h(setup);
      const RequestId id = h.submit(request), company = h.submit(other);
      h.run();
      const std::string what = fmt::format("group {} page {}", group, page);
      EXPECT_GE(h.core().stats().pulls_failed, 1) << what;  // the company, stored by an earlier round, may fail too
      EXPECT_EQ(h.answers(id)[0].usage.tiers.miss, "corrupt") << what;
      EXPECT_EQ(h.answers(id)[0].usage.cached_tokens, page * 128) << what;
      expect_cold(h, id, request, what);
      expect_cold(h, company, other, what + ", company");
    }
  }
}

TEST(CoreTiers, CancelledOrPreemptedWhilePulling) {
  MemoryTiers tiers(nano_shape());
  const Request request = prompt_of(600);
  fill(tiers, request);
  tiers.seconds_per_group = 0.005;
  for (const bool preempt : {false, true}) {
    for (int at = 0; at < 6; ++at) {
      CoreSetup setup;
      setup.tiers = &tiers;
      CoreHarness h(setup);
      const RequestId id = h.submit(request);
      for (int i = 0; i < at; ++i) h.turn();
      if (preempt) {
        for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
      } else {
        h.core().end(id, FinishReason::kCancelled);
      }
      h.core().check_invariants();
      h.run();
      if (preempt) expect_cold(h, id, request, fmt::format("preempted after {}", at));
    }
  }
}

// The first plan is forgotten: what the request is told is what it got in the end, and counters count it once.
TEST(CoreTiers, APreemptedPullCountsForNothing) {
  MemoryTiers tiers(nano_shape());
  const Request request = prompt_of(600), other = prompt_of(300, 7);
  fill(tiers, request);
  for (const bool again : {true, false}) {
    CoreSetup setup;
    setup.tiers = &tiers;
    setup.cut_over = true;
    CoreHarness h(setup);
    tiers.estimate = 0;
    tiers.seconds_per_group = 0;
    h.submit(other);  // from now on it is known what computing takes
    h.run();
    const EngineStats before = h.core().stats();
    tiers.seconds_per_group = 0.02;
    const RequestId id = h.submit(request);
    while (h.core().stats().pulls == before.pulls) h.turn();
    const std::vector<SequenceId> running = h.core().running_ids();
    ASSERT_EQ(running.size(), 1u);
    ASSERT_TRUE(h.core().preempt(running[0]));
    EXPECT_EQ(h.core().stats().cached_tokens, before.cached_tokens);
    if (!again) tiers.estimate = 1e9;
    h.run();
    const std::string what = again ? "pulled again" : "computed";
    expect_cold(h, id, request, what);
    const Usage& usage = h.answers(id)[0].usage;
    EXPECT_EQ(h.core().stats().pulls - before.pulls, again ? 2 : 1) << what;
    EXPECT_EQ(usage.cached_tokens, again ? 512 : 0) << what;
    EXPECT_EQ(usage.tiers.tokens(), usage.cached_tokens) << what;
    const EngineStats after = h.core().stats();
    EXPECT_EQ(after.cached_tokens - before.cached_tokens, usage.cached_tokens) << what;
    EXPECT_EQ(after.prefix_hits - before.prefix_hits, usage.cached_tokens) << what;
    EXPECT_EQ(after.replayed_tokens - before.replayed_tokens, usage.replayed_tokens) << what;
    EXPECT_EQ(after.prompt_tokens - before.prompt_tokens, 600) << what;
    EXPECT_EQ(after.prefix_queries - before.prefix_queries, 600) << what;
  }
}

TEST(CoreTiers, WhatComputingIsFasterForIsComputed) {
  MemoryTiers tiers(nano_shape());
  const Request request = prompt_of(1000), other = prompt_of(300, 7);
  fill(tiers, request);
  CoreSetup setup;
  setup.tiers = &tiers;
  setup.cut_over = true;
  CoreHarness h(setup);
  h.submit(other);  // from now on it is known what computing takes
  h.run();
  tiers.estimate = 1e9;
  RequestId id = h.submit(request);
  h.run();
  expect_cold(h, id, request, "refused");
  EXPECT_EQ(h.answers(id)[0].usage.tiers.miss, "slow");
  EXPECT_EQ(h.answers(id)[0].usage.cached_tokens, 0);
  EXPECT_EQ(h.core().stats().pulls_refused, 1);
  EXPECT_EQ(h.core().stats().pulls, 0);
  EXPECT_EQ(tiers.probed, 7);
  // The same with a tier that is fast.
  tiers.estimate = 1e-9;
  h.cache().clear();
  h.windows().clear();
  id = h.submit(request);
  h.run();
  expect_cold(h, id, request, "pulled");
  EXPECT_EQ(h.answers(id)[0].usage.cached_tokens, 7 * 128);
  EXPECT_EQ(h.core().stats().pulls, 1);
  EXPECT_EQ(h.core().stats().pulls_refused, 1);
}

// On a device a step of few rows takes as long as one of many: what rows are saved is worth little then, whole steps are worth
// much, and a step that waits for pages takes longer than one that does not.
TEST(CoreTiers, ShortPrefixesAreComputedWhereStepsCountAndNotRows) {
  MemoryTiers tiers(nano_shape());
  const Request longer = prompt_of(1000), shorter = prompt_of(200, 7);
  fill(tiers, longer);
  fill(tiers, shorter);
  CoreSetup setup;
  setup.tiers = &tiers;
  setup.cut_over = true;
  setup.max_num_batched_tokens = 256;
  setup.prefill = {.row_layer_seconds = 1e-12, .step_seconds = 1e6, .direct_seconds = 1e5};
  tiers.estimate = 1e3;
  CoreHarness h(setup);
  Request bounded = shorter;
  bounded.replay = ReplayMode::kBounded;
  h.submit(bounded);
  h.run();
  EXPECT_EQ(h.core().stats().pulls_refused, 1) << "one step with the pages, and without";
  EXPECT_EQ(h.core().stats().pulls, 0);
  bounded = longer;
  bounded.replay = ReplayMode::kBounded;
  h.submit(bounded);
  h.run();
  EXPECT_EQ(h.core().stats().pulls, 1) << "three steps less";
  EXPECT_EQ(h.core().stats().pulls_refused, 1);
}

// An exact replay that begins at the first token computes everything: pages of a tier would save nothing.
TEST(CoreTiers, PagesThatSaveNothingAreNotPulled) {
  MemoryTiers tiers(nano_shape());
  const Request request = prompt_of(200);
  fill(tiers, request);
  ASSERT_GE(ReplayGeometry::Of(nano_model().config()).exact_distance, 128);
  CoreSetup setup;
  setup.tiers = &tiers;
  setup.cut_over = true;
  CoreHarness h(setup);
  const RequestId id = h.submit(request);
  h.run();
  expect_cold(h, id, request, "exact");
  EXPECT_EQ(h.core().stats().pulls_refused, 1);
  Request bounded = request;
  bounded.replay = ReplayMode::kBounded;
  h.cache().clear();
  h.windows().clear();
  h.submit(bounded);
  h.run();
  EXPECT_EQ(h.core().stats().pulls, 1) << "a bounded one replays a window";
}

// Few pages, so that each is soon somebody else's: what was stored is what was computed, and what was pulled is what was stored.
TEST(CoreTiers, PagesThatAreCopiedAreNobodyElses) {
  std::vector<Request> requests;
  std::vector<std::vector<Answer>> cold;
  for (uint64_t i = 0; i < 6; ++i) {
    Request request = prompt_of(200 + 70 * static_cast<int64_t>(i), i);
    request.max_tokens = i % 2 == 0 ? 1 : 20;  // some leave their pages as soon as they are full
    cold.push_back(run_alone(request));
    requests.push_back(std::move(request));
  }
  for (const int64_t staged : {1, 3, 64}) {
    MemoryTiers tiers(nano_shape());
    CoreSetup setup;
    setup.tiers = &tiers;
    setup.pages = 12;
    setup.max_num_seqs = 4;
    setup.staged_pages = staged;
    CoreHarness h(setup);
    std::vector<RequestId> ids;
    for (int round = 0; round < 3; ++round) {
      for (const Request& request : requests) ids.push_back(h.submit(request));
      // What nobody uses is free after each turn, and what was freed last is the first to be taken.
      for (h.turn(); h.core().busy(); h.turn()) h.cache().clear();
    }
    EXPECT_GT(h.core().stats().pulls, 0) << staged;
    for (size_t i = 0; i < ids.size(); ++i)
      expect_same(h.answers(ids[i])[0], cold[i % cold.size()][0], fmt::format("{} staged, request {}", staged, i));
  }
}

// Longer than the pinned memory that they pass, several at a time, and their rows in the order in which they are needed.
TEST(CoreTiers, PullsShareLittlePinnedMemory) {
  MemoryTiers tiers(nano_shape());
  const Request first = prompt_of(1000, 3), second = prompt_of(900, 4);
  fill(tiers, first);
  fill(tiers, second);
  ASSERT_GE(tiers.size(), 14) << "write-back had enough of it";
  for (const int64_t staged : {1, 2, 5}) {
    CoreSetup setup;
    setup.tiers = &tiers;
    setup.staged_pages = staged;
    CoreHarness h(setup);
    const RequestId one = h.submit(first), two = h.submit(second);
    h.run();
    const std::string what = fmt::format("{} staged", staged);
    EXPECT_EQ(h.core().stats().pulls, 2) << what;
    EXPECT_EQ(h.answers(one)[0].usage.tiers.tokens(), 896) << what;
    EXPECT_EQ(h.answers(two)[0].usage.tiers.tokens(), 896) << what;
    expect_cold(h, one, first, what);
    expect_cold(h, two, second, what);
  }
}

}  // namespace
}  // namespace deepinfer::testing
