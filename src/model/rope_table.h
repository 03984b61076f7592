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

  /// cos, sin [pairs] of position * frequency, the angle rounded to fp32 first (profile R). Those of the first kKeptPositions are
  /// computed once: a prompt of 2,048 tokens takes the processor milliseconds otherwise. One caller at a time.
  void fill(int64_t position, float* cos, float* sin);

  static constexpr int64_t kKeptPositions = int64_t{1} << 16;

 private:
  static constexpr int64_t kBlock = 256;  // positions

  void compute(int64_t position, float* cos, float* sin) const;

  std::vector<float> frequencies_;
  std::vector<std::vector<float>> kept_;  // [kBlock][2][pairs], or nothing yet; of a position that was not asked for NaN first
};

}  // namespace deepinfer
