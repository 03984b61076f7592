// Snapshots, forks, and sequences of all kinds in one step: each goes on bitwise as if nothing had happened.

#include <algorithm>

#include "invariance/invariance.h"
#include "testing/guarded_backend.h"
#include "testing/named_backend.h"

namespace deepinfer {
namespace {

using testing::Append;
using testing::expect_equal;
using testing::expect_true;
using testing::Random;
using testing::run_step;
using testing::Setting;
using testing::snapshot;
using testing::Subject;
using testing::Track;

class Snapshots : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent(GetParam().backend); !why.empty()) GTEST_SKIP() << why;
  }
  bool nano() const { return std::string(GetParam().checkpoint) == "nano"; }
  bool reference() const { return std::string(GetParam().backend) == "reference"; }
  bool narrows() { return subject_.config().first_decoder_layer() < subject_.config().num_hidden_layers; }

  Subject subject_{GetParam(), 2};
};

// A snapshot at a position that a step passes is the one that a step ending there leaves.
TEST_P(Snapshots, InTheMiddleOfAStep) {
  Random random(77);
  const int64_t window = subject_.config().sliding_window;
  for (int round = 0; round < (nano() ? 12 : 40); ++round) {
    const int64_t start = random.between(0, 3 * window);
    const int64_t at = (start + random.between(1, 3 * window) + 1) / 2 * 2;
    const int64_t end = at + random.between(0, round % 2 == 0 ? 3 * window : 17);  // behind or among what can be taken back
    const int64_t d = random.below(2) == 0 ? 0 : random.between(start, end);
    SCOPED_TRACE(fmt::format("from {} to {}, snapshot at {}, decoder_start {}", start, end, at, d));
    const auto tokens = subject_.tokens(end, random.bits());
    const auto part = [&](int64_t first, int64_t last) {
      return std::vector<int32_t>(tokens.begin() + first, tokens.begin() + last);
    };
    Track stops(subject_), passes(subject_);
    for (Track* t : {&stops, &passes}) {
      t->set_decoder_start(d);
      if (start > 0) {
        ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{t, part(0, start)}}, 50));
      }
    }
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&stops, part(start, at)}}, 50));
    WindowSnapshot want, got;
    stops.state->save_window(want);
    const auto rest = part(start, end);
    const StepSequence sequence{passes.state.get(), end - start, &got, at};
    StepBatch batch;
    batch.tokens = rest;
    batch.sequences = {&sequence, 1};
    const int64_t waits = testing::guarded_downloads();
    const auto out = subject_.model().forward(batch);
    ASSERT_TRUE(out.has_value()) << out.error().message();
    if (std::string(GetParam().backend) == "guarded" && passes.state->keeps_window(at, end)) {
      EXPECT_EQ(testing::guarded_downloads() - waits, 1) << "all layers at once";
    }
    EXPECT_EQ(got.length, want.length);
    EXPECT_EQ(got.encoder_window_start, want.encoder_window_start);
    EXPECT_EQ(got.decoder_window_start, want.decoder_window_start);
    ASSERT_EQ(got.data, want.data);
    const StepSequence odd{passes.state.get(), 4, &got, end + 1 + end % 2 * 5};
    batch.tokens = std::span(rest).first(std::min<size_t>(4, rest.size()));
    batch.sequences = {&odd, 1};
    if (rest.size() >= 4) {
      EXPECT_FALSE(subject_.model().forward(batch).has_value());
    }
  }
}

// At every length that a run with chunks, decoding and rollback comes by, with the decoder starting before, at and after it.
TEST_P(Snapshots, GoOnAsTheOriginal) {
  const int64_t n = nano() ? 90 : 150;
  for (int64_t d : {0, 33, 70}) {
    Random random(static_cast<uint64_t>(51 + d));
    Track original(subject_);
    original.set_decoder_start(d);
    WindowSnapshot kept;  // one for all: its memory is used again
    while (original.length() < n) {
      const int64_t kind = random.below(5);
      const int64_t count = kind < 2 ? 1 : kind < 4 ? random.between(2, 5) : random.between(6, 40);
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&original, subject_.tokens(count, random.bits())}}, 3));
      if (random.below(3) == 0) {
        ASSERT_NO_FATAL_FAILURE(
            original.truncate(std::max<int64_t>(1, original.length() - random.between(1, std::min<int64_t>(count, 16)))));
      }
      const int64_t at = original.length();
      SCOPED_TRACE(fmt::format("decoder_start {}, snapshot at {}", d, at));
      original.state->save_window(kept);
      EXPECT_EQ(kept.has_decoder_rows(), !narrows() ? original.state->decoder_window_start() < at : at > d);
      EXPECT_GE(kept.bytes(), static_cast<int64_t>(kept.data.size()));
      if (nano() && random.below(3) != 0) continue;
      Track restored(subject_, true);
      ASSERT_NO_FATAL_FAILURE(restored.restore(original, kept));
      if (d > at) restored.set_decoder_start(d);
      EXPECT_EQ(restored.state->write_floor(), at);
      WindowSnapshot again;
      restored.state->save_window(again);
      EXPECT_EQ(again.data, kept.data);
      Track want(subject_, true);
      ASSERT_NO_FATAL_FAILURE(want.fork(original, false));
      const auto rest = subject_.tokens(random.between(1, 30), random.bits());
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&want, rest}}, 3));
      for (int32_t id : std::span(rest).first(std::min<size_t>(rest.size(), 6)))
        ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&restored, {id}}}, 3));
      if (rest.size() > 6) {
        ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&restored, {rest.begin() + 6, rest.end()}}}, 3));
      }
      ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, restored, want));
      // And back to where the snapshot was taken.
      if (rest.size() <= 16) {
        ASSERT_NO_FATAL_FAILURE(restored.truncate(at));
        ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&restored, rest}}, 3));
        ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, restored, want));
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_true(subject_, original, 3));
  }
}

