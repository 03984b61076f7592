// A row's result depends on that row alone: bitwise, on logits, on what the draft module is fed, and on the state (spec/sampling
// §3, spec/backbone §12.5). Every setting is run against itself.

#include "invariance/invariance.h"

#include <algorithm>

#include "invariance/schedules.h"
#include "testing/named_backend.h"

namespace deepinfer {
namespace {

using testing::Append;
using testing::expect_equal;
using testing::expect_true;
using testing::Random;
using testing::run_step;
using testing::Setting;
using testing::Subject;
using testing::Track;

class Invariance : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent(GetParam().backend); !why.empty()) GTEST_SKIP() << why;
  }
  bool nano() const { return std::string(GetParam().checkpoint) == "nano"; }
  bool reference() const { return std::string(GetParam().backend) == "reference"; }
  bool slow() const { return nano() && reference(); }
  Subject& subject() {
    if (!subject_) subject_ = std::make_unique<Subject>(GetParam(), 2);
    return *subject_;
  }
  int64_t prompt_length() const { return slow() ? 40 : nano() ? 270 : reference() ? 120 : 200; }

  void in_chunks(Track& track, const std::vector<int32_t>& ids, const std::vector<int64_t>& sizes, int64_t every = 1) {
    size_t at = 0;
    for (size_t i = 0; at < ids.size(); ++i) {
      const size_t n = std::min(ids.size() - at, static_cast<size_t>(sizes[i % sizes.size()]));
      const auto begin = ids.begin() + static_cast<int64_t>(at);
      ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, {begin, begin + static_cast<int64_t>(n)}}}, every));
      at += n;
    }
  }

 private:
  std::unique_ptr<Subject> subject_;
};

TEST_P(Invariance, Chunks) {
  const auto ids = subject().tokens(prompt_length(), 1);
  Track whole(subject());
  ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&whole, ids}}));
  const std::vector<std::vector<int64_t>> cuts = {{1}, {7}, {64}, {100}, {3, 1, 16, 2, 5, 31}, {127, 1, 2}, {9, 8}};
  for (const auto& sizes : cuts) {
    if (slow() && sizes[0] > 10) continue;
    SCOPED_TRACE(fmt::format("chunks of {}", fmt::join(sizes, ", ")));
    Track cut(subject());
    ASSERT_NO_FATAL_FAILURE(in_chunks(cut, ids, sizes));
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject(), cut, whole));
  }
}

TEST_P(Invariance, Threads) {
  const auto ids = subject().tokens(slow() ? 40 : 150, 2);
  Track want(subject());
  ASSERT_NO_FATAL_FAILURE(in_chunks(want, ids, {120, 1, 6}));
  for (int threads : {1, 4}) {
    SCOPED_TRACE(threads);
    Subject other(GetParam(), threads);
    Track got(other);
    run_step(other, {{&got, {ids.begin(), ids.begin() + 33}}});
    ASSERT_NO_FATAL_FAILURE(run_step(other, {{&got, {ids.begin() + 33, ids.end() - 4}}}));
    for (size_t i = ids.size() - 4; i < ids.size(); ++i) ASSERT_NO_FATAL_FAILURE(run_step(other, {{&got, {ids[i]}}}));
    ASSERT_NO_FATAL_FAILURE(expect_equal(other, got, want));
  }
}

// One sequence decodes and prefills while others come, go on and end around it.
TEST_P(Invariance, Company) {
  Random random(3);
  const auto ids = subject().tokens(slow() ? 40 : 90, 3);
  Track alone(subject());
  ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&alone, ids}}));
  for (int64_t others : slow() ? std::vector<int64_t>{2} : std::vector<int64_t>{1, 2, 6, 15}) {
    SCOPED_TRACE(fmt::format("{} others", others));
    Track track(subject());
    std::vector<std::unique_ptr<Track>> company;
    for (int64_t i = 0; i < others; ++i) company.push_back(std::make_unique<Track>(subject()));
    size_t at = 0;
    while (at < ids.size()) {
      const size_t n = std::min(ids.size() - at, static_cast<size_t>(random.below(3) == 0 ? random.between(2, 40) : 1));
      std::vector<Append> appends;
      for (auto& other : company) {
        const int64_t count = random.below(4) == 0 ? random.between(2, 30) : 1;
        if (random.below(5) != 0 && other->length() + count < 200)
          appends.push_back({other.get(), subject().tokens(count, random.bits())});
      }
      const auto begin = ids.begin() + static_cast<int64_t>(at);
      appends.insert(appends.begin() + random.below(static_cast<int64_t>(appends.size()) + 1),
                     Append{&track, {begin, begin + static_cast<int64_t>(n)}});
      ASSERT_NO_FATAL_FAILURE(run_step(subject(), appends, 8));
      at += n;
    }
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject(), track, alone));
    ASSERT_NO_FATAL_FAILURE(expect_true(subject(), *company.back(), 8));
  }
}

// Verification of drafts: 2 to 6 rows a step.
TEST_P(Invariance, SeveralRowsAStep) {
  const auto ids = subject().tokens(slow() ? 40 : 100, 4);
  Track whole(subject());
  ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&whole, ids}}));
  for (int64_t rows = 2; rows <= 6; rows += slow() ? 4 : 1) {
    SCOPED_TRACE(rows);
    Track track(subject());
    ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, {ids.begin(), ids.begin() + 31}}}));
    const std::vector<int32_t> rest(ids.begin() + 31, ids.end());
    ASSERT_NO_FATAL_FAILURE(in_chunks(track, rest, {rows}));
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject(), track, whole));
  }
}

