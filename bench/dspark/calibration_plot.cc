#include "calibration_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace deepinfer::bench {

void write_calibration_svg(const std::string& path, const std::string& title, const std::vector<CalibrationBucket>& buckets) {
  constexpr double kSide = 360, kLeft = 60, kTop = 40;
  const auto x = [&](double v) { return kLeft + v * kSide; };
  const auto y = [&](double v) { return kTop + (1 - v) * kSide; };
  std::ofstream file(path);
  file << fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">)",
                      kLeft + kSide + 30, kTop + kSide + 60)
       << fmt::format("<title>{}</title>", title)
       << "<style>text{fill:#333}line,rect{stroke:#999;fill:none}circle{fill:#4878a8;fill-opacity:.75}"
          "@media (prefers-color-scheme:dark){text{fill:#ddd}}</style>\n"
       << fmt::format("<text x=\"{}\" y=\"20\">{}</text>\n", kLeft, title)
       << fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", kLeft, kTop, kSide, kSide)
       << fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke-dasharray=\"4 4\"/>\n", x(0), y(0), x(1), y(1));
  for (int i = 0; i <= 4; ++i) {
    file << fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{:.2f}</text>\n", x(0.25 * i), kTop + kSide + 18,
                        0.25 * i)
         << fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.2f}</text>\n", kLeft - 6, y(0.25 * i) + 4, 0.25 * i);
  }
  file << fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">said by the confidence head</text>\n", x(0.5),
                      kTop + kSide + 40)
       << fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">accepted</text>\n", y(0.5));
  int64_t most = 1;
  for (const CalibrationBucket& b : buckets) most = std::max(most, b.drafts);
  for (const CalibrationBucket& b : buckets) {
    if (b.drafts == 0) continue;
    const double radius = 2 + 10 * std::sqrt(static_cast<double>(b.drafts) / static_cast<double>(most));
    file << fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"><title>said {:.3f}, {} of {} accepted</title></circle>\n", x(b.said),
        y(b.rate()), radius, b.said, b.accepted, b.drafts);
  }
  file << "</svg>\n";
}

}  // namespace deepinfer::bench
