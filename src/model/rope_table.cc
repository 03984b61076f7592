#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deepinfer {

RopeTable::RopeTable(const ModelConfig& config, bool compressed) {
  const int64_t dim = config.qk_rope_head_dim;
  const float base = compressed ? config.compress_rope_theta : config.rope_theta;
  frequencies_.resize(static_cast<size_t>(dim / 2));
  for (int64_t k = 0; k < dim / 2; ++k) {
    const float exponent = static_cast<float>(2 * k) / static_cast<float>(dim);
    // A correctly rounded fp32 power, then an fp32 reciprocal: the bit patterns of §12.4.
    const auto power = static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    frequencies_[static_cast<size_t>(k)] = 1.0f / power;
  }
  const double original = compressed ? static_cast<double>(config.original_max_position_embeddings) : 0.0;
  if (original <= 0) return;
  const auto pair_of = [&](double turns) {
    return static_cast<double>(dim) * std::log(original / (turns * 2 * M_PI)) / (2 * std::log(static_cast<double>(base)));
  };
  const double low = std::max(std::floor(pair_of(config.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_of(config.beta_slow)), static_cast<double>(dim - 1));
  const auto span = static_cast<float>(std::max(high - low, 1e-3));
  for (int64_t k = 0; k < dim / 2; ++k) {
    float& f = frequencies_[static_cast<size_t>(k)];
    const float ramp = std::clamp((static_cast<float>(k) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    const float smooth = 1.0f - ramp;
    f = f / config.rope_factor * (1.0f - smooth) + f * smooth;
  }
}

void RopeTable::fill(int64_t position, float* cos, float* sin) {
  const size_t n = frequencies_.size();
  if (position < 0 || position >= kKeptPositions || n == 0) return compute(position, cos, sin);
  if (kept_.empty()) kept_.resize(static_cast<size_t>(kKeptPositions / kBlock));
  std::vector<float>& block = kept_[static_cast<size_t>(position / kBlock)];
  if (block.empty()) block.resize(static_cast<size_t>(kBlock) * 2 * n, std::numeric_limits<float>::quiet_NaN());
  float* row = block.data() + static_cast<size_t>(position % kBlock) * 2 * n;
  if (std::isnan(row[0])) compute(position, row, row + n);
  std::copy_n(row, n, cos);
  std::copy_n(row + n, n, sin);
}

void RopeTable::compute(int64_t position, float* cos, float* sin) const {
  for (size_t k = 0; k < frequencies_.size(); ++k) {
    const float angle = static_cast<float>(position) * frequencies_[k];
    // Double precision, rounded: properly range-reduced at positions near 2^20, and the same on every machine.
    cos[k] = static_cast<float>(std::cos(static_cast<double>(angle)));
    sin[k] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

}  // namespace deepinfer