// Rejected drafts: k wrong tokens, taken back, then on; from even and odd lengths, over wraps of the ring and edges of pages.
TEST_P(Invariance, RollbackOfRejectedRows) {
  const std::vector<int64_t> lengths =
      slow() ? std::vector<int64_t>{1, 48} : std::vector<int64_t>{1, 2, 23, 24, 47, 48, 49, 112, 120, 127, 128, 129};
  const auto ids = subject().tokens(lengths.back() + 12, 5);
  Track want(subject());
  ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&want, ids}}));
  Track track(subject());
  int64_t k = 1;
  for (int64_t length : lengths) {
    if (track.length() < length) {
      ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, {ids.begin() + track.length(), ids.begin() + length}}}));
    }
    for (int64_t round = 0; round < 4; ++round, k = k % 16 + 1) {
      SCOPED_TRACE(fmt::format("{} rows behind {}", k, length));
      ASSERT_NO_FATAL_FAILURE(
          run_step(subject(), {{&track, subject().tokens(k, static_cast<uint64_t>(1000 + length * 16 + k))}}));
      // Some are accepted only to be rejected later.
      if (round == 2) {
        ASSERT_NO_FATAL_FAILURE(track.truncate(length + k / 2));
      }
      ASSERT_NO_FATAL_FAILURE(track.truncate(length));
    }
    // On by less than what was rejected, so that rejected rows lie ahead.
    ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, {ids.begin() + length, ids.begin() + length + 1}}}));
  }
  ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, {ids.begin() + track.length(), ids.end()}}}));
  ASSERT_NO_FATAL_FAILURE(expect_equal(subject(), track, want));
}

// Every k from 1 to the slack, from an even and an odd length that lies just beyond a page and several ring lengths.
TEST_P(Invariance, RollbackByEveryAmount) {
  for (int64_t length : slow() ? std::vector<int64_t>{51} : std::vector<int64_t>{130, 135}) {
    const auto ids = subject().tokens(length + 6, 6);
    Track want(subject());
    ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&want, ids}}));
    Track track(subject());
    ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, {ids.begin(), ids.begin() + length}}}));
    for (int64_t k = 1; k <= 16; k += slow() ? 5 : 1) {
      SCOPED_TRACE(fmt::format("{} back from {}", k, length));
      ASSERT_NO_FATAL_FAILURE(track.truncate(length - k));
      const std::vector<int32_t> again(ids.begin() + length - k, ids.begin() + length);
      ASSERT_NO_FATAL_FAILURE(in_chunks(track, again, {k % 3 + 1}));
    }
    ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, {ids.begin() + length, ids.end()}}}));
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject(), track, want));
  }
}

TEST_P(Invariance, StartAgain) {
  const auto first = subject().tokens(slow() ? 30 : 140, 7);
  const auto second = subject().tokens(slow() ? 20 : 75, 8);
  Track track(subject());
  ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, first}}));
  ASSERT_NO_FATAL_FAILURE(track.truncate(0));
  EXPECT_EQ(track.pages.live(), 0);
  ASSERT_NO_FATAL_FAILURE(in_chunks(track, second, {11}));
  ASSERT_NO_FATAL_FAILURE(expect_true(subject(), track));
  ASSERT_NO_FATAL_FAILURE(track.truncate(0));
  ASSERT_NO_FATAL_FAILURE(run_step(subject(), {{&track, first}}));
  ASSERT_NO_FATAL_FAILURE(expect_true(subject(), track));
}

TEST_P(Invariance, RandomSchedules) {
  const int seeds = slow() ? 1 : nano() ? 2 : reference() ? 1 : 3;
  for (int seed = 0; seed < seeds; ++seed) {
    ASSERT_NO_FATAL_FAILURE(testing::run_random_schedule(subject(), static_cast<uint64_t>(100 + seed), slow() ? 5 : 25,
                                                         slow() ? 2 : 5,
                                                         slow()   ? 60
                                                         : nano() ? 200
                                                                  : 300));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Invariance,
                         ::testing::Values(Setting{"nano", "cpu"}, Setting{"micro", "cpu"}, Setting{"odd", "cpu"},
                                           Setting{"many", "cpu"}, Setting{"nano", "reference"}, Setting{"micro", "reference"},
                                           Setting{"nano", "guarded"}, Setting{"micro", "guarded"}, Setting{"odd", "guarded"},
                                           Setting{"odd", "guarded_ahead"}, Setting{"nano", "cuda"}, Setting{"micro", "cuda"},
                                           Setting{"odd", "cuda"}, Setting{"many", "cuda"}, Setting{"nano", "cuda_features"},
                                           Setting{"odd", "cuda_features"}, Setting{"nano", "cpu_avx2"},
                                           Setting{"odd", "cpu_avx2"}, Setting{"odd", "cpu_avx512"}, Setting{"odd", "cpu_neon"}),
                         [](const auto& param) { return param.param.name(); });

}  // namespace
}  // namespace deepinfer