// A decoder start behind the snapshot drops its decoder rows; at its end it goes on with them.
TEST_P(Snapshots, DecoderStartAfterRestoring) {
  const auto ids = subject_.tokens(90, 52);
  Track original(subject_);
  original.set_decoder_start(20);
  ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&original, {ids.begin(), ids.begin() + 51}}}));
  WindowSnapshot kept;
  original.state->save_window(kept);
  for (int64_t d : {51, 60}) {
    Track want(subject_, true);
    ASSERT_NO_FATAL_FAILURE(want.fork(original, false));
    want.set_decoder_start(d);
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&want, {ids.begin() + 51, ids.end()}}}));
    Track got(subject_, true);
    ASSERT_NO_FATAL_FAILURE(got.restore(original, kept));
    got.set_decoder_start(d);
    EXPECT_EQ(got.state->decoder_window_start(), !narrows() ? 0 : d == 51 ? 20 : 60);
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&got, {ids.begin() + 51, ids.end()}}}));
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, got, want));
  }
}

TEST_P(Snapshots, CorruptedOnesAreRefused) {
  const auto ids = subject_.tokens(61, 53);
  Track original(subject_);
  ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&original, ids}}));
  WindowSnapshot good;
  original.state->save_window(good);
  Track got(subject_, true);
  got.take_pages(original, 61, false);
  const auto refused = [&](const WindowSnapshot& bad) {
    const Status status = subject_.model().adopt_prefix(*got.state, ids, {}, bad);
    return !status.ok() && got.length() == 0 && got.state->history().empty() && got.state->write_floor() == 0;
  };
  for (int64_t WindowSnapshot::*field :
       {&WindowSnapshot::length, &WindowSnapshot::encoder_window_start, &WindowSnapshot::decoder_window_start,
        &WindowSnapshot::draft_window_start, &WindowSnapshot::draft_stages, &WindowSnapshot::layers,
        &WindowSnapshot::first_decoder_layer, &WindowSnapshot::window, &WindowSnapshot::row_bytes, &WindowSnapshot::tail_bytes}) {
    for (int64_t value : {int64_t{-1}, int64_t{1} << 62, INT64_MIN, INT64_MAX, int64_t{62}, int64_t{59}}) {
      WindowSnapshot bad = good;
      bad.*field = value;
      if (value == 59 && field == &WindowSnapshot::decoder_window_start && !narrows()) continue;  // means nothing there
      if (value == 59 && field == &WindowSnapshot::draft_window_start && subject_.config().num_nextn_predict_layers == 0)
        continue;
      EXPECT_TRUE(refused(bad)) << value;
    }
  }
  for (size_t size : {size_t{0}, good.data.size() - 1, good.data.size() + 1, good.data.size() * 2}) {
    WindowSnapshot bad = good;
    bad.data.resize(size);
    EXPECT_TRUE(refused(bad)) << size;
  }
  EXPECT_TRUE(refused(WindowSnapshot{}));
  EXPECT_FALSE(subject_.model().adopt_prefix(*got.state, std::span(ids).first(60), {}, good).ok());
  EXPECT_FALSE(subject_.model().adopt_prefix(*original.state, ids, {}, good).ok()) << "not empty";
  if (subject_.model().page_layout().page_bytes > 0) {
    Track without(subject_, true);
    EXPECT_EQ(subject_.model().adopt_prefix(*without.state, ids, {}, good).code(), StatusCode::kFailedPrecondition);
  }
  // Rows of any content are rows: the results are rubbish, and that is all.
  WindowSnapshot noise = good;
  Random random(54);
  for (uint8_t& byte : noise.data) byte = static_cast<uint8_t>(random.bits());
  ASSERT_TRUE(subject_.model().adopt_prefix(*got.state, ids, {}, noise).ok());
  const std::vector<int32_t> more = {5, 6, 7};
  const StepSequence sequence{got.state.get(), 3};
  const std::vector<int32_t> rows = {2};
  got.cover(64);
  StepBatch batch;
  batch.tokens = more;
  batch.sequences = {&sequence, 1};
  batch.logit_rows = rows;
  EXPECT_TRUE(subject_.model().forward(batch).has_value());
}

