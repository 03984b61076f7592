// Bounded replay (spec/backbone §8): what is skipped or replayed depends on positions alone, so every cut of the same tokens
// gives the same bits; nothing is read that did not run; nothing of a cached prefix is written; and far enough back it is exact.

#include <algorithm>
#include <set>

#include "invariance/invariance.h"
#include "testing/named_backend.h"

namespace deepinfer {
namespace {

using testing::expect_equal;
using testing::Random;
using testing::run_step;
using testing::same_global_rows;
using testing::Setting;
using testing::snapshot;
using testing::Subject;
using testing::Track;

class Replay : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent(GetParam().backend); !why.empty()) GTEST_SKIP() << why;
  }
  bool nano() const { return std::string(GetParam().checkpoint) == "nano"; }
  bool reference() const { return std::string(GetParam().backend) == "reference"; }
  const ModelConfig& config() { return subject_.config(); }
  int64_t window() { return config().sliding_window; }
  int64_t length() const { return nano() ? 300 : reference() ? 150 : 290; }
  bool narrows() { return config().first_decoder_layer() < config().num_hidden_layers; }

  /// Feeds ids[track.length()..] in chunks that begin with `cuts` as ends, then go on by `size`.
  void feed(Track& track, const std::vector<int32_t>& ids, int64_t size, std::vector<int64_t> cuts = {}) {
    const auto total = static_cast<int64_t>(ids.size());
    while (track.length() < total) {
      int64_t end = std::min(total, track.length() + size);
      for (int64_t cut : cuts) {
        if (cut > track.length()) end = std::min(end, cut);
      }
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&track, {ids.begin() + track.length(), ids.begin() + end}}}, 4));
    }
  }

  Subject subject_{GetParam(), 2};
};

TEST_P(Replay, DecoderStartInAnyChunks) {
  const int64_t n = length();
  const auto ids = subject_.tokens(n, 31);
  Track exact(subject_);
  ASSERT_NO_FATAL_FAILURE(feed(exact, ids, n));
  for (int64_t d : {int64_t{1}, window() + 1, n / 2, n - window(), n - 3, n - 1, n, n + 5}) {
    SCOPED_TRACE(fmt::format("decoder_start {}", d));
    Track whole(subject_);
    whole.set_decoder_start(d);
    ASSERT_NO_FATAL_FAILURE(feed(whole, ids, n));
    if (!narrows()) {
      ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, whole, exact));
      continue;
    }
    // The cache is that of an exact run. The logits are not where windows were cut, and are again when no cut is in reach.
    ASSERT_TRUE(same_global_rows(subject_, *whole.state, *exact.state, n));
    const int64_t reach = (config().num_hidden_layers - config().first_decoder_layer()) * (window() - 1);
    if (d >= window() && (d + 3) / 4 * 4 < n) {
      const auto first = static_cast<size_t>((d + 3) / 4 * 4);
      EXPECT_NE(whole.logits[first], exact.logits[first]);
    }
    for (auto p = static_cast<size_t>(d + reach); p < whole.logits.size(); ++p) EXPECT_EQ(whole.logits[p], exact.logits[p]) << p;
    EXPECT_EQ(whole.state->decoder_window_start(), d);
    for (int64_t size : nano() || reference() ? std::vector<int64_t>{7, 64} : std::vector<int64_t>{1, 7, 64}) {
      SCOPED_TRACE(fmt::format("chunks of {}", size));
      Track cut(subject_);
      cut.set_decoder_start(d);
      ASSERT_NO_FATAL_FAILURE(feed(cut, ids, size));
      ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, cut, whole));
    }
    for (int64_t at : {d - 1, d, d + 1}) {
      SCOPED_TRACE(fmt::format("cut at {}", at));
      Track cut(subject_);
      cut.set_decoder_start(d);
      ASSERT_NO_FATAL_FAILURE(feed(cut, ids, n, {at}));
      ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, cut, whole));
    }
  }
}

TEST_P(Replay, DecoderStartOfAShortPromptChangesNothing) {
  const auto ids = subject_.tokens(window() + 3, 32);
  Track exact(subject_);
  ASSERT_NO_FATAL_FAILURE(feed(exact, ids, 100));
  for (int64_t d : {int64_t{0}, static_cast<int64_t>(ids.size()) - 128}) {
    Track track(subject_);
    track.set_decoder_start(d);
    EXPECT_EQ(track.state->decoder_start(), 0);
    ASSERT_NO_FATAL_FAILURE(feed(track, ids, 100));
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, track, exact));
  }
}

