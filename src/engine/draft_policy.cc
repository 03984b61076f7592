#include "engine/draft_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace deepinfer {
namespace {

// Steps of each phase. A probe of kTrySteps after kFirstPause plain steps costs well under a percent even where drafts lose half.
constexpr int64_t kMeasureSteps = 6;
constexpr int64_t kTrySteps = 12;
constexpr int64_t kWarmSteps = 8;
constexpr int64_t kJudgeSteps = 48;   // drafting steps between two verdicts
constexpr int64_t kRefreshEvery = 4;  // verdicts between two looks at plain steps
constexpr int64_t kFirstPause = 512;
constexpr int64_t kLongestPause = 8192;
constexpr int64_t kClearSteps = 4;  // of a trial, after which a clear loss ends it
constexpr double kClearLoss = 0.85;
constexpr double kLoses = 1.0;       // tokens per second over plain: below it drafting stops,
constexpr double kWins = 1.03;       // and from here on it starts again
constexpr int32_t kIdleRounds = 3;   // without a draft worth verifying before an answer rests for 8 steps,
constexpr int32_t kLongestRest = 6;  // 16, ... 64
constexpr double kPriorWeight = 6;   // of the confidence head's own word against what was seen

/// The chance that the confidence head gives a draft. None where it is not a number: garbage is never worth a row.
double said(float confidence) { return std::isnan(confidence) ? 0.0 : 1.0 / (1.0 + std::exp(-static_cast<double>(confidence))); }

}  // namespace

int64_t CostCurve::bucket(int64_t size) {
  if (size <= 32) return size;
  // An eighth of an octave: rounded down.
  const int64_t octave = std::bit_width(static_cast<uint64_t>(size)) - 1;
  const int64_t step = std::max<int64_t>(1, (int64_t{1} << octave) / 8);
  return size / step * step;
}

void CostCurve::learn(int64_t size, double seconds) {
  const int64_t key = bucket(size);
  auto at = std::lower_bound(points_.begin(), points_.end(), key, [](const Point& p, int64_t k) { return p.size < k; });
  if (at == points_.end() || at->size != key) {
    at = points_.insert(at, Point{});
    at->size = key;
  }
  // The first step of a size pays for growing buffers: it counts only until the second.
  at->samples[static_cast<size_t>(std::max<int64_t>(at->count - 1, 0)) % kSamples] = seconds;
  ++at->count;
  std::array<double, kSamples> sorted = at->samples;
  const auto n = static_cast<ptrdiff_t>(std::clamp<int64_t>(at->count - 1, 1, kSamples));
  std::nth_element(sorted.begin(), sorted.begin() + n / 2, sorted.begin() + n);
  at->seconds = sorted[static_cast<size_t>(n / 2)];
}

bool CostCurve::knows(int64_t size) const {
  return std::any_of(points_.begin(), points_.end(), [&](const Point& p) { return p.size == bucket(size) && p.count >= 3; });
}

double CostCurve::at(int64_t size) const {
  // Never falling: a point is worth at least what any smaller one is.
  double below = 0;
  int64_t below_size = 0;
  double slope = 0;
  for (const Point& p : points_) {
    const double seconds = std::max(p.seconds, below);
    if (p.size >= size) {
      if (p.size == size || below_size == 0) return seconds;
      const double part = static_cast<double>(size - below_size) / static_cast<double>(p.size - below_size);
      return below + part * (seconds - below);
    }
    // Over the whole curve: neighbours differ by noise.
    if (below_size > 0) slope = (seconds - points_.front().seconds) / static_cast<double>(p.size - points_.front().size);
    below = seconds;
    below_size = p.size;
  }
  return below + std::max(slope, 0.0) * static_cast<double>(size - below_size);
}

bool DraftRest::rests() {
  if (pause_ == 0) return false;
  --pause_;
  return true;
}

void DraftRest::chose(int64_t drafts) {
  idle_rounds_ = drafts > 0 ? 0 : idle_rounds_ + 1;
  if (idle_rounds_ >= kIdleRounds) pause_ = 1 << std::min(idle_rounds_, kLongestRest);
}

