#include "sampling/filters.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/fixed_math.h"
#include "base/gumbel_noise.h"
#include "base/philox.h"

namespace deepinfer {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 64;

/// Largest of z[0, n); -inf if there is none. The lanes are independent so that the compiler can keep them in vectors.
float block_max(const float* z, int64_t n) {
  constexpr int kLanes = 16;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, kMinusInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = z[i + j] > lanes[j] ? z[i + j] : lanes[j];
  }
  for (; i < n; ++i) lanes[0] = z[i] > lanes[0] ? z[i] : lanes[0];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = std::max(lanes[j], lanes[j + half]);
  }
  return lanes[0];
}

/// noise_bound of every number of leading zeros; the last entry, 22.88, bounds all.
constexpr std::array<float, 33> kNoiseBound = [] {
  std::array<float, 33> bound{};
  for (int c = 0; c <= 32; ++c) bound[static_cast<size_t>(c)] = noise_bound(c);
  return bound;
}();

}  // namespace

float max_logit(std::span<const float> logits) { return block_max(logits.data(), static_cast<int64_t>(logits.size())); }

int32_t argmax(std::span<const float> logits) {
  const auto n = static_cast<int64_t>(logits.size());
  float best = kMinusInfinity;
  int64_t winner = kNoToken;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const float* z = logits.data() + begin;
    const float top = block_max(z, std::min(kBlock, n - begin));
    if (!(top > best)) continue;
    best = top;
    winner = begin + (std::find(z, z + std::min(kBlock, n - begin), top) - z);
  }
  return static_cast<int32_t>(winner);
}

Border min_p_border(float z_max, float min_p) {
  Border border;
  if (min_p <= 0.0f) return border;
  // The smallest float that is not below the threshold: comparing with it is comparing with the FP64 threshold.
  const double threshold = static_cast<double>(z_max) + fixed_log(static_cast<double>(min_p));
  auto logit = static_cast<float>(threshold);
  if (static_cast<double>(logit) < threshold) logit = std::nextafter(logit, std::numeric_limits<float>::infinity());
  border.logit = std::max(border.logit, logit);
  return border;
}

void select_largest(std::span<const float> logits, Border border, int64_t k, std::vector<Candidate>& scratch) {
  const auto n = static_cast<int64_t>(logits.size());
  // Candidates gather in a buffer that is cut back to the best k whenever it is full; what ranks behind the k-th need not enter
  // any more. Ids ascend, so a later logit equal to the k-th ranks behind it.
  const int64_t capacity = std::min(n, std::max<int64_t>(2 * k, 1024));
  scratch.clear();
  const auto cut = [&] {
    if (static_cast<int64_t>(scratch.size()) <= k) return;
    std::nth_element(scratch.begin(), scratch.begin() + (k - 1), scratch.end(), ranks_before);
    scratch.resize(static_cast<size_t>(k));
    border = {scratch.back().first, scratch.back().second};
  };
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    if (!(block_max(logits.data() + begin, end - begin) >= border.logit)) continue;
    for (int64_t v = begin; v < end; ++v) {
      const float z = logits[static_cast<size_t>(v)];
      if (!border.keeps(z, static_cast<int32_t>(v))) continue;
      if (static_cast<int64_t>(scratch.size()) == capacity) {
        cut();
        if (!border.keeps(z, static_cast<int32_t>(v))) continue;
      }
      scratch.emplace_back(z, static_cast<int32_t>(v));
    }
  }
  cut();
}

Border top_k_border(std::span<const float> logits, Border border, int64_t k, std::vector<Candidate>& scratch) {
  if (k <= 0 || k >= static_cast<int64_t>(logits.size())) return border;
  select_largest(logits, border, k, scratch);
  if (static_cast<int64_t>(scratch.size()) < k) return border;
  const Candidate last = *std::max_element(scratch.begin(), scratch.end(), ranks_before);
  return {last.first, last.second};
}

double softmax_mass(std::span<const float> logits, Border border, float z_max) {
  std::array<double, kMassLanes> sums{};
  for (size_t v = 0; v < logits.size(); ++v) {
    if (border.keeps(logits[v], static_cast<int32_t>(v))) sums[v % kMassLanes] += softmax_weight(logits[v], z_max);
  }
  for (size_t half = kMassLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

Border top_p_border(std::span<const float> logits, Border border, float z_max, float top_p, std::vector<Candidate>& scratch) {
  if (top_p >= 1.0f) return border;
  const double goal = static_cast<double>(top_p) * softmax_mass(logits, border, z_max);
  // Mass accumulates in FP64 in sorted order (spec/sampling §4.3). Most rows reach top_p within a few hundred tokens, so only as
  // much of the order as needed is sorted; a longer selection starts with the shorter one, and gives the same sums.
  const auto n = static_cast<int64_t>(logits.size());
  for (int64_t k = 512;; k *= 16) {
    select_largest(logits, border, std::min(k, n), scratch);
    std::sort(scratch.begin(), scratch.end(), ranks_before);
    double before = 0.0;
    for (size_t i = 0; i < scratch.size(); ++i) {
      if (i > 0 && before >= goal) return {scratch[i - 1].first, scratch[i - 1].second};
      before += softmax_weight(scratch[i].first, z_max);
    }
    if (k >= n || static_cast<int64_t>(scratch.size()) < k) return border;
  }
}

int32_t draw(std::span<const float> logits, Border border, const NoiseKey& key) {
  // Tokens come in ascending order of id, so one must exceed the best score so far to win. A score is z + g rounded to fp32; the
  // rounding is monotone, so with g <= bound, z + bound <= best (in fp32) implies z + g <= best, and neither the logarithms nor,
  // for a whole block under the largest bound, the words are needed. Skipping never changes the winner.
  const auto n = static_cast<int64_t>(logits.size());
  const auto philox_key = noise_key(key.seed);
  float best = kMinusInfinity;
  int32_t winner = kNoToken;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    const float block_top = block_max(logits.data() + begin, end - begin);
    if (!(block_top >= border.logit) || !(block_top + kNoiseBound[32] > best)) continue;
    for (int64_t group = begin; group < end; group += 4) {
      const int64_t group_end = std::min(end, group + 4);
      float top = kMinusInfinity;
      for (int64_t v = group; v < group_end; ++v) top = std::max(top, logits[static_cast<size_t>(v)]);
      if (!(top >= border.logit) || !(top + kNoiseBound[32] > best)) continue;
      const auto words =
          philox4x32(noise_counter(static_cast<int32_t>(group), key.position, key.stream, key.choice_index), philox_key);
      for (int64_t v = group; v < group_end; ++v) {
        const float z = logits[static_cast<size_t>(v)];
        const uint32_t word = words[static_cast<size_t>(v - group)];
        if (!(z + kNoiseBound[static_cast<size_t>(std::countl_zero(word))] > best)) continue;
        if (!border.keeps(z, static_cast<int32_t>(v))) continue;
        const float score = z + gumbel(word);
        if (score > best) {
          best = score;
          winner = static_cast<int32_t>(v);
        }
      }
    }
  }
  return winner;
}

}  // namespace deepinfer