// Skipping the decoder up to d is the same as going on, at d, from an exact run whose decoder windows were thrown away.
TEST_P(Replay, DecoderStartIsAnEmptyDecoderWindow) {
  const auto ids = subject_.tokens(100, 33);
  for (int64_t d : {int64_t{1}, window() - 1, window(), int64_t{51}, int64_t{80}}) {
    Track exact(subject_);
    ASSERT_NO_FATAL_FAILURE(feed(exact, {ids.begin(), ids.begin() + d}, d));
    WindowSnapshot stripped;
    exact.state->save_window(stripped);
    const int64_t rows = std::min(d, window() - 1);
    const int64_t encoder = config().first_decoder_layer() * rows * stripped.row_bytes;
    const int64_t tail = d % 2 == 1 ? stripped.tail_bytes : 0;
    stripped.data.erase(stripped.data.begin() + encoder, stripped.data.end() - tail);
    stripped.decoder_window_start = d;
    Track a(subject_, true);
    ASSERT_NO_FATAL_FAILURE(a.restore(exact, stripped));
    ASSERT_NO_FATAL_FAILURE(feed(a, ids, 100));
    Track b(subject_);
    b.set_decoder_start(d);
    ASSERT_NO_FATAL_FAILURE(feed(b, ids, 100));
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, a, b));
  }
}

// Later turns of a session skip the decoder again; lowering and raising ahead of the rows leaves no trace.
TEST_P(Replay, DecoderStartMovesOn) {
  const auto ids = subject_.tokens(140, 34);
  Track want(subject_);
  want.set_decoder_start(30);
  ASSERT_NO_FATAL_FAILURE(feed(want, {ids.begin(), ids.begin() + 50}, 50));
  want.set_decoder_start(90);
  ASSERT_NO_FATAL_FAILURE(feed(want, ids, 140));
  EXPECT_EQ(want.state->decoder_window_start(), narrows() ? 90 : 0);
  Track got(subject_);
  got.set_decoder_start(70);
  got.set_decoder_start(30);
  ASSERT_NO_FATAL_FAILURE(feed(got, {ids.begin(), ids.begin() + 50}, 9));
  got.set_decoder_start(55);
  got.set_decoder_start(50);
  EXPECT_EQ(got.state->decoder_window_start(), narrows() ? 30 : 0);  // nothing has been skipped yet
  got.set_decoder_start(100);
  ASSERT_NO_FATAL_FAILURE(feed(got, {ids.begin(), ids.begin() + 60}, 9));
  got.set_decoder_start(90);
  ASSERT_NO_FATAL_FAILURE(feed(got, ids, 13));
  ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, got, want));
  if (!narrows()) return;
  EXPECT_EQ(got.state->set_decoder_start(139).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(got.state->set_decoder_start(0).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(got.state->set_decoder_start(90).ok());  // no change
  EXPECT_EQ(got.state->decoder_start(), 90);
}

TEST_P(Replay, RollbackAcrossTheDecoderStart) {
  const auto ids = subject_.tokens(80, 35);
  for (int64_t d : {int64_t{40}, int64_t{47}}) {
    Track want(subject_);
    want.set_decoder_start(d);
    ASSERT_NO_FATAL_FAILURE(feed(want, ids, 80));
    for (int64_t back : {d - 9, d - 1, d, d + 1, d + 3}) {
      SCOPED_TRACE(fmt::format("decoder_start {}, back to {}", d, back));
      Track got(subject_);
      got.set_decoder_start(d);
      ASSERT_NO_FATAL_FAILURE(feed(got, {ids.begin(), ids.begin() + back}, 11));
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&got, subject_.tokens(7, 36)}}));
      ASSERT_NO_FATAL_FAILURE(got.truncate(back));
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&got, subject_.tokens(16, 37)}}));
      ASSERT_NO_FATAL_FAILURE(got.truncate(back));
      ASSERT_NO_FATAL_FAILURE(feed(got, ids, 11));
      ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, got, want));
    }
  }
}

