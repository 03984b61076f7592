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
  const char* checkpoint;  ///< "nano", "micro", "odd" or "many"
  const char* backend;
  std::string name() const { return std::string(checkpoint) + "_" + backend; }
  friend std::ostream& operator<<(std::ostream& out, const Setting& s) { return out << s.name(); }
};

/// The model of a setting; pages are full of rubbish before they are written.
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

/// A sequence with everything that its positions gave.
class Track {
 public:
  explicit Track(Subject& subject);

  int64_t length() const { return state->length(); }
  void truncate(int64_t length);

  CountingPages pages;
  std::unique_ptr<SequenceState> state;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  ///< by position; empty where not asked for
  std::vector<std::vector<bf16>> taps;     ///< by position: what the draft module is fed
};

/// New tokens of a track in a step.
struct Append {
  Track* track;
  std::vector<int32_t> tokens;
};

/// Runs one step. Logits of every `every`-th position and of the last of each track.
void run_step(Subject& subject, const std::vector<Append>& appends, int64_t every = 1);

/// Everything that later steps may read, as bytes: visible window rows, whole rows of the pages, an open pair, history.
std::vector<std::pair<std::string, std::vector<uint8_t>>> snapshot(Subject& subject, SequenceState& state);

/// Bitwise: all that both have, and their states.
void expect_equal(Subject& subject, Track& got, Track& want);
/// The same against its own tokens, alone, in one step.
void expect_true(Subject& subject, Track& got, int64_t every = 1);

}  // namespace deepinfer::testing
