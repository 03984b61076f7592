#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::bench {

struct Distribution;

/// The lines of a block as serving benchmarks print it: titles within rules, labels on the left, values on the right.
class TableFormat {
 public:
  /// Columns of the block, and of its labels.
  constexpr TableFormat(int width, int label_width) : width_(width), label_width_(label_width) {}

  std::string title(const std::string& text) const;
  std::string section(const std::string& text) const;
  std::string end() const;

  std::string line(const std::string& label, const std::string& value) const;
  std::string line(const std::string& label, int64_t value) const { return line(label, std::to_string(value)); }
  /// "-" for what is not finite.
  std::string line(const std::string& label, double value, int digits = 2) const;

  /// A section with the mean, the median and the 99th percentile of times in ms; `detailed`: and the 95th and the maximum.
  std::string distribution(const std::string& text, const std::string& name, const Distribution& d, bool detailed) const;

 private:
  int width_, label_width_;
};

}  // namespace deepinfer::bench
