#pragma once

// What the invariance tests share: sequences that remember what each of their positions gave, and the truth to hold them
// against, which is the same tokens run alone in one step.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "testing/loaded_model.h"
#include "testing/pages.h"
#include "testing/random.h"
#include "testing/random_model.h"

namespace deepinfer::testing {

/// A checkpoint and a backend to test on.
struct Setting {
  const char* checkpoint;  ///< "nano", "micro", or what `change_of` knows
  const char* backend;
  std::string name() const { return std::string(checkpoint) + "_" + backend; }
  friend std::ostream& operator<<(std::ostream& out, const Setting& s) { return out << s.name(); }
};

/// The model of a setting, none if its backend is absent here; pages are full of rubbish before they are written.
class Subject {
 public:
  Subject(const Setting& setting, int threads);

  Model& model() { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  std::vector<int32_t> tokens(int64_t count, uint64_t seed) const;

 private:
  LoadedModel nano_;
  RandomModel random_;
  Model* model_ = nullptr;
};

/// A sequence with everything that its positions gave, and how it came to be.
class Track {
 public:
  /// `borrows`: the track owns the pages, not its state. Rings and tails are full of rubbish: 0xFF is NaN in all their formats.
  explicit Track(Subject& subject, bool borrows = false);

  int64_t length() const { return state->length(); }
  void truncate(int64_t length);
  /// A new sequence in the same state, the way an engine pools them.
  void restart();
  /// Every byte of the rings and tails. Of a new sequence, nothing may change by it.
  void fill_state(uint8_t byte);
  /// Borrowed pages for positions below `length`.
  void cover(int64_t length);
  /// Borrowed pages with the global rows of [0, length) of `from`: whole pages are the same ones if `share`, the rest are copies
  /// with rubbish behind those rows.
  void take_pages(Track& from, int64_t length, bool share);

  /// Begins with the first `hit` positions of `donor`, which has to live as long; tokens[replay_from..] are the caller's to feed.
  void adopt(Track& donor, int64_t hit, int64_t replay_from);
  /// Goes on behind the first snapshot.length positions of `donor`, with pages of its own.
  void restore(Track& donor, const WindowSnapshot& snapshot);
  void fork(Track& other, bool share);
  void set_decoder_start(int64_t position);

  CountingPages pages;
  std::unique_ptr<SequenceState> state;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  ///< by position; empty where not asked for or not run
  std::vector<std::vector<bf16>> taps;     ///< by position: what the draft module is fed

  // What makes the sequence beside its tokens: `expect_true` does the same.
  Track* donor = nullptr;
  int64_t hit = 0;
  int64_t replay_from = 0;
  std::vector<std::pair<int64_t, int64_t>> decoder_starts;  ///< (length, position) of each set_decoder_start

 private:
  void forget_results(int64_t length);
  Subject& subject_;
};

/// New tokens of a track in a step.
struct Append {
  Track* track;
  std::vector<int32_t> tokens;
};

/// Runs one step. Logits of every `every`-th position and of the last of each track, as far as they run the decoder.
void run_step(Subject& subject, const std::vector<Append>& appends, int64_t every = 1);

/// Everything that later steps may read, as bytes: valid window rows, whole rows of the pages, an open pair, history.
std::vector<std::pair<std::string, std::vector<uint8_t>>> snapshot(Subject& subject, SequenceState& state);

/// Whether every byte that the first `length` positions have in the pages is the same.
bool same_global_rows(Subject& subject, SequenceState& a, SequenceState& b, int64_t length);

/// Bitwise: all that both have, and their states.
void expect_equal(Subject& subject, Track& got, Track& want);
/// The same against its own tokens, alone, in one step (one more for each set_decoder_start).
void expect_true(Subject& subject, Track& got, int64_t every = 1);

}  // namespace deepinfer::testing
