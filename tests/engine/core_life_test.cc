// The life of requests on a device without a model: limits, order, the ends that an answer can come to, and that nothing is left.

#include <gtest/gtest.h>

#include "engine/core_harness.h"
#include "engine/fake_executor.h"
#include "testing/random.h"
#include "testing/sanitizer.h"

namespace deepinfer::testing {
namespace {

Request simple(int64_t prompt, int64_t max_tokens, uint64_t seed = 1) {
  Request r = make_request(random_prompt(prompt, seed), max_tokens, seed);
  r.logprobs.reset();
  r.detokenize = false;
  return r;
}

struct Fake {
  explicit Fake(const CoreSetup& setup = {}, FakeExecutor::Options options = {})
      : device(std::move(options)), h(setup, &device) {}
  FakeExecutor device;
  CoreHarness h;
};

TEST(CoreLife, LengthStopAndEos) {
  FakeExecutor::Options options;
  options.token = [](uint64_t, int64_t position) { return position == 25 ? 1 : position == 15 ? 77 : 50; };
  Fake f({}, options);
  Request eos = simple(20, 100);
  eos.ignore_eos = false;
  Request stop = simple(10, 100);
  stop.sampling.stop_token_ids = {77};
  const RequestId a = f.h.submit(eos), b = f.h.submit(stop), c = f.h.submit(simple(20, 30));
  f.h.run();
  EXPECT_EQ(f.h.answers(a)[0].finish, FinishReason::kStop);
  EXPECT_EQ(f.h.answers(a)[0].tokens.size(), 6u);
  EXPECT_EQ(f.h.answers(a)[0].stop_reason.index(), 0u);
  EXPECT_EQ(f.h.answers(b)[0].finish, FinishReason::kStop);
  EXPECT_EQ(std::get<int32_t>(f.h.answers(b)[0].stop_reason), 77);
  EXPECT_EQ(f.h.answers(c)[0].finish, FinishReason::kLength);
  EXPECT_EQ(f.h.answers(c)[0].tokens.size(), 30u);
  EXPECT_EQ(f.h.answers(c)[0].usage.completion_tokens, 30);
}

// CASES 18: cancelled in every state; every page comes back (the harness checks), every choice gets an end.
TEST(CoreLife, CancelInEveryState) {
  for (const bool async : {true, false}) {
    for (const int64_t n : {1, 3}) {
      for (int at = 0; at < 12; ++at) {
        CoreSetup setup;
        setup.async = async;
        setup.max_num_batched_tokens = 64;
        setup.max_num_seqs = 4;
        Fake f(setup);
        Request request = simple(200, 4);
        request.n = n;
        const RequestId first = f.h.submit(request);
        const RequestId second = f.h.submit(simple(150, 4));
        for (int i = 0; i < at; ++i) {
          f.h.turn();
          if (at % 3 == 2 && i == at / 2 && !f.h.core().running_ids().empty()) f.h.core().preempt(f.h.core().running_ids()[0]);
        }
        const bool over = f.h.finished(first);
        EXPECT_EQ(f.h.core().end(first, FinishReason::kCancelled), !over);
        f.h.core().check_invariants();
        f.h.run();
        for (const Answer& answer : f.h.answers(first))
          EXPECT_TRUE(answer.finish == FinishReason::kCancelled || answer.finish == FinishReason::kLength);
        EXPECT_EQ(f.h.answers(second)[0].finish, FinishReason::kLength);
        EXPECT_FALSE(f.h.core().end(first, FinishReason::kCancelled));
      }
    }
  }
}

TEST(CoreLife, Deadlines) {
  CoreSetup setup;
  setup.max_num_seqs = 1;
  Fake f(setup);
  f.h.seconds_per_turn = 0.1;
  Request waits = simple(20, 10);
  waits.deadline = 0.5;  // never gets a place in time
  Request runs = simple(20, 1000);
  runs.deadline = 2.0;
  const RequestId a = f.h.submit(runs);
  f.h.turn();
  const RequestId b = f.h.submit(waits);
  f.h.run();
  EXPECT_EQ(f.h.answers(a)[0].finish, FinishReason::kDeadline);
  EXPECT_GT(f.h.answers(a)[0].tokens.size(), 5u);
  EXPECT_EQ(f.h.answers(b)[0].finish, FinishReason::kDeadline);
  EXPECT_TRUE(f.h.answers(b)[0].tokens.empty());
}

TEST(CoreLife, QueueTimeEndsWithTheFirstStep) {
  CoreSetup setup;
  setup.max_num_seqs = 1;
  setup.async = false;
  Fake f(setup);
  f.h.seconds_per_turn = 0.25;
  const RequestId first = f.h.submit(simple(20, 10));
  f.h.turn();
  const double later = f.h.now;
  const RequestId second = f.h.submit(simple(20, 1));
  Request hurried = simple(20, 1);
  hurried.deadline = 0.5;
  const RequestId third = f.h.submit(hurried);
  f.h.run();
  EXPECT_EQ(f.h.answers(first)[0].usage.queue_seconds, 0.25) << "until the first turn";
  const auto waited = f.h.answers(second)[0].usage.queue_seconds;
  ASSERT_TRUE(waited.has_value());
  EXPECT_GE(*waited, 9 * 0.25) << "for the ten steps of the first";
  EXPECT_LE(later + *waited, f.h.now);
  EXPECT_FALSE(f.h.answers(third)[0].usage.queue_seconds.has_value()) << "its deadline passed before it ran";
}

TEST(CoreLife, PriorityThenArrivalAndNoStarvation) {
  CoreSetup setup;
  setup.max_num_seqs = 1;
  setup.async = false;
  Fake f(setup);
  f.h.seconds_per_turn = 1;
  const RequestId running = f.h.submit(simple(10, 5));
  f.h.turn();
  Request low = simple(10, 2);
  low.priority = 3;  // gives way to what comes in the next 30 s
  const RequestId late = f.h.submit(low);
  std::vector<RequestId> urgent;
  std::vector<RequestId> order;
  for (int i = 0; i < 60; ++i) {
    if (i % 2 == 0) urgent.push_back(f.h.submit(simple(10, 2)));
    f.h.turn();
    if (f.h.finished(late)) break;
  }
  EXPECT_TRUE(f.h.finished(running));
  EXPECT_TRUE(f.h.finished(late)) << "starved";
  EXPECT_GE(urgent.size(), 10u) << "did not give way";
  f.h.run();
}

TEST(CoreLife, PreemptedWhenPagesRunOutAndAllFinish) {
  CoreSetup setup;
  setup.pages = 12;
  setup.max_num_seqs = 8;
  Fake f(setup);
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 8; ++i) ids.push_back(f.h.submit(simple(100, 500, i)));
  f.h.run();
  EXPECT_GT(f.h.core().stats().preemptions, 0);
  for (const RequestId id : ids) {
    EXPECT_EQ(f.h.answers(id)[0].finish, FinishReason::kLength);
    EXPECT_EQ(f.h.answers(id)[0].tokens.size(), 500u);
  }
}

// Pinned pages and the hits of preempted answers give way when nothing could run otherwise.
TEST(CoreLife, PinnedPagesGiveWay) {
  CoreSetup setup;
  setup.pages = 10;
  Fake f(setup);
  Request pinned = simple(600, 2, 5);
  pinned.cache_class = "pinned";
  f.h.submit(pinned);
  f.h.run();
  const RequestId large = f.h.submit(simple(1000, 200, 6));
  f.h.run();
  EXPECT_EQ(f.h.answers(large)[0].finish, FinishReason::kLength);
}

TEST(CoreLife, AFailingStepEndsItsRequestsOnly) {
  FakeExecutor::Options options;
  options.failing_step = 3;
  Fake f({}, options);
  const RequestId a = f.h.submit(simple(30, 20));
  Request several = simple(30, 20, 2);
  several.n = 3;
  const RequestId b = f.h.submit(several);
  f.h.run();
  EXPECT_EQ(f.h.answers(a)[0].finish, FinishReason::kError);
  EXPECT_NE(f.h.answers(a)[0].error.message().find("step 3"), std::string::npos);
  for (const Answer& answer : f.h.answers(b)) EXPECT_EQ(answer.finish, FinishReason::kError);
  const RequestId c = f.h.submit(simple(30, 20, 3));
  f.h.run();
  EXPECT_EQ(f.h.answers(c)[0].finish, FinishReason::kLength);
}

TEST(CoreLife, WhyAPrefixWasNotHit) {
  Fake f;
  const auto usage = [&](Request request) {
    const RequestId id = f.h.submit(std::move(request));
    f.h.run();
    return f.h.answers(id)[0].usage;
  };
  EXPECT_EQ(usage(simple(100, 1)).cache_miss, CacheMiss::kTooShort);
  EXPECT_EQ(usage(simple(300, 1)).cache_miss, CacheMiss::kNotCached);
  Usage hit = usage(simple(300, 1));
  EXPECT_EQ(hit.cached_tokens, 256);
  EXPECT_EQ(hit.cache_miss, CacheMiss::kNone);
  Request tenant = simple(300, 1);
  tenant.cache_salt = "other tenant";
  EXPECT_EQ(usage(tenant).cached_tokens, 0);
  Request logprobs = simple(300, 1);
  logprobs.prompt_logprobs = 0;
  EXPECT_EQ(usage(logprobs).cache_miss, CacheMiss::kDisabled);
  CoreSetup off;
  off.caching = false;
  Fake g(off);
  g.h.submit(simple(300, 1));
  g.h.run();
  const RequestId id = g.h.submit(simple(300, 1));
  g.h.run();
  EXPECT_EQ(g.h.answers(id)[0].usage.cache_miss, CacheMiss::kDisabled);
}

// CASES 18 and 20: after thousands of mixed requests everything is back where it was.
TEST(CoreLife, NothingIsLeftAfterThousands) {
  CoreSetup setup;
  setup.pages = 64;
  setup.max_num_seqs = 16;
  Fake f(setup);
  Random random(99);
  std::vector<RequestId> ids;
  for (int64_t i = 0; i < thinned(3000); ++i) {
    Request request = simple(random.between(1, 600), random.between(1, 60), static_cast<uint64_t>(i % 40) * 1000);
    request.n = random.below(10) == 0 ? 3 : 1;
    if (random.below(20) == 0) request.deadline = 0.05;
    ids.push_back(f.h.submit(std::move(request)));
    const int64_t cancel = random.below(10);
    if (cancel == 0)
      f.h.core().end(ids[static_cast<size_t>(random.below(static_cast<int64_t>(ids.size())))], FinishReason::kCancelled);
    while (f.h.core().waiting() > 20) f.h.turn();
  }
  f.h.run();
  for (const RequestId id : ids) {
    for (const Answer& answer : f.h.answers(id)) EXPECT_TRUE(answer.finish.has_value());
  }
  EXPECT_EQ(f.h.core().waiting(), 0);
  EXPECT_EQ(f.h.core().running(), 0);
  EXPECT_EQ(f.h.cache().available(), f.h.cache().total_pages());
}

}  // namespace
}  // namespace deepinfer::testing