DraftPolicy::DraftPolicy(const Options& options) : options_(options) {
  rates_.resize(static_cast<size_t>(std::max<int64_t>(options.most, 0)));
  wanted_ = options.mode == SpeculationMode::kOff ? 0 : int64_t{1} << 20;
  for (Batch& batch : batches_) {
    batch.left = kMeasureSteps;
    batch.pause = kFirstPause;
    batch.wanted = static_cast<double>(options.most);
  }
}

size_t DraftPolicy::batch_of(int64_t sequences) {
  return std::min<size_t>(19, static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(sequences, 1))) - 1));
}

void DraftPolicy::enter(Batch& batch, Batch::Phase phase) {
  using Phase = Batch::Phase;
  batch.phase = phase;
  batch.steps = 0;
  batch.seconds = batch.plain_seconds = 0;
  switch (phase) {
    case Phase::kMeasure:
      batch.left = kMeasureSteps;
      break;
    case Phase::kTry:
    case Phase::kProbe:
      batch.left = kTrySteps;
      break;
    case Phase::kOn:
      batch.left = kJudgeSteps;
      break;
    case Phase::kWait:
      batch.left = batch.pause;
      batch.pause = std::min(2 * batch.pause, kLongestPause);
      break;
    case Phase::kWarm:
      batch.left = kWarmSteps;
      break;
    case Phase::kRefresh:
      batch.left = 2;
      break;
  }
}

void DraftPolicy::judge(Batch& batch) {
  using Phase = Batch::Phase;
  const double gain = batch.seconds > 0 ? batch.plain_seconds / batch.seconds : 0;
  switch (batch.phase) {
    case Phase::kTry:
    case Phase::kProbe:
      if (gain >= kWins) batch.pause = kFirstPause;
      enter(batch, gain >= kWins ? Phase::kOn : Phase::kWait);
      return;
    case Phase::kOn:
      if (gain < kLoses) {
        enter(batch, Phase::kWait);
      } else {
        enter(batch, ++batch.verdicts % kRefreshEvery == 0 ? Phase::kRefresh : Phase::kOn);
      }
      return;
    case Phase::kMeasure:
      enter(batch, Phase::kTry);
      return;
    case Phase::kWait:
      enter(batch, Phase::kWarm);
      return;
    case Phase::kWarm:
      enter(batch, Phase::kProbe);
      return;
    case Phase::kRefresh:
      enter(batch, Phase::kOn);
      return;
  }
}

DraftPolicy::Kind DraftPolicy::begin_step(int64_t sequences, bool offered) {
  using Phase = Batch::Phase;
  if (options_.mode == SpeculationMode::kOff) return Kind::kPlain;
  if (options_.mode == SpeculationMode::kFixed) return offered ? Kind::kDraft : Kind::kWarm;
  if (sequences > 0) last_batch_ = batch_of(sequences);
  Batch& batch = batches_[last_batch_];
  if (sequences == 0) return batch.phase == Phase::kWait ? Kind::kPlain : Kind::kWarm;  // prompts alone
  if (batch.left <= 0) judge(batch);
  const bool drafts = batch.phase == Phase::kTry || batch.phase == Phase::kOn || batch.phase == Phase::kProbe;
  wanted_ = batch.phase == Phase::kWait ? 0 : static_cast<int64_t>(std::ceil(batch.wanted * static_cast<double>(sequences)));
  if (drafts && !offered) return Kind::kWarm;  // the plan was made before this phase began
  --batch.left;
  if (batch.phase == Phase::kWait) return Kind::kPlain;
  return drafts ? Kind::kDraft : Kind::kWarm;
}

double DraftPolicy::chance(int64_t k, float confidence) const {
  const double head = said(confidence);
  const auto bucket = std::min(kBuckets - 1, static_cast<size_t>(head * static_cast<double>(kBuckets)));
  const Rate& rate = rates_[static_cast<size_t>(k)][bucket];
  return (rate.accepted + kPriorWeight * head) / (rate.verified + kPriorWeight);
}

