#include "svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tokenizer/utf8.h"

namespace deepinfer::bench {
namespace {

constexpr double kWidth = 760, kPlotHeight = 300;
constexpr double kLeft = 76, kRight = 24, kTop = 40, kBottom = 52;
constexpr double kLegendRow = 18, kLegendSample = 26, kCharacter = 6.4;
constexpr int kColors = 8;
constexpr int kTicks = 6;

struct Palette {
  const char *ground, *ink, *soft, *grid;
  const char* lines[kColors];
};

// Lines that can be told apart with the usual kinds of colour blindness (after Okabe and Ito), darker and lighter for the
// grounds.
constexpr Palette kLight = {"#ffffff",
                            "#1c1c1e",
                            "#5c5c63",
                            "#e3e3e8",
                            {"#0062a8", "#c24d00", "#00795a", "#a5457f", "#8a6d00", "#1b7fb5", "#b3261e", "#55555c"}};
constexpr Palette kDark = {"#17171a",
                           "#f1f1f4",
                           "#a9a9b2",
                           "#34343a",
                           {"#5fb2f2", "#ff9a55", "#3fcf9f", "#e79cc9", "#e5c94b", "#8fd0f5", "#ff8a80", "#b9b9c2"}};

/// Plain rules, no custom properties: programs that are no browsers show the light colors at least.
std::string color_rules(const Palette& p) {
  std::string out = fmt::format(
      ".di-plot .ground {{ fill: {}; }}\n.di-plot text {{ fill: {}; }}\n.di-plot .title {{ fill: {}; }}\n"
      ".di-plot .grid {{ stroke: {}; }}\n.di-plot .axis {{ stroke: {}; }}\n",
      p.ground, p.soft, p.ink, p.grid, p.soft);
  for (int i = 0; i < kColors; ++i)
    out += fmt::format(".di-plot .s{} {{ stroke: {}; }} .di-plot .f{} {{ fill: {}; }}\n", i, p.lines[i], i, p.lines[i]);
  return out;
}

std::string style() {
  return "\n.di-plot { font: 12px system-ui, sans-serif; }\n.di-plot .title { font-weight: 600; font-size: 14px; }\n"
         ".di-plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; }\n"
         ".di-plot .dashed { stroke-dasharray: 6 4; }\n" +
         color_rules(kLight) + "@media (prefers-color-scheme: dark) {\n" + color_rules(kDark) + "}\n";
}

struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;  ///< pixels
  bool logarithmic = false;
  std::vector<double> ticks;