// Forks share whole pages and have the one in progress to themselves; what one does is nothing to the others.
TEST_P(Snapshots, Forks) {
  for (int64_t at : {int64_t{1}, int64_t{50}, int64_t{127}, int64_t{128}, int64_t{129}, int64_t{140}}) {
    if (reference() && at > 1 && at < 128) continue;
    SCOPED_TRACE(fmt::format("forked at {}", at));
    const auto ids = subject_.tokens(at, 55);
    Track original(subject_);
    original.set_decoder_start(at / 2);
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&original, ids}}, 16));
    const auto before = snapshot(subject_, *original.state);
    std::vector<std::unique_ptr<Track>> forks;
    std::vector<Append> appends;
    for (uint64_t i = 0; i < 3; ++i) {
      forks.push_back(std::make_unique<Track>(subject_, true));
      ASSERT_NO_FATAL_FAILURE(forks.back()->fork(original, true));
      appends.push_back({forks.back().get(), subject_.tokens(9, 56 + i)});
    }
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, appends));
    EXPECT_EQ(snapshot(subject_, *original.state), before);
    // Back to the fork, but not into what is shared.
    ASSERT_NO_FATAL_FAILURE(forks[0]->truncate(at));
    if (at >= 128) {
      EXPECT_EQ(forks[0]->state->truncate(at / 128 * 128 - 1).code(), StatusCode::kFailedPrecondition);
    }
    const auto same = subject_.tokens(20, 60);
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{forks[0].get(), same}, {forks[1].get(), {3}}, {&original, same}}, 4));
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, *forks[0], original));
    for (auto& fork : forks) ASSERT_NO_FATAL_FAILURE(expect_true(subject_, *fork, 16));
    ASSERT_NO_FATAL_FAILURE(expect_true(subject_, original, 16));
  }
}

// Everything in one step: cold, decoding, narrowed in the middle and to nothing, replayed, restored, forked.
TEST_P(Snapshots, AllKindsInOneStep) {
  const auto ids = subject_.tokens(140, 61);
  Track donor(subject_);
  ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&donor, ids}}, 16));
  const auto donor_before = snapshot(subject_, *donor.state);
  std::vector<std::unique_ptr<Track>> all;
  const auto add = [&]() -> Track& { return *all.emplace_back(std::make_unique<Track>(subject_, true)); };
  Track& cold = add();
  Track& decoding = add();
  Track& middle = add();
  Track& nothing = add();
  Track& hit = add();
  Track& odd_hit = add();
  Track& restored = add();
  Track& forked = add();
  Track& both = add();
  Track& forked_in_replay = add();
  middle.set_decoder_start(13);
  nothing.set_decoder_start(130);
  ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&decoding, subject_.tokens(40, 62)}, {&nothing, subject_.tokens(3, 63)}}, 16));
  ASSERT_NO_FATAL_FAILURE(hit.adopt(donor, 128, 120));
  ASSERT_NO_FATAL_FAILURE(odd_hit.adopt(donor, 61, 50));
  WindowSnapshot kept;
  decoding.state->save_window(kept);
  ASSERT_NO_FATAL_FAILURE(restored.restore(decoding, kept));
  ASSERT_NO_FATAL_FAILURE(forked.fork(decoding, true));
  ASSERT_NO_FATAL_FAILURE(both.adopt(donor, 77, 70));
  both.set_decoder_start(79);
  ASSERT_NO_FATAL_FAILURE(forked_in_replay.fork(both, true));
  Random random(64);
  for (int step = 0; step < 8; ++step) {
    std::vector<Append> appends;
    for (auto& track : all) {
      const int64_t count = track.get() == &decoding ? 1 : random.between(0, step == 0 ? 25 : 9);
      if (count == 0) continue;
      auto next = subject_.tokens(count, random.bits());
      for (int64_t p = track->length(); p < std::min(track->hit, track->length() + count); ++p)
        next[static_cast<size_t>(p - track->length())] = ids[static_cast<size_t>(p)];
      appends.push_back({track.get(), std::move(next)});
    }
    std::rotate(appends.begin(), appends.begin() + step % static_cast<int>(appends.size()), appends.end());
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, appends, 4));
  }
  EXPECT_GT(cold.length() + middle.length() + nothing.length(), 10);
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(expect_true(subject_, *all[i], 4));
  }
  EXPECT_EQ(snapshot(subject_, *donor.state), donor_before);
}

INSTANTIATE_TEST_SUITE_P(All, Snapshots,
                         ::testing::Values(Setting{"nano", "cpu"}, Setting{"micro", "cpu"}, Setting{"odd", "cpu"},
                                           Setting{"early", "cpu"}, Setting{"late", "cpu"}, Setting{"plain", "cpu"},
                                           Setting{"micro", "guarded"}, Setting{"micro", "cuda"},
                                           Setting{"micro", "cuda_features"}, Setting{"micro", "reference"}),
                         [](const auto& param) { return param.param.name(); });

}  // namespace
}  // namespace deepinfer
