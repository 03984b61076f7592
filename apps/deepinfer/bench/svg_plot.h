#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::bench {

struct PlotPoint {
  double x = 0, y = 0;
};

/// One line of a plot. Points that are not finite interrupt it.
struct PlotLine {
  std::string label;
  std::vector<PlotPoint> points;
  int color = 0;        ///< lines of one color belong together
  bool dashed = false;  ///< tells two lines of one color apart
  bool markers = true;  ///< a mark at each point; without: curves of many points
};

struct Plot {
  std::string title;
  std::string description;  ///< for those who do not see it; empty: the title
  std::string x_label, y_label;
  std::vector<PlotLine> lines;
  bool log_x = false;  ///< decades along x, all of which is above 0; without: logarithms only where the values double
};

/// Round values that cover [low, high] in about `count` steps of 1, 2 or 5 x 10^k. Both ends finite, low <= high.
std::vector<double> nice_ticks(double low, double high, int count);

/// Whether x values at least about double from each to the next, so that an axis of logarithms spreads them evenly.
bool doubles(std::vector<double> values);

/// `text` for XML content and attributes; what XML forbids, and what is not UTF-8, becomes U+FFFD.
std::string xml_escape(std::string_view text);

/// Plots below each other in one SVG document that needs nothing else. `id` makes names unique where several stand in one page.
/// Colors follow the reader's light or dark setting.
std::string render_svg(const std::vector<Plot>& plots, std::string_view id = "plot");

}  // namespace deepinfer::bench