  double at(double value) const {
    const double part =
        logarithmic ? (std::log2(value) - std::log2(low)) / (std::log2(high) - std::log2(low)) : (value - low) / (high - low);
    return from + part * (to - from);
  }
};

bool finite(const PlotPoint& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", size < 1e-12 ? 0.0 : value);
}

template <typename Get>
std::vector<double> values_of(const Plot& plot, Get get) {
  std::vector<double> values;
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& p : line.points) {
      if (finite(p)) values.push_back(get(p));
    }
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Axis make_x_axis(const Plot& plot) {
  Axis axis;
  axis.from = kLeft;
  axis.to = kWidth - kRight;
  const std::vector<double> values = values_of(plot, [](const PlotPoint& p) { return p.x; });
  if (values.empty()) return axis;
  axis.low = values.front();
  axis.high = values.back();
  if (plot.log_x && values.front() > 0) {
    axis.logarithmic = true;
    const int first = static_cast<int>(std::floor(std::log10(values.front()) + 1e-9));
    const int last = std::max(static_cast<int>(std::ceil(std::log10(values.back()) - 1e-9)), first + 1);
    for (int power = first; power <= last; ++power) axis.ticks.push_back(std::pow(10.0, power));
    axis.low = axis.ticks.front();
    axis.high = axis.ticks.back();
  } else if (doubles(values)) {
    axis.logarithmic = true;
    axis.ticks = values;
  } else if (values.size() == 1) {
    // One point stands in the middle.
    const double around = std::max(std::abs(values[0]) / 2, 0.5);
    axis.low -= around;
    axis.high += around;
    axis.ticks = values;
  } else {
    axis.ticks = nice_ticks(axis.low, axis.high, kTicks);
    axis.low = std::min(axis.low, axis.ticks.front());
    axis.high = std::max(axis.high, axis.ticks.back());
  }
  return axis;
}

Axis make_y_axis(const Plot& plot, double top) {
  Axis axis;
  axis.from = top + kPlotHeight - kBottom;
  axis.to = top + kTop;
  const std::vector<double> values = values_of(plot, [](const PlotPoint& p) { return p.y; });
  // Zero belongs to it: heights are to be compared.
  const double low = values.empty() ? 0 : std::min(values.front(), 0.0);
  const double high = values.empty() ? 1 : std::max(values.back(), 0.0);
  axis.ticks = nice_ticks(low, high > low ? high : low + 1, kTicks);
  axis.low = axis.ticks.front();
  axis.high = axis.ticks.back();
  return axis;
}

void draw_axes(std::string& out, const Plot& plot, const Axis& x, const Axis& y) {
  const auto to = std::back_inserter(out);
  for (const double tick : y.ticks) {
    const double at = y.at(tick);
    fmt::format_to(to, R"(<line class="grid" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)", x.from, at, x.to, at);
    fmt::format_to(to,
                   R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)"
                   "\n",
                   x.from - 8, at + 4, tick_text(tick));
  }
  for (const double tick : x.ticks) {
    const double at = x.at(tick);
    fmt::format_to(to, R"(<line class="axis" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)", at, y.from, at, y.from + 5);
    fmt::format_to(to,
                   R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)"
                   "\n",
                   at, y.from + 18, tick_text(tick));
  }
  fmt::format_to(to,
                 R"(<line class="axis" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)"
                 "\n",
                 x.from, y.from, x.to, y.from);
  fmt::format_to(to,
                 R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)"
                 "\n",
                 (x.from + x.to) / 2, y.from + 38, xml_escape(plot.x_label));
  const double middle = (y.from + y.to) / 2;
  fmt::format_to(to,
                 R"svg(<text transform="translate(18 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>)svg"
                 "\n",
                 middle, xml_escape(plot.y_label));
}

void draw_line(std::string& out, const PlotLine& line, const Axis& x, const Axis& y) {
  const auto to = std::back_inserter(out);
  const int color = line.color % kColors;
  std::string path;
  bool pen_down = false;
  for (const PlotPoint& p : line.points) {
    if (!finite(p)) {
      pen_down = false;
      continue;
    }
    fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", pen_down ? "L" : "M", x.at(p.x), y.at(p.y));
    pen_down = true;
  }
  if (path.empty()) return;
  fmt::format_to(to,
                 R"(<path class="line s{}{}" d="{}"/>)"
                 "\n",
                 color, line.dashed ? " dashed" : "", path);
  for (const PlotPoint& p : line.points) {
    if (!finite(p) || !line.markers) continue;
    fmt::format_to(to,
                   R"(<circle r="3.5" cx="{:.1f}" cy="{:.1f}" class="f{}"><title>{}: {:g}, {:g}</title></circle>)"
                   "\n",
                   x.at(p.x), y.at(p.y), color, xml_escape(line.label), p.x, p.y);
  }
}

/// Where the legend's entries stand, and how many rows they take. Width by the number of bytes: close enough.
struct Legend {
  struct Entry {
    double x = 0;
    int row = 0;
  };
  std::vector<Entry> entries;
  int rows = 0;
};

Legend lay_out_legend(const Plot& plot) {
  Legend legend;
  double at = kLeft;
  int row = 0;
  for (const PlotLine& line : plot.lines) {
    const double width = kLegendSample + 8 + kCharacter * static_cast<double>(line.label.size()) + 18;
    if (at > kLeft && at + width > kWidth - kRight) {
      at = kLeft;
      ++row;
    }
    legend.entries.push_back({at, row});
    at += width;
  }
  legend.rows = plot.lines.empty() ? 0 : row + 1;
  return legend;
}

