#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"

namespace deepinfer {

/// Rotation frequencies of one kind of layer, fp32 (spec/backbone §3.4). Layers with compressed KV have a base of their own and
/// YaRN; layers without have neither.
class RopeTable {
 public:
  RopeTable(const ModelConfig& config, bool compressed);

  int64_t pairs() const { return static_cast<int64_t>(frequencies_.size()); }
  std::span<const float> frequencies() const { return frequencies_; }

  /// cos, sin [pairs] of position * frequency, the angle rounded to fp32 first (profile R).
  void fill(int64_t position, float* cos, float* sin) const;

 private:
  std::vector<float> frequencies_;
};

}  // namespace deepinfer