TEST_P(Replay, HitsOfAnyLength) {
  const int64_t n = length();
  const auto ids = subject_.tokens(n, 41);
  Track donor(subject_);
  ASSERT_NO_FATAL_FAILURE(feed(donor, ids, n));
  const auto donor_before = snapshot(subject_, *donor.state);
  const int64_t w = window();
  for (int64_t hit : std::set<int64_t>{1, 2, 3, w - 1, w, w + 1, 127, 128, 129, 255, 256, 257}) {
    if (hit + 5 > n || hit < 1) continue;
    for (int64_t from : std::set<int64_t>{0, hit - w, hit - w + 1, hit - 3, hit - 1, hit}) {
      if (from < 0 || (from == hit && hit % 2 == 1)) continue;
      if (nano() && (from == hit - 3 || from == hit - w + 1)) continue;  // the small models do those
      SCOPED_TRACE(fmt::format("hit of {}, replay from {}", hit, from));
      const std::vector<int32_t> part(ids.begin(), ids.begin() + std::min(n, hit + 12));
      const auto total = static_cast<int64_t>(part.size());
      Track whole(subject_, true);
      ASSERT_NO_FATAL_FAILURE(whole.adopt(donor, hit, from));
      EXPECT_EQ(whole.state->write_floor(), hit);
      ASSERT_NO_FATAL_FAILURE(feed(whole, part, total));
      EXPECT_EQ(whole.state->encoder_window_start(), from);
      EXPECT_EQ(whole.state->decoder_window_start(), from);
      EXPECT_TRUE(same_global_rows(subject_, *whole.state, *donor.state, hit));
      EXPECT_EQ(whole.state->history().size(), config().engram_layer_ids.empty() ? 0 : part.size());
      if (from == 0) {
        Track cold(subject_);
        ASSERT_NO_FATAL_FAILURE(feed(cold, part, total));
        ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, whole, cold));
      }
      for (auto [size, cut] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {5, 0}, {total, hit - 1}, {total, hit}, {total, hit + 1}}) {
        if (size == 1 && (nano() || reference()) && total - from > 30) continue;
        if (nano() && size == total && cut != hit) continue;
        SCOPED_TRACE(fmt::format("chunks of {}, cut at {}", size, cut));
        Track got(subject_, true);
        got.fill_state(0x5B);  // neither NaN nor nothing
        ASSERT_NO_FATAL_FAILURE(got.adopt(donor, hit, from));
        ASSERT_NO_FATAL_FAILURE(feed(got, part, size, {cut}));
        ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, got, whole));
        // Drafts behind the prefix, and taken back to its end.
        if (size == 5) {
          ASSERT_NO_FATAL_FAILURE(got.truncate(hit));
          EXPECT_EQ(got.state->truncate(hit - 1).code(), StatusCode::kFailedPrecondition);
          ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&got, subject_.tokens(4, 42)}}));
          ASSERT_NO_FATAL_FAILURE(got.truncate(hit));
          ASSERT_NO_FATAL_FAILURE(feed(got, part, 5));
          ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, got, whole));
        }
      }
    }
  }
  EXPECT_EQ(snapshot(subject_, *donor.state), donor_before);
}

// Replay and decoder replay together, the decoder starting in the prefix, at its end and behind it.
TEST_P(Replay, HitsWithADecoderStart) {
  const auto ids = subject_.tokens(150, 43);
  Track donor(subject_);
  ASSERT_NO_FATAL_FAILURE(feed(donor, ids, 150));
  for (int64_t hit : {int64_t{60}, int64_t{61}, int64_t{128}}) {
    for (int64_t d : {hit - 4, hit - 1, hit, hit + 1, hit + 15}) {
      SCOPED_TRACE(fmt::format("hit of {}, decoder_start {}", hit, d));
      const int64_t from = std::max<int64_t>(0, hit - window());
      Track whole(subject_, true);
      ASSERT_NO_FATAL_FAILURE(whole.adopt(donor, hit, from));
      whole.set_decoder_start(d);
      ASSERT_NO_FATAL_FAILURE(feed(whole, ids, 150));
      EXPECT_TRUE(same_global_rows(subject_, *whole.state, *donor.state, hit));
      for (int64_t size : {3, 40}) {
        Track got(subject_, true);
        got.set_decoder_start(d);  // before or after: the same
        ASSERT_NO_FATAL_FAILURE(got.adopt(donor, hit, from));
        ASSERT_NO_FATAL_FAILURE(feed(got, ids, size, {d}));
        ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, got, whole));
      }
    }
  }
}

