// Drafts, bit for bit: a sequence's drafts depend on its own committed rows alone, whatever the chunks in which they ran, the
// company, the threads, and what was taken back since (dspark.md §5). And drafting changes nothing of what `forward` computes.

#include <algorithm>

#include "invariance/invariance.h"
#include "sampling/sampler.h"
#include "testing/guarded_backend.h"
#include "testing/named_backend.h"

namespace deepinfer {
namespace {

using testing::Append;
using testing::expect_true;
using testing::Random;
using testing::run_step;
using testing::Setting;
using testing::Subject;
using testing::Track;

/// Logits of every draft position and the confidences of one sequence.
struct Drafted {
  std::vector<int32_t> tokens;
  std::vector<float> logits, confidences;
};

int32_t greedy(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<Drafted> draft(Subject& subject, const std::vector<std::pair<const SequenceState*, int32_t>>& sequences,
                           int64_t length) {
  std::vector<DraftSequence> wants;
  for (const auto& [state, anchor] : sequences) wants.push_back({state, anchor});
  std::vector<Drafted> all(sequences.size());
  const auto vocab = static_cast<size_t>(subject.config().vocab_size);
  const auto out = subject.model().draft(wants, length, [&](int64_t, std::span<float> logits, std::span<int32_t> tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto row = logits.subspan(i * vocab, vocab);
      all[i].logits.insert(all[i].logits.end(), row.begin(), row.end());
      tokens[i] = greedy(row);
    }
  });
  EXPECT_TRUE(out.has_value()) << out.error().message();
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t first = i * static_cast<size_t>(length);
    const auto count = static_cast<size_t>(length);
    all[i].tokens.assign(out->tokens.begin() + first, out->tokens.begin() + first + count);
    all[i].confidences.assign(out->confidences.begin() + first, out->confidences.begin() + first + count);
  }
  return all;
}

void expect_same(const Drafted& got, const Drafted& want, const std::string& what) {
  EXPECT_EQ(got.tokens, want.tokens) << what;
  ASSERT_EQ(got.logits.size(), want.logits.size()) << what;
  EXPECT_EQ(std::memcmp(got.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)), 0) << what;
  EXPECT_EQ(std::memcmp(got.confidences.data(), want.confidences.data(), want.confidences.size() * sizeof(float)), 0) << what;
}

class Drafts : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent(GetParam().backend); !why.empty()) GTEST_SKIP() << why;
  }
  /// Appends tokens of several sequences in one step, and makes all of them context.
  void feed(const std::vector<Append>& appends, WindowSnapshot* save = nullptr, int64_t save_at = 0) {
    std::vector<DraftContext> contexts;
    int64_t row = 0;
    for (const Append& a : appends) {
      const auto count = static_cast<int64_t>(a.tokens.size());
      contexts.push_back({.state = a.track->state.get(), .row = row, .position = a.track->length(), .count = count});
      row += count;
    }
    if (save == nullptr) {
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, appends, 1000));
    } else {
      Track& t = *appends[0].track;
      contexts[0].save = save;
      contexts[0].save_at = save_at;
      const StepSequence sequence{t.state.get(), contexts[0].count, save, save_at};
      StepBatch batch;
      batch.tokens = appends[0].tokens;
      batch.sequences = {&sequence, 1};
      ASSERT_TRUE(subject_.model().forward(batch).has_value());
      t.tokens.insert(t.tokens.end(), appends[0].tokens.begin(), appends[0].tokens.end());
      t.logits.resize(t.tokens.size());
      t.taps.resize(t.tokens.size());
    }
    const Status status = subject_.model().extend_draft(contexts);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void feed(Track& track, std::span<const int32_t> tokens, int64_t chunk) {
    while (!tokens.empty()) {
      const auto count = std::min(static_cast<size_t>(chunk), tokens.size());
      ASSERT_NO_FATAL_FAILURE(feed({{&track, {tokens.begin(), tokens.begin() + static_cast<int64_t>(count)}}}));
      tokens = tokens.subspan(count);
    }
  }
  int64_t block() const { return subject_.config().dspark_block_size; }

  Subject subject_{GetParam(), 2};
};

