// The eight invariances of spec/sampling §3, bit for bit, on nano: an answer depends on its request alone.

#include <gtest/gtest.h>

#include "engine/core_harness.h"
#include "testing/random.h"
#include "testing/sanitizer.h"

namespace deepinfer::testing {
namespace {

Request request_of(int64_t prompt, int64_t max_tokens, uint64_t seed) {
  return make_request(random_prompt(prompt, seed), max_tokens, seed);
}

// (1) alone or in any company.
TEST(CoreInvariance, Company) {
  const Request request = request_of(200, 40, 1);
  const Answer want = run_alone(request)[0];
  for (const int64_t others : thinned<int64_t>({3, 1, 15})) {
    CoreHarness h;
    for (int64_t i = 0; i < others; ++i) h.submit(request_of(20 + 37 * i, 30 + i, 100 + static_cast<uint64_t>(i)));
    const RequestId id = h.submit(request);
    h.run();
    expect_same(h.answers(id)[0], want, std::to_string(others) + " others");
  }
}

// The same at temperature 0 among 255 others: CASES 22.
TEST(CoreInvariance, GreedyInALargeBatch) {
  Request request = request_of(60, 12, 2);
  request.sampling.temperature = 0;
  CoreSetup setup;
  setup.pages = 600;
  setup.max_num_seqs = 256;
  setup.max_num_batched_tokens = 512;
  const Answer want = run_alone(request)[0];
  CoreHarness h(setup);
  for (int64_t i = 0; i < thinned(255); ++i) h.submit(request_of(1 + i % 30, 20, 1000 + static_cast<uint64_t>(i)));
  const RequestId id = h.submit(request);
  h.run();
  expect_same(h.answers(id)[0], want, "255 others");
}

// (3) chunk sizes, page boundaries plus and minus one.
TEST(CoreInvariance, Chunks) {
  for (const int64_t length : thinned<int64_t>({129, 1, 2, 127, 257, 128, 255, 256, 700})) {
    const Request request = request_of(length, 6, static_cast<uint64_t>(length));
    const Answer want = run_alone(request)[0];
    for (const int64_t chunk : thinned<int64_t>({100, 16, 64, 300})) {
      CoreSetup setup;
      setup.max_num_batched_tokens = chunk;
      CoreHarness h(setup);
      const RequestId id = h.submit(request);
      h.run();
      expect_same(h.answers(id)[0], want, fmt::format("{} tokens in chunks of {}", length, chunk));
    }
  }
}

// (4) cold or after a hit, at every boundary; exact mode. CASES 10, 14.
TEST(CoreInvariance, ExactHits) {
  const std::vector<int32_t> base = random_prompt(1300, 7);
  std::map<int64_t, Answer> want;
  for (const bool snapshots : {true, false}) {
    CoreSetup setup;
    if (!snapshots) setup.snapshot_bytes = 0;
    CoreHarness h(setup);
    h.submit(make_request(base, 4, 1));
    h.run();
    for (const int64_t shared :
         thinned<int64_t>({1, 127, 128, 129, 255, 256, 257, 640, 1023, 1024, 1025, 1279, 1280, 1281, 1300}, 6)) {
      std::vector<int32_t> prompt(base.begin(), base.begin() + shared);
      const std::vector<int32_t> tail = random_prompt(11, static_cast<uint64_t>(shared));
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      const Request request = make_request(prompt, 5, 3);
      const RequestId id = h.submit(request);
      h.run();
      const Answer& got = h.answers(id)[0];
      EXPECT_EQ(got.usage.cached_tokens, shared / 128 * 128);
      if (!want.contains(shared)) want[shared] = run_alone(request)[0];
      expect_same(got, want[shared], fmt::format("{} shared", shared));
    }
  }
}

// (5) repeats.
TEST(CoreInvariance, Repeats) {
  const Request request = request_of(20, 4, 5);
  const Answer want = run_alone(request)[0];
  CoreHarness h;
  for (int64_t i = 0; i < thinned(1000); ++i) {
    const RequestId id = h.submit(request);
    if (i % 17 == 0) h.run();
    h.turn();
    if (i % 50 == 49) {
      h.run();
      expect_same(h.answers(id)[0], want, fmt::format("repeat {}", i));
    }
  }
  h.run();
}

// (6) preempted at every turn of its life, and resumed.
TEST(CoreInvariance, PreemptAndResume) {
  const Request request = request_of(300, 20, 6);
  for (const bool async : {true, false}) {
    const Answer want = run_alone(request)[0];
    for (int at = 1; at < 24; at += kThreadSanitizer ? 9 : 2) {
      CoreSetup setup;
      setup.async = async;
      CoreHarness h(setup);
      h.submit(request_of(50, 40, 60));
      const RequestId id = h.submit(request);
      for (int i = 0; i < at; ++i) h.turn();
      for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
      h.core().check_invariants();
      h.run();
      expect_same(h.answers(id)[0], want, fmt::format("preempted at turn {}", at));
    }
  }
}

// (7) arrival order; also one by one against all at once.
TEST(CoreInvariance, ArrivalOrder) {
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 6; ++i) requests.push_back(request_of(30 + 40 * static_cast<int64_t>(i), 15, 70 + i));
  std::vector<Answer> want;
  for (const Request& r : requests) want.push_back(run_alone(r)[0]);
  Random random(1);
  for (int round = 0; round < (kThreadSanitizer ? 1 : 4); ++round) {
    std::vector<size_t> order{0, 1, 2, 3, 4, 5};
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    CoreHarness h;
    std::map<size_t, RequestId> ids;
    for (const size_t i : order) {
      ids[i] = h.submit(requests[i]);
      for (int64_t t = random.below(4); t > 0; --t) h.turn();
    }
    h.run();
    for (const auto& [i, id] : ids) expect_same(h.answers(id)[0], want[i], fmt::format("round {} request {}", round, i));
  }
}

// (8), async on and off; threads.
TEST(CoreInvariance, AsyncAndThreads) {
  const Request request = request_of(150, 30, 8);
  const Answer want = run_alone(request)[0];
  for (const bool async : {true, false}) {
    for (const int threads : thinned({5, 1, 2})) {
      CoreSetup setup;
      setup.async = async;
      setup.threads = threads;
      CoreHarness h(setup);
      const RequestId id = h.submit(request);
      h.submit(request_of(90, 50, 9));
      h.run();
      expect_same(h.answers(id)[0], want, fmt::format("async {} threads {}", async, threads));
    }
  }
}

// `n` choices share the prompt's pages; each is the answer that it would be alone.
TEST(CoreInvariance, Choices) {
  for (const int64_t length : thinned<int64_t>({300, 100, 128})) {
    Request request = request_of(length, 20, 11);
    request.n = 5;
    const auto want = run_alone(request);
    CoreHarness h;
    const RequestId other = h.submit(request_of(77, 60, 12));
    const RequestId id = h.submit(request);
    int64_t least = h.cache().available();
    while (!h.finished(id)) {
      h.turn();
      least = std::min(least, h.cache().available());
      if (h.core().stats().steps == 12) h.core().preempt(h.core().running_ids().back());
    }
    // One prompt, a page of its own for each, and the other request.
    EXPECT_LE(h.cache().total_pages() - least, length / 128 + 5 * 2 + 2);
    for (size_t c = 0; c < 5; ++c) {
      expect_same(h.answers(id)[c], want[c], fmt::format("choice {}", c));
      if (c > 0) {
        EXPECT_NE(h.answers(id)[c].tokens, h.answers(id)[0].tokens);
      }
    }
    h.run();
    EXPECT_EQ(h.answers(other)[0].tokens.size(), 60u);
    // Choice 0 is what n = 1 gives.
    request.n = 1;
    expect_same(h.answers(id)[0], run_alone(request)[0], "n = 1");
  }
}

// Bounded replay: cold answers do not depend on chunks, company or preemption either.
TEST(CoreInvariance, BoundedColdRuns) {
  CoreSetup bounded;
  bounded.replay = ReplayMode::kBounded;
  for (const int64_t length : thinned<int64_t>({130, 20, 44, 45, 400}, 5)) {
    const Request request = request_of(length, 15, 20 + static_cast<uint64_t>(length));
    const Answer want = run_alone(request, bounded)[0];
    for (const int64_t chunk : thinned<int64_t>({50, 16, 300})) {
      CoreSetup setup = bounded;
      setup.max_num_batched_tokens = chunk;
      CoreHarness h(setup);
      const RequestId id = h.submit(request);
      h.submit(request_of(60, 30, 21));
      for (int i = 0; i < 9; ++i) h.turn();
      for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
      h.run();
      expect_same(h.answers(id)[0], want, fmt::format("{} tokens in chunks of {}", length, chunk));
    }
  }
}

// A hit in bounded mode: the answer depends on the hit, and on nothing else. Preempted, it keeps its hit and its replay.
TEST(CoreInvariance, BoundedHits) {
  CoreSetup bounded;
  bounded.replay = ReplayMode::kBounded;
  bounded.snapshot_bytes = 0;
  const std::vector<int32_t> base = random_prompt(600, 30);
  std::vector<int32_t> prompt = base;
  const std::vector<int32_t> tail = random_prompt(150, 31);
  prompt.insert(prompt.end(), tail.begin(), tail.end());
  const Request request = make_request(prompt, 20, 32);
  std::optional<Answer> want;
  for (const int64_t chunk : thinned<int64_t>({300, 16, 61})) {
    for (const int preempt_at : thinned({0, 3, 9, 15}, 3)) {
      CoreSetup setup = bounded;
      setup.max_num_batched_tokens = chunk;
      CoreHarness h(setup);
      h.submit(make_request(base, 1, 1));
      h.run();
      const RequestId id = h.submit(request);
      for (int i = 0; i < preempt_at; ++i) h.turn();
      if (preempt_at > 0) {
        for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
      }
      h.run();
      const Answer& got = h.answers(id)[0];
      EXPECT_EQ(got.usage.cached_tokens, 512);
      EXPECT_EQ(got.usage.replayed_tokens, 32);
      if (!want.has_value()) want = got;
      expect_same(got, *want, fmt::format("chunk {} preempted at {}", chunk, preempt_at));
    }
  }
}

// CASES 10, 11: every turn of a session hits all that went before, to the page. With the windows at hand nothing is replayed;
// without them a window is, and no hit is lost.
TEST(CoreInvariance, SessionsHitEveryTurn) {
  for (const bool snapshots : {true, false}) {
    CoreSetup setup;
    setup.replay = ReplayMode::kBounded;
    if (!snapshots) setup.snapshot_bytes = 0;
    CoreHarness h(setup);
    std::vector<int32_t> session = random_prompt(150, 50);
    int64_t ran = 0;  // positions of the session that have run
    for (int turn = 0; turn < (kThreadSanitizer ? 3 : 8); ++turn) {
      const RequestId id = h.submit(make_request(session, 70, static_cast<uint64_t>(turn)));
      h.run();
      const Answer& got = h.answers(id)[0];
      const int64_t known = ran / 128 * 128;
      EXPECT_EQ(got.usage.cached_tokens, known) << "turn " << turn;
      EXPECT_EQ(got.usage.replayed_tokens, snapshots || known == 0 ? 0 : 32) << "turn " << turn;
      session.insert(session.end(), got.tokens.begin(), got.tokens.end());
      ran = static_cast<int64_t>(session.size()) - 1;  // the last token of an answer need not run
      const auto next = random_prompt(50, static_cast<uint64_t>(60 + turn));
      session.insert(session.end(), next.begin(), next.end());
    }
    EXPECT_EQ(h.core().stats().snapshot_hits > 0, snapshots);
  }
}

// An answer that was preempted resumes behind a hit in its own pages: windows that it passes on the way there are still being
// rebuilt, and must not be kept for others.
TEST(CoreInvariance, NoSnapshotInsideAReplay) {
  const std::vector<int32_t> base = random_prompt(600, 90);
  CoreSetup setup;
  setup.max_num_batched_tokens = 90;
  CoreHarness h(setup);
  const RequestId id = h.submit(make_request(base, 80, 91));
  for (int i = 0; i < 60 && h.answers(id)[0].tokens.size() < 60; ++i) h.turn();
  while (h.answers(id)[0].tokens.size() < 60) h.turn();
  h.windows().expire(h.now + 1000);  // what was kept before is gone
  for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
  h.run();
  std::vector<int32_t> prompt(base.begin(), base.begin() + 520);
  const Request request = make_request(prompt, 10, 92);
  const RequestId other = h.submit(request);
  h.run();
  EXPECT_EQ(h.answers(other)[0].usage.cached_tokens, 512);
  expect_same(h.answers(other)[0], run_alone(request)[0], "behind the window of a replay");
}

// Prompt log-probs: every row, exact, whatever the engine's mode; the same through chunks, preemption and a warm cache.
TEST(CoreInvariance, PromptLogprobs) {
  CoreSetup bounded;
  bounded.replay = ReplayMode::kBounded;
  Request request = request_of(333, 5, 40);
  request.prompt_logprobs = 2;
  const Answer want = run_alone(request)[0];
  ASSERT_EQ(want.prompt_logprobs.size(), 332u);
  EXPECT_EQ(want.prompt_logprobs[5].chosen.token, request.prompt[6]);
  CoreHarness h(bounded);
  h.submit(request_of(333, 1, 40));
  h.run();
  const RequestId id = h.submit(request);
  for (int i = 0; i < 3; ++i) h.turn();
  for (const SequenceId s : h.core().running_ids()) h.core().preempt(s);
  h.run();
  EXPECT_EQ(h.answers(id)[0].usage.cached_tokens, 0);
  expect_same(h.answers(id)[0], want, "prompt log-probs");
}

}  // namespace
}  // namespace deepinfer::testing
