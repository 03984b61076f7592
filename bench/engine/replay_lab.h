#pragma once

// What the replay benchmark measures with: sequences that share computed pages, and how far their next tokens are from those of
// an exact run.

#include <memory>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "model/model.h"

namespace deepinfer::bench {

/// Log-probabilities of the next token at every position of a text, from an exact run.
struct Reference {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // [tokens, vocab]
  double nll = 0;               ///< mean over the text, nats
};

/// A sequence with pages of its own for `capacity` positions.
class Track {
 public:
  Track(Model& model, int64_t capacity);

  SequenceState& state() { return *state_; }
  /// Goes on behind the first `hit` tokens, whose pages are copied from `donor`, running them again from `from` on.
  void adopt(const Track& donor, std::span<const int32_t> tokens, int64_t hit, int64_t from);
  /// The same with the windows of a snapshot at `hit`.
  void restore(const Track& donor, std::span<const int32_t> tokens, const WindowSnapshot& snapshot);

 private:
  void take_pages(const Track& donor, int64_t hit);

  Model& model_;
  int64_t stride_;
  AlignedBuffer<uint8_t> memory_;
  std::vector<uint8_t*> pages_;
  std::unique_ptr<SequenceState> state_;
};

/// How far one position is from the reference.
struct Distance {
  int64_t position = 0;
  double kl = 0;          ///< KL(exact || other), nats
  bool same_top = false;  ///< the same greedy token
  int32_t top = 0;        ///< greedy token of the other
};

/// Distances of many positions.
class Cell {
 public:
  void add(const Distance& d) {
    kl_.push_back(d.kl);
    same_ += d.same_top ? 1 : 0;
  }
  int64_t count() const { return static_cast<int64_t>(kl_.size()); }
  double mean() const;
  double percentile(double p) const;
  double same_top() const { return count() > 0 ? static_cast<double>(same_) / static_cast<double>(count()) : 0; }

 private:
  std::vector<double> kl_;
  int64_t same_ = 0;
};

class Lab {
 public:
  Lab(Model& model, ThreadPool& pool) : model_(model), pool_(pool) {}

  Model& model() { return model_; }
  /// Runs tokens [state length, end) in steps of at most 256 rows, each step ending at the next of `stops` (ascending) if that
  /// comes first; `at_stop` gets it. `logits` gets every row from `wanted` on: position and [vocab].
  void run(
      Track& track, std::span<const int32_t> tokens, int64_t end, int64_t wanted,
      FunctionRef<void(int64_t, std::span<const float>)> logits, std::span<const int64_t> stops = {},
      FunctionRef<void(int64_t)> at_stop = [](int64_t) {});
  /// The exact run of a text, in `track`.
  Reference reference(
      Track& track, std::vector<int32_t> tokens, std::span<const int64_t> stops = {},
      FunctionRef<void(int64_t)> at_stop = [](int64_t) {});
  /// Runs up to `end` and compares the positions from `from` on.
  std::vector<Distance> compare(Track& track, const Reference& reference, int64_t from, int64_t end);

  /// Rows x layers since the last call.
  int64_t take_row_layers() { return std::exchange(row_layers_, 0); }

 private:
  Model& model_;
  ThreadPool& pool_;
  int64_t row_layers_ = 0;
};

/// The snapshot without its decoder rows: as if no position before it had run the decoder.
WindowSnapshot without_decoder(WindowSnapshot snapshot);

struct SuiteText {
  std::string skill;
  std::vector<int32_t> prompt, answer;
};
/// {"skill", "prompt", "answer"} a line.
std::vector<SuiteText> read_suite(const std::string& path);
/// Texts of `length` tokens: rows in an order that `seed` decides, one after the other as turns of a session.
std::vector<std::vector<int32_t>> make_sessions(const std::vector<SuiteText>& rows, int64_t count, int64_t length, uint64_t seed);

/// Ends the program with the message.
[[noreturn]] void fail(const std::string& message);
template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  fail(r.error().message());
}

}  // namespace deepinfer::bench
