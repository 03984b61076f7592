#include "progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "terminal.h"

namespace deepinfer::cli {
namespace {

constexpr int kBarWidth = 30;
// Short work shows nothing: a line that flashes by is noise.
constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

ProgressLine::ProgressLine() : terminal_(stderr_is_terminal()), last_(Clock::now()) {}

void ProgressLine::update(std::string_view label, double done, double total, std::string_view detail) {
  if (!terminal_ || Clock::now() - last_ < kInterval) return;
  last_ = Clock::now();
  shown_ = true;
  if (!(total > 0)) {
    print_diagnostic(fmt::format("\r\x1b[2K{} {}", label, detail));
    return;
  }
  const double part = std::clamp(done / total, 0.0, 1.0);
  const auto filled = static_cast<size_t>(part * kBarWidth);
  print_diagnostic(fmt::format("\r\x1b[2K{} [{}{}] {:3.0f}% {}", label, std::string(filled, '#'),
                               std::string(kBarWidth - filled, ' '), part * 100, detail));
}

void ProgressLine::clear() {
  if (!shown_) return;
  shown_ = false;
  print_diagnostic("\r\x1b[2K");
}

}  // namespace deepinfer::cli
