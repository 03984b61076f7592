#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace deepinfer::telemetry {

/// How often each expert of each layer was chosen. One thread counts, any may look; counting costs an addition per choice.
class ExpertLoad {
 public:
  /// `experts`: of each layer.
  explicit ExpertLoad(const std::vector<int64_t>& experts) {
    for (const int64_t count : experts) layers_.emplace_back(static_cast<size_t>(count));
  }

  /// `chosen`: experts of the layer, of all rows.
  void count(int64_t layer, std::span<const int32_t> chosen) noexcept {
    std::vector<std::atomic<int64_t>>& counts = layers_[static_cast<size_t>(layer)];
    for (const int32_t expert : chosen) {
      std::atomic<int64_t>& n = counts[static_cast<size_t>(expert)];
      n.store(n.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
  }

  /// What somebody else has counted: takes the place of the layer's counts.
  void set(int64_t layer, std::span<const int64_t> counts) noexcept {
    std::vector<std::atomic<int64_t>>& own = layers_[static_cast<size_t>(layer)];
    for (size_t e = 0; e < own.size(); ++e) own[e].store(counts[e], std::memory_order_relaxed);
  }

  /// [layer][expert]
  std::vector<std::vector<int64_t>> counts() const {
    std::vector<std::vector<int64_t>> out;
    for (const auto& layer : layers_) {
      out.emplace_back();
      for (const auto& n : layer) out.back().push_back(n.load(std::memory_order_relaxed));
    }
    return out;
  }

 private:
  std::vector<std::vector<std::atomic<int64_t>>> layers_;
};

}  // namespace deepinfer::telemetry