TEST_P(Drafts, ChunksCompanyAndThreads) {
  Subject other_threads(GetParam(), 3);
  const int64_t window = subject_.config().sliding_window;
  for (const int64_t length : {int64_t{1}, int64_t{2}, window - 1, window, window + 1, 3 * window + 5}) {
    const auto tokens = subject_.tokens(length + 1, static_cast<uint64_t>(length));
    const std::span<const int32_t> fed = std::span(tokens).first(static_cast<size_t>(length));
    Track alone(subject_);
    ASSERT_NO_FATAL_FAILURE(feed(alone, fed, length));
    const Drafted want = draft(subject_, {{alone.state.get(), tokens.back()}}, block())[0];

    for (const int64_t chunk : {int64_t{1}, int64_t{3}, window, window + 7}) {
      Track chunked(subject_);
      ASSERT_NO_FATAL_FAILURE(feed(chunked, fed, chunk));
      expect_same(draft(subject_, {{chunked.state.get(), tokens.back()}}, block())[0], want,
                  fmt::format("{} in {}", length, chunk));
    }
    // Fewer tokens of the same block.
    for (int64_t shorter = 1; shorter < block(); ++shorter) {
      const Drafted got = draft(subject_, {{alone.state.get(), tokens.back()}}, shorter)[0];
      Drafted part = want;
      part.tokens.resize(static_cast<size_t>(shorter));
      part.logits.resize(static_cast<size_t>(shorter * subject_.config().vocab_size));
      part.confidences.resize(static_cast<size_t>(shorter));
      expect_same(got, part, fmt::format("{} drafts", shorter));
    }
    // In a batch of others, of which some have no context.
    std::vector<std::unique_ptr<Track>> others;
    std::vector<std::pair<const SequenceState*, int32_t>> batch;
    for (int64_t i = 0; i < 6; ++i) {
      others.push_back(std::make_unique<Track>(subject_));
      if (i > 0) {
        ASSERT_NO_FATAL_FAILURE(feed(*others.back(), subject_.tokens(7 * i, 90 + static_cast<uint64_t>(i)), 5));
      }
      batch.emplace_back(others.back()->state.get(), 11 + static_cast<int32_t>(i));
    }
    batch.insert(batch.begin() + 3, {alone.state.get(), tokens.back()});
    expect_same(draft(subject_, batch, block())[3], want, "among others");

    Track threads(other_threads);
    const StepSequence sequence{threads.state.get(), length};
    StepBatch step;
    step.tokens = fed;
    step.sequences = {&sequence, 1};
    ASSERT_TRUE(other_threads.model().forward(step).has_value());
    const DraftContext context{threads.state.get(), 0, 0, length};
    ASSERT_TRUE(other_threads.model().extend_draft({&context, 1}).ok());
    expect_same(draft(other_threads, {{threads.state.get(), tokens.back()}}, block())[0], want, "other threads");
  }
}

// Rounds of drafts of which 0, 1, ... all are accepted, at every position of the rings and both parities (dspark.md §9.2, §9.6).
TEST_P(Drafts, RoundsWithEveryAcceptedCount) {
  Random random(3);
  const int64_t window = subject_.config().sliding_window;
  const auto tokens = subject_.tokens(4 * window + 200, 4);
  for (int64_t most = 0; most <= block(); ++most) {
    Track rounds(subject_);
    int64_t at = window / 2 + most;
    ASSERT_NO_FATAL_FAILURE(feed(rounds, std::span(tokens).first(static_cast<size_t>(at)), at));
    while (at < 3 * window) {
      const int64_t drafts = random.between(0, block());
      const int64_t accepted = std::min(drafts, random.between(0, most));
      std::vector<int32_t> rows(tokens.begin() + at, tokens.begin() + at + 1 + accepted);
      const auto wrong = subject_.tokens(drafts - accepted, random.bits());
      rows.insert(rows.end(), wrong.begin(), wrong.end());
      draft(subject_, {{rounds.state.get(), tokens[static_cast<size_t>(at)]}}, block());
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&rounds, rows}}, 1));
      rounds.truncate(at + 1 + accepted);
      const DraftContext context{rounds.state.get(), 0, at, 1 + accepted};
      ASSERT_TRUE(subject_.model().extend_draft({&context, 1}).ok());
      at += 1 + accepted;
    }
    ASSERT_NO_FATAL_FAILURE(expect_true(subject_, rounds));  // every cache is that of plain decoding
    Track plain(subject_);
    ASSERT_NO_FATAL_FAILURE(feed(plain, std::span(tokens).first(static_cast<size_t>(at)), at));
    expect_same(draft(subject_, {{rounds.state.get(), 9}}, block())[0], draft(subject_, {{plain.state.get(), 9}}, block())[0],
                fmt::format("after rounds of up to {}", most));
  }
}