void draw_legend(std::string& out, const Plot& plot, const Legend& legend, double top) {
  const auto to = std::back_inserter(out);
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const PlotLine& line = plot.lines[i];
    const double x = legend.entries[i].x;
    const double y = top + kLegendRow * (legend.entries[i].row + 0.5);
    fmt::format_to(to, R"(<path class="line s{}{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>)", line.color % kColors,
                   line.dashed ? " dashed" : "", x, y, x + kLegendSample, y);
    fmt::format_to(to,
                   R"(<text x="{:.1f}" y="{:.1f}">{}</text>)"
                   "\n",
                   x + kLegendSample + 8, y + 4, xml_escape(line.label));
  }
}

double height_of(const Legend& legend) { return kPlotHeight + kLegendRow * legend.rows + 14; }

void draw_plot(std::string& out, const Plot& plot, const Legend& legend, double top) {
  const Axis x = make_x_axis(plot);
  const Axis y = make_y_axis(plot, top);
  fmt::format_to(std::back_inserter(out),
                 R"(<text class="title" x="{:.1f}" y="{:.1f}">{}</text>)"
                 "\n",
                 kLeft, top + 22, xml_escape(plot.title));
  draw_axes(out, plot, x, y);
  if (values_of(plot, [](const PlotPoint& p) { return p.x; }).empty()) {
    fmt::format_to(std::back_inserter(out),
                   R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">no data</text>)"
                   "\n",
                   (x.from + x.to) / 2, (y.from + y.to) / 2);
  }
  for (const PlotLine& line : plot.lines) draw_line(out, line, x, y);
  draw_legend(out, plot, legend, top + kPlotHeight);
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  if (!(high > low)) return {low};
  const double raw = (high - low) / std::max(count - 1, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  if (!std::isfinite(raw) || !(power > 0)) return {low, high};  // at the ends of what a double holds
  const double part = raw / power;
  const double step = power * (part <= 1.0000001 ? 1 : part <= 2.0000001 ? 2 : part <= 5.0000001 ? 5 : 10);
  const auto first = static_cast<int64_t>(std::floor(low / step + 1e-9));
  const auto last = static_cast<int64_t>(std::ceil(high / step - 1e-9));
  std::vector<double> ticks;
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

bool doubles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  if (values.size() < 3 || !(values.front() > 0)) return false;
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1] * 1.9) return false;
  }
  return true;
}

std::string xml_escape(std::string_view text) {
  std::string valid, out;
  utf8_append_lossy(text, /*last=*/true, valid);
  for (const char c : valid) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') {
          out += "\xef\xbf\xbd";
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string render_svg(const std::vector<Plot>& plots, std::string_view id) {
  std::vector<Legend> legends;
  double height = 0;
  std::string title, description;
  for (const Plot& plot : plots) {
    legends.push_back(lay_out_legend(plot));
    height += height_of(legends.back());
    title += (title.empty() ? "" : "; ") + plot.title;
    description += (description.empty() ? "" : " ") + (plot.description.empty() ? plot.title : plot.description);
  }
  height = std::max(height, 1.0);
  const std::string name = xml_escape(id);
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to,
                 R"(<svg xmlns="http://www.w3.org/2000/svg" class="di-plot" role="img" viewBox="0 0 {:.0f} {:.0f}" )"
                 R"(width="{:.0f}" height="{:.0f}" aria-labelledby="{}-title {}-desc">)"
                 "\n",
                 kWidth, height, kWidth, height, name, name);
  fmt::format_to(to, "<title id=\"{}-title\">{}</title>\n<desc id=\"{}-desc\">{}</desc>\n", name, xml_escape(title), name,
                 xml_escape(description));
  fmt::format_to(to, "<style>{}</style>\n", style());
  fmt::format_to(to,
                 R"(<rect class="ground" width="{:.0f}" height="{:.0f}"/>)"
                 "\n",
                 kWidth, height);
  double top = 0;
  for (size_t i = 0; i < plots.size(); ++i) {
    draw_plot(out, plots[i], legends[i], top);
    top += height_of(legends[i]);
  }
  return out + "</svg>\n";
}

}  // namespace deepinfer::bench
