#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "model/step_observer.h"
#include "testing/golden_file.h"

namespace deepinfer::testing {

/// Keeps what a pass computes, by name and layer, and, where a golden case is given, replaces every sublayer's input by the
/// golden one, so that each value is compared on equal inputs (DESIGN §4).
class Recorder final : public StepObserver {
 public:
  Recorder() = default;
  Recorder(const GoldenFile* golden, std::string forced_case) : golden_(golden), case_(std::move(forced_case)) {}

  static std::string name_of(const std::string& test_case, int64_t layer, std::string_view item) {
    return fmt::format("{}.L{:02d}.{}", test_case, layer, item);
  }

  void before_block(int64_t layer, std::span<bf16> x, std::span<float> pre) override {
    if (golden_ == nullptr || layer == 0) return;
    fill(name_of(case_, layer - 1, "stream"), x);
    const std::vector<float> mix = golden_->values(name_of(case_, layer - 1, "pre"));
    std::copy(mix.begin(), mix.end(), pre.begin());
  }

  bool replace(std::string_view name, int64_t layer, std::span<bf16> data) override {
    return golden_ != nullptr && fill(name_of(case_, layer, name), data);
  }

  void value(std::string_view name, int64_t layer, std::span<const bf16> data) override {
    std::vector<float>& v = floats[{std::string(name), layer}];
    v.clear();
    for (bf16 x : data) v.push_back(to_float(x));
  }
  void value(std::string_view name, int64_t layer, std::span<const float> data) override {
    floats[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const int32_t> data) override {
    ints[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const int64_t> data) override {
    ints[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const uint8_t> data) override {
    bytes[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const uint64_t> data) override {
    words[{std::string(name), layer}].assign(data.begin(), data.end());
  }

  using Key = std::pair<std::string, int64_t>;
  std::map<Key, std::vector<float>> floats;
  std::map<Key, std::vector<int64_t>> ints;
  std::map<Key, std::vector<uint8_t>> bytes;
  std::map<Key, std::vector<uint64_t>> words;

 private:
  bool fill(const std::string& name, std::span<bf16> data) const {
    if (!golden_->has(name)) return false;
    const std::vector<float> want = golden_->values(name);
    if (want.size() != data.size())
      throw std::runtime_error(fmt::format("{}: {} golden values for {}", name, want.size(), data.size()));
    for (size_t i = 0; i < data.size(); ++i) data[i] = to_bf16(want[i]);
    return true;
  }

  const GoldenFile* golden_ = nullptr;
  std::string case_;
};

}  // namespace deepinfer::testing