// The rings go where the sequence goes: forks, snapshots (taken at the end and in the middle of a step), and back.
TEST_P(Drafts, ForksAndSnapshots) {
  const int64_t window = subject_.config().sliding_window;
  for (const int64_t length : {int64_t{6}, window, window + 2, 2 * window + 31}) {
    const auto tokens = subject_.tokens(length + window + 9, 5);
    const auto begin = tokens.begin();
    Track original(subject_);
    ASSERT_NO_FATAL_FAILURE(feed(original, std::span(tokens).first(static_cast<size_t>(length)), 5));
    const Drafted want = draft(subject_, {{original.state.get(), 7}}, block())[0];
    Track fork(subject_, true);
    ASSERT_NO_FATAL_FAILURE(fork.fork(original, false));
    expect_same(draft(subject_, {{fork.state.get(), 7}}, block())[0], want, "fork");
    WindowSnapshot kept;
    original.state->save_window(kept);
    EXPECT_EQ(kept.draft_window_start, 0);
    Track restored(subject_, true);
    ASSERT_NO_FATAL_FAILURE(restored.restore(original, kept));
    expect_same(draft(subject_, {{restored.state.get(), 7}}, block())[0], want, "snapshot");

    // The step goes on for longer than the rings keep what is saved, or for less.
    for (const int64_t more : {window + 3, int64_t{5}}) {
      if (length % 2 != 0) continue;
      Track passes(subject_);
      ASSERT_NO_FATAL_FAILURE(feed(passes, std::span(tokens).first(3), 3));
      WindowSnapshot middle;
      ASSERT_NO_FATAL_FAILURE(feed({{&passes, {begin + 3, begin + length + more}}}, &middle, length));
      EXPECT_EQ(middle.data.size(), kept.data.size());
      Track again(subject_, true);
      ASSERT_NO_FATAL_FAILURE(again.restore(original, middle));
      expect_same(draft(subject_, {{again.state.get(), 7}}, block())[0], want, "snapshot in the middle of a step");
    }
    // Without draft rows the drafts are poor, and the rest is what it was.
    Track lagging(subject_);
    ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&lagging, {begin, begin + length}}}, 1000));
    WindowSnapshot bare;
    lagging.state->save_window(bare);
    EXPECT_EQ(bare.draft_window_start, length);
    Track poor(subject_, true);
    ASSERT_NO_FATAL_FAILURE(poor.restore(original, bare));
    draft(subject_, {{poor.state.get(), 7}, {lagging.state.get(), 7}}, block());
    // After a gap only what came behind it is seen.
    ASSERT_NO_FATAL_FAILURE(feed({{&poor, {begin + length, begin + length + 4}}}));
    EXPECT_EQ(poor.state->draft_start(), length);
    EXPECT_EQ(poor.state->draft_end(), length + 4);
  }
}

/// Ways to sample, one for each sequence in turns.
SamplingParams sampling_of(size_t i) {
  SamplingParams p;
  p.seed = 1000 + i;
  p.choice_index = static_cast<uint32_t>(i % 3);
  p.temperature = i % 4 == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(i % 3);
  if (i % 4 == 1) p.top_k = 7;
  if (i % 4 == 2) p.top_p = 0.8f;
  if (i % 4 == 3) p.min_p = 0.05f;
  return p;
}

DrawRow draw_of(const SamplingParams& p) {
  return {.greedy = p.temperature < kGreedyTemperature,
          .temperature = p.temperature,
          .min_p = p.min_p,
          .top_k = p.top_k,
          .top_p = p.top_p,
          .seed = p.seed,
          .choice_index = p.choice_index};
}

