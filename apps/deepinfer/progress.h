#pragma once

#include <chrono>
#include <string_view>

namespace deepinfer::cli {

/// A line on standard error that is rewritten while work goes on, and removed at the end. Nothing at all where standard error is
/// not a terminal. Updates are thinned out, so it may be called often.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// done / total as a bar, `label` before it and `detail` after it. Without a bar if `total` is 0: nobody knows how much it is.
  void update(std::string_view label, double done, double total, std::string_view detail = {});
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  bool terminal_;
  bool shown_ = false;
  Clock::time_point last_;
};

}  // namespace deepinfer::cli