// Layer l's windows are exact from replay_from + l * (W - 1) on: after num_hidden_layers * (W - 1) positions of replay, what
// follows the prefix is what a cold run gives, bit for bit. With a decoder start behind the prefix the encoder's layers suffice.
TEST_P(Replay, ExactDistance) {
  const int64_t per_layer = window() - 1;
  const int64_t all = config().num_hidden_layers * per_layer;
  // One more where the last KV source closes a pair that the prefix has left open.
  const bool pairs = narrows() && config().compress_ratio(config().first_decoder_layer()) == 2;
  const int64_t encoder = config().first_decoder_layer() * per_layer + (pairs ? 1 : 0);
  const int64_t n = all + 70;
  if (reference() && nano()) return;
  const auto ids = subject_.tokens(n, 44);
  Track cold(subject_);
  ASSERT_NO_FATAL_FAILURE(feed(cold, ids, n));
  // The shortest replay that was enough for these tokens, by bisection; the bound holds for all.
  const auto exact = [&](int64_t hit, int64_t distance, Track& want, int64_t d) {
    Track got(subject_, true);
    got.adopt(cold, hit, std::max<int64_t>(0, hit - distance));
    if (d > 0) got.set_decoder_start(d);
    feed(got, ids, n);
    for (int64_t p = hit; p < n; ++p) {
      if (got.taps[static_cast<size_t>(p)] != want.taps[static_cast<size_t>(p)]) return false;
      if (got.logits[static_cast<size_t>(p)] != want.logits[static_cast<size_t>(p)]) return false;
    }
    return snapshot(subject_, *got.state) == snapshot(subject_, *want.state);
  };
  int64_t smallest = 0;
  int64_t smallest_encoder = 0;
  for (int64_t hit : {all + 21, all + 34, all + 60}) {
    SCOPED_TRACE(fmt::format("hit of {}", hit));
    EXPECT_TRUE(exact(hit, all, cold, 0));
    Track skipped(subject_);
    skipped.set_decoder_start(hit + 2);
    ASSERT_NO_FATAL_FAILURE(feed(skipped, ids, n));
    EXPECT_TRUE(exact(hit, std::max<int64_t>(encoder, 1), skipped, hit + 2) || !narrows());
    if (nano() && hit != all + 34) continue;
    int64_t needs = all;
    while (needs > hit % 2 && needs > all - 12 && exact(hit, needs - 1, cold, 0)) --needs;
    smallest = std::max(smallest, needs);
    needs = encoder;
    while (narrows() && needs > hit % 2 && needs > encoder - 12 && exact(hit, needs - 1, skipped, hit + 2)) --needs;
    smallest_encoder = std::max(smallest_encoder, needs);
  }
  RecordProperty("exact_distance", static_cast<int>(smallest));
  fmt::print("{}: exact from {} positions of replay (bound {}), encoder {} (bound {})\n", GetParam().name(), smallest, all,
             smallest_encoder, encoder);
}

// An engine pools states: sessions with other starts in the same state, whatever the last one left there.
TEST_P(Replay, SessionsInOneState) {
  const auto ids = subject_.tokens(140, 45);
  Track donor(subject_);
  ASSERT_NO_FATAL_FAILURE(feed(donor, ids, 140));
  Track pooled(subject_, true);
  Random random(46);
  for (int session = 0; session < (nano() ? 6 : 16); ++session) {
    SCOPED_TRACE(fmt::format("session {}", session));
    Track fresh(subject_, true);
    pooled.restart();
    EXPECT_EQ(pooled.length(), 0);
    EXPECT_EQ(pooled.state->page_count(), 0);
    EXPECT_EQ(pooled.state->decoder_window_start(), 0);
    const int64_t hit = random.between(0, 100);
    const int64_t from = random.between(0, hit - hit % 2);
    const int64_t start = from + random.between(0, 30);
    const auto end = static_cast<int64_t>(hit + random.between(1, 39));
    for (Track* track : {&fresh, &pooled}) {
      if (session % 3 != 0) {
        ASSERT_NO_FATAL_FAILURE(track->adopt(donor, hit, from));
      }
      if (session % 2 != 0) track->set_decoder_start(start);
      ASSERT_NO_FATAL_FAILURE(feed(*track, {ids.begin(), ids.begin() + end}, track == &fresh ? 100 : 9));
    }
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, pooled, fresh));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Replay,
                         ::testing::Values(Setting{"nano", "cpu"}, Setting{"micro", "cpu"}, Setting{"odd", "cpu"},
                                           Setting{"early", "cpu"}, Setting{"late", "cpu"}, Setting{"plain", "cpu"},
                                           Setting{"micro", "guarded"}, Setting{"late", "guarded"},
                                           Setting{"odd", "guarded_ahead"}, Setting{"late", "guarded_ahead"},
                                           Setting{"micro", "cuda"}, Setting{"late", "cuda"}, Setting{"late", "cuda_features"},
                                           Setting{"plain", "cuda"}, Setting{"micro", "reference"}),
                         [](const auto& param) { return param.param.name(); });

}  // namespace
}  // namespace deepinfer