// Drafts that the backend draws, all of them or those of some sequences, are those that the host's sampler picks: tokens and
// confidences. A round comes often enough to be recorded and replayed.
TEST_P(Drafts, DrawnByTheBackend) {
  if (!subject_.model().draws()) GTEST_SKIP() << "the host draws";
  const int64_t vocab = subject_.config().vocab_size;
  std::vector<std::unique_ptr<Track>> tracks;
  for (int64_t i = 0; i < 13; ++i) {
    tracks.push_back(std::make_unique<Track>(subject_));
    if (i > 0) {
      ASSERT_NO_FATAL_FAILURE(feed(*tracks.back(), subject_.tokens(5 * i, 70 + static_cast<uint64_t>(i)), 9));
    }
  }
  for (const size_t count : {1, 3, 9, 13}) {
    for (const int64_t length : {block(), int64_t{1}, block() - 1}) {
      const auto round = [&](size_t drawn) {
        std::vector<DraftSequence> wants;
        for (size_t i = 0; i < count; ++i) {
          wants.push_back({tracks[i]->state.get(), 5 + static_cast<int32_t>(i)});
          if (i < drawn) wants.back().draw = draw_of(sampling_of(i));
        }
        const auto out =
            subject_.model().draft(wants, length, [&](int64_t k, std::span<float> logits, std::span<int32_t> tokens) {
              for (size_t i = drawn; i < count; ++i) {
                const auto row = logits.subspan(i * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
                tokens[i] = Sampler(sampling_of(i), vocab).sample(row, tracks[i]->length() + 1 + k);
              }
            });
        EXPECT_TRUE(out.has_value()) << out.error().message();
        return Drafted{{out->tokens.begin(), out->tokens.end()}, {}, {out->confidences.begin(), out->confidences.end()}};
      };
      const Drafted want = round(0);
      for (int repeat = 0; repeat < 4; ++repeat) {
        const int64_t waits = testing::guarded_downloads();
        expect_same(round(count), want, fmt::format("{} sequences, {} drafts, round {}", count, length, repeat));
        if (std::string(GetParam().backend) == "guarded") {
          EXPECT_EQ(testing::guarded_downloads() - waits, 1) << "the host waits for the whole round at once";
        }
      }
      if (count > 1) expect_same(round(count / 2), want, fmt::format("half of {} sequences, {} drafts", count, length));
    }
  }
}

TEST_P(Drafts, BadCallsAreRefused) {
  Track track(subject_);
  ASSERT_NO_FATAL_FAILURE(feed(track, subject_.tokens(4, 1), 4));
  const DraftSequence good{track.state.get(), 5};
  const auto pick = [](int64_t, std::span<float>, std::span<int32_t> tokens) { tokens[0] = 1; };
  Model& model = subject_.model();
  EXPECT_FALSE(model.draft({&good, 1}, 0, pick).has_value());
  EXPECT_FALSE(model.draft({&good, 1}, block() + 1, pick).has_value());
  for (const int32_t anchor : {-1, static_cast<int32_t>(subject_.config().vocab_size)}) {
    const DraftSequence bad{track.state.get(), anchor};
    EXPECT_FALSE(model.draft({&bad, 1}, 1, pick).has_value());
  }
  const DraftSequence none{nullptr, 5};
  EXPECT_FALSE(model.draft({&none, 1}, 1, pick).has_value());
  // Drawn by a backend that draws, and before the others.
  Track other(subject_);
  const DraftSequence drawn{track.state.get(), 5, DrawRow{.greedy = true}};
  EXPECT_EQ(model.draft({&drawn, 1}, 1, pick).has_value(), model.draws());
  const DraftSequence late[] = {{other.state.get(), 5}, drawn};
  EXPECT_FALSE(model.draft(late, 1, pick).has_value());
  for (const DraftContext bad : {DraftContext{nullptr, 0, 0, 1}, DraftContext{track.state.get(), 0, 0, 0},
                                 DraftContext{track.state.get(), 0, 1, 4}, DraftContext{track.state.get(), 1 << 20, 0, 1}}) {
    EXPECT_FALSE(model.extend_draft({&bad, 1}).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Drafts,
                         ::testing::Values(Setting{"nano", "cpu"}, Setting{"micro", "cpu"}, Setting{"micro", "reference"},
                                           Setting{"micro", "guarded"}, Setting{"nano", "guarded"}, Setting{"nano", "cuda"},
                                           Setting{"micro", "cuda"}, Setting{"micro", "cuda_features"}),
                         [](const auto& param) { return param.param.name(); });

}  // namespace
}  // namespace deepinfer
