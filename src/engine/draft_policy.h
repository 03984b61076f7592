#pragma once

// How many drafts a step verifies (dspark.md §7). Which ones are accepted follows from the target's own draws, so nothing in here
// can change an answer: measured times and learned rates are welcome.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "deepinfer/options.h"

namespace deepinfer {

/// Seconds by size, learned from what ran: the median of the last times of each size, never falling, straight lines between.
class CostCurve {
 public:
  void learn(int64_t size, double seconds);
  bool knows(int64_t size) const;
  /// Beyond what is known: on with the last slope, at least proportional to nothing; 0 if nothing is known.
  double at(int64_t size) const;

 private:
  static constexpr size_t kSamples = 9;
  struct Point {
    int64_t size = 0;
    int64_t count = 0;
    std::array<double, kSamples> samples{};
    double seconds = 0;
  };
  static int64_t bucket(int64_t size);
  std::vector<Point> points_;  ///< by size
};

/// Drafts offered by one sequence in a step.
struct DraftOffer {
  int64_t most = 0;                    ///< drafts that there are
  std::span<const float> confidences;  ///< [most] logits
  int64_t chosen = 0;                  ///< out
};

/// One answer's luck with drafts. Where none of them was worth verifying for some rounds, it goes without for a while, and
/// longer each time.
class DraftRest {
 public:
  /// Before a round: whether to sit it out.
  bool rests();
  /// After a round: how many drafts were verified.
  void chose(int64_t drafts);

 private:
  int32_t idle_rounds_ = 0;
  int32_t pause_ = 0;
};

/// Decides, step after step, whether to draft at all and how many drafts of which sequence to verify. One thread.
///
/// Variable length: of all drafts those most likely to be accepted, as many as make tokens per second largest, with the
/// chances that the confidence head gives (corrected by what became of earlier ones) and the times that steps took. Where even
/// that is slower than plain decoding, nothing is drafted, until a probe finds otherwise; probes come more and more rarely.
class DraftPolicy {
 public:
  enum class Kind : uint8_t {
    kPlain,  ///< no drafts, and none soon: draft rings may lag behind
    kWarm,   ///< no drafts, but soon: keep the draft rings filled
    kDraft,
  };
  struct Options {
    SpeculationMode mode = SpeculationMode::kOff;
    int64_t most = 0;  ///< drafts per sequence and step
  };

  explicit DraftPolicy(const Options& options);
  bool variable() const { return options_.mode == SpeculationMode::kVariable; }
  /// Drafts per sequence and step.
  int64_t most() const { return options_.most; }

  /// What a step with `sequences` decoding sequences is to do; `offered`: its plan has room for drafts. Moves the clock of probes
  /// on.
  Kind begin_step(int64_t sequences, bool offered);
  /// Chooses at most `budget` drafts. `rows`: of the step without drafts.
  void choose(std::span<DraftOffer> offers, int64_t budget, int64_t rows);
  /// What became of a sequence's drafts.
  void learn_draft(std::span<const float> confidences, int64_t verified, int64_t accepted);
  /// A step of decoding sequences alone: all rows, drafts among them, and the seconds of the draft pass and of everything else.
  void learn_step(int64_t sequences, int64_t rows, int64_t tokens, double draft_seconds, double step_seconds);
  /// Drafts worth planning for the next step like the last one.
  int64_t wanted() const { return wanted_; }

  /// Chance that draft k is accepted if those before it are.
  double chance(int64_t k, float confidence) const;
  const CostCurve& step_cost() const { return step_cost_; }
  const CostCurve& draft_cost() const { return draft_cost_; }

 private:
  static constexpr size_t kBuckets = 10;
  struct Rate {
    double accepted = 0, verified = 0;
  };
  /// What is known of batches of about one size.
  struct Batch {
    enum class Phase : uint8_t { kMeasure, kTry, kOn, kWait, kWarm, kProbe, kRefresh } phase = Phase::kMeasure;
    int64_t left = 0;  ///< steps of the phase
    int64_t pause = 0;
    int64_t verdicts = 0;
    int64_t steps = 0;                      ///< drafting steps of the phase
    double seconds = 0, plain_seconds = 0;  ///< what they took, and what plain ones would have taken for the same tokens
    double wanted = 0;
  };
  static size_t batch_of(int64_t sequences);
  void enter(Batch& batch, Batch::Phase phase);
  void judge(Batch& batch);

  Options options_;
  CostCurve step_cost_, draft_cost_;
  std::vector<std::array<Rate, kBuckets>> rates_;   ///< by position in the block and confidence
  std::array<Batch, 20> batches_;                   ///< by the logarithm of their size
  std::vector<std::pair<double, int64_t>> ranked_;  ///< scratch: chance of survival, offer
  size_t last_batch_ = 0;
  int64_t wanted_ = 0;
};

}  // namespace deepinfer