void DraftPolicy::learn_draft(std::span<const float> confidences, int64_t verified, int64_t accepted) {
  // Only drafts whose predecessors were accepted say something about themselves.
  for (int64_t k = 0; k < std::min(verified, accepted + 1); ++k) {
    const double head = said(confidences[static_cast<size_t>(k)]);
    Rate& rate =
        rates_[static_cast<size_t>(k)][std::min(kBuckets - 1, static_cast<size_t>(head * static_cast<double>(kBuckets)))];
    rate.accepted += k < accepted ? 1 : 0;
    rate.verified += 1;
    if (rate.verified > 4096) {  // what is long ago counts less
      rate.accepted /= 2;
      rate.verified /= 2;
    }
  }
}

void DraftPolicy::choose(std::span<DraftOffer> offers, int64_t budget, int64_t rows) {
  if (options_.mode == SpeculationMode::kFixed) {
    for (DraftOffer& offer : offers) {
      offer.chosen = std::min(offer.most, budget);
      budget -= offer.chosen;
    }
    return;
  }
  ranked_.clear();
  for (size_t i = 0; i < offers.size(); ++i) {
    offers[i].chosen = 0;
    double survival = 1;
    for (int64_t k = 0; k < offers[i].most; ++k) {
      survival *= chance(k, offers[i].confidences[static_cast<size_t>(k)]);
      ranked_.emplace_back(survival, static_cast<int64_t>(i));
    }
  }
  // A draft never ranks above the one before it, and equal ones keep their order: prefixes stay prefixes.
  std::stable_sort(ranked_.begin(), ranked_.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  // As long as no step has been timed, rows cost nothing.
  const double draft = draft_cost_.at(static_cast<int64_t>(offers.size())) + (step_cost_.at(rows) > 0 ? 0 : 1);
  const auto sequences = static_cast<double>(offers.size());
  size_t best = 0;
  double tokens = sequences;
  double best_rate = tokens / (draft + step_cost_.at(rows));
  const size_t most = std::min(ranked_.size(), static_cast<size_t>(std::max<int64_t>(budget, 0)));
  for (size_t m = 0; m < most; ++m) {
    tokens += ranked_[m].first;
    const double rate = tokens / (draft + step_cost_.at(rows + static_cast<int64_t>(m) + 1));
    if (rate > best_rate) {
      best_rate = rate;
      best = m + 1;
    }
  }
  for (size_t m = 0; m < best; ++m) ++offers[static_cast<size_t>(ranked_[m].second)].chosen;
  if (offers.empty()) return;
  Batch& batch = batches_[batch_of(static_cast<int64_t>(offers.size()))];
  // Room for half as many again, so that a good block is not cut.
  const double chosen = static_cast<double>(best) / sequences;
  batch.wanted = std::min(static_cast<double>(options_.most), std::max(0.9 * batch.wanted, 1.5 * chosen + 1));
}

void DraftPolicy::learn_step(int64_t sequences, int64_t rows, int64_t tokens, double draft_seconds, double step_seconds) {
  if (options_.mode != SpeculationMode::kVariable) return;
  step_cost_.learn(rows, step_seconds);
  if (draft_seconds <= 0) return;
  draft_cost_.learn(sequences, draft_seconds);
  Batch& batch = batches_[batch_of(sequences)];
  using Phase = Batch::Phase;
  const bool trial = batch.phase == Phase::kTry || batch.phase == Phase::kProbe;
  if (++batch.steps == 1 && trial) return;  // grows buffers, and knows no costs
  batch.seconds += draft_seconds + step_seconds;
  // Plain decoding would have made one token a sequence in each of its steps.
  batch.plain_seconds += static_cast<double>(tokens) / static_cast<double>(sequences) * step_cost_.at(sequences);
  if (trial && batch.steps > kClearSteps && batch.plain_seconds < kClearLoss * batch.seconds) batch.left = 0;
}

}  // namespace deepinfer
