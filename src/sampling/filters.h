#pragma once

// Steps 7-11 of spec/sampling §2.2 on one row of logits: passes over [vocab] that neither allocate nor know about requests.
// NaN compares false with everything and therefore counts as -inf throughout.

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "sampling/sampler.h"

namespace deepinfer {

/// (logit, id).
using Candidate = std::pair<float, int32_t>;

/// The order of steps 9 and 10: larger logits first, ties by the lower id. Total, so a selection by it is unique.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

/// What the filters keep: everything down to one place in the order of `ranks_before`. Each of min-p, top-k and top-p keeps a
/// prefix of that order, so their combination is described by the last token kept.
struct Border {
  float logit = std::numeric_limits<float>::lowest();  ///< excludes -inf, which is not a candidate
  int32_t id = std::numeric_limits<int32_t>::max();

  bool keeps(float z, int32_t v) const { return z > logit || (z == logit && v <= id); }
};

inline constexpr int32_t kNoToken = -1;

/// Largest logit; -inf if there is none.
float max_logit(std::span<const float> logits);
/// The id of the largest logit, the lowest on ties; kNoToken if all are -inf.
int32_t argmax(std::span<const float> logits);

/// Step 8: z >= z_max + ln(min_p).
Border min_p_border(float z_max, float min_p);
/// Step 9. `scratch` holds at least logits.size() elements of capacity.
Border top_k_border(std::span<const float> logits, Border border, int64_t k, std::vector<Candidate>& scratch);
/// Step 10. `scratch` as above.
Border top_p_border(std::span<const float> logits, Border border, float z_max, float top_p, std::vector<Candidate>& scratch);

/// Softmax mass of what the border keeps, relative to z_max, in the order of kMassLanes (base/fixed_math.h).
double softmax_mass(std::span<const float> logits, Border border, float z_max);

/// The `k` first of `ranks_before` among what the border keeps (fewer if it keeps fewer), in no particular order.
void select_largest(std::span<const float> logits, Border border, int64_t k, std::vector<Candidate>& scratch);

/// What a noise stream is keyed by (spec/sampling §4.2).
struct NoiseKey {
  uint64_t seed = 0;
  int64_t position = 0;
  NoiseStream stream = NoiseStream::kTarget;
  uint32_t choice_index = 0;
};

/// Step 11: argmax of logit + Gumbel noise over what the border keeps, ties to the lowest id; kNoToken if it keeps nothing.
int32_t draw(std::span<const float> logits, Border border, const NoiseKey& key);

}  // namespace deepinfer
