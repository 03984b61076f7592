#include "serve/serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "html_page.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Column {
  const char* name;
  double ServePoint::*value;
};

constexpr Column kColumns[] = {{"req/s", &ServePoint::rate},
                               {"concurrency", &ServePoint::concurrency},
                               {"done/s", &ServePoint::request_throughput},
                               {"good/s", &ServePoint::goodput},
                               {"tokens/s", &ServePoint::output_throughput},
                               {"tokens/s/user", &ServePoint::user_throughput},
                               {"TTFT p50 ms", &ServePoint::median_ttft},
                               {"TTFT p99 ms", &ServePoint::p99_ttft},
                               {"TPOT p50 ms", &ServePoint::median_tpot},
                               {"TPOT p99 ms", &ServePoint::p99_tpot},
                               {"completed", &ServePoint::completed},
                               {"failed", &ServePoint::failed}};

double number_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : ServePoint::kNone;
}

/// Members of a series that differ in concurrency as well as in rate become series of their own.
void split_series(std::vector<ServePoint>& points) {
  std::set<std::string> both;
  for (const ServePoint& a : points) {
    const auto differs = [&](double ServePoint::*member) {
      return std::any_of(points.begin(), points.end(), [&](const ServePoint& b) {
        return a.label == b.label && std::isfinite(a.*member) && std::isfinite(b.*member) && a.*member != b.*member;
      });
    };
    if (differs(&ServePoint::rate) && differs(&ServePoint::concurrency)) both.insert(a.label);
  }
  for (ServePoint& p : points) {
    if (both.contains(p.label) && std::isfinite(p.concurrency)) p.label += fmt::format(", concurrency {:g}", p.concurrency);
  }
}

struct Curve {
  const char* name;  ///< behind the series; empty: alone
  double ServePoint::*value;
};

Plot make_plot(const char* title, const char* x_label, const char* y_label, const std::vector<ServePoint>& points,
               double ServePoint::*x, const std::vector<Curve>& curves) {
  Plot out{.title = title, .description = {}, .x_label = x_label, .y_label = y_label, .lines = {}};
  std::vector<std::string> labels;
  for (const ServePoint& p : points) {
    const auto known = std::find(labels.begin(), labels.end(), p.label);
    const auto series = static_cast<size_t>(known - labels.begin());
    if (known == labels.end()) {
      labels.push_back(p.label);
      for (const Curve& curve : curves) {
        out.lines.push_back({.label = *curve.name == 0 ? p.label : fmt::format("{}, {}", p.label, curve.name),
                             .points = {},
                             .color = static_cast<int>(series),
                             .dashed = &curve != &curves.front()});
      }
    }
    for (size_t i = 0; i < curves.size(); ++i) out.lines[series * curves.size() + i].points.push_back({p.*x, p.*curves[i].value});
  }
  std::erase_if(out.lines, [](const PlotLine& line) {
    return std::none_of(line.points.begin(), line.points.end(),
                        [](const PlotPoint& p) { return std::isfinite(p.x) && std::isfinite(p.y); });
  });
  return out;
}

}  // namespace

Result<ServePoint> read_point(const Json& json, const std::string& label) {
  if (!json.is_object()) return Err(Status::InvalidArgument("not a JSON object"));
  for (const char* key : {"duration", "completed", "request_throughput", "output_throughput"}) {
    if (!json.contains(key) || !json[key].is_number())
      return Err(Status::InvalidArgument("\"{}\" is missing or no number: not a result of a serving benchmark", key));
  }
  ServePoint out;
  out.label = label;
  out.rate = number_of(json, "request_rate");
  out.concurrency = number_of(json, "num_clients");
  if (std::isnan(out.concurrency)) out.concurrency = number_of(json, "max_concurrency");
  out.request_throughput = number_of(json, "request_throughput");
  out.goodput = number_of(json, "request_goodput");
  out.output_throughput = number_of(json, "output_throughput");
  out.user_throughput = 1e3 / number_of(json, "mean_tpot_ms");
  out.median_ttft = number_of(json, "median_ttft_ms");
  out.p99_ttft = number_of(json, "p99_ttft_ms");
  out.median_tpot = number_of(json, "median_tpot_ms");
  out.p99_tpot = number_of(json, "p99_tpot_ms");
  out.completed = number_of(json, "completed");
  out.failed = number_of(json, "failed");
  return out;
}

Result<std::vector<ServePoint>> read_points(const std::string& text, const std::string& label) {
  std::vector<ServePoint> out;
  if (const Json whole = Json::parse(text, nullptr, /*allow_exceptions=*/false); whole.is_object()) {
    DI_ASSIGN_OR_RETURN(ServePoint point, read_point(whole, label));
    out.push_back(std::move(point));
    return out;
  }
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto point = read_point(Json::parse(line, nullptr, /*allow_exceptions=*/false), label);
    if (!point) return Err(Status::InvalidArgument("line {}: {}", number, point.error().message()));
    out.push_back(std::move(*point));
  }
  if (out.empty()) return Err(Status::InvalidArgument("has no result"));
  return out;
}

std::vector<Plot> serve_plots(std::vector<ServePoint> points) {
  split_series(points);
  const bool rates = std::any_of(points.begin(), points.end(), [](const ServePoint& p) { return std::isfinite(p.rate); });
  const auto load = rates ? &ServePoint::rate : &ServePoint::concurrency;
  const char* load_label = rates ? "requests a second" : "concurrency";
  // A search for the knee does not go upwards only. What has no load, all at once, is the end of it.
  const auto rank = [load](const ServePoint& p) { return std::isfinite(p.*load) ? p.*load : HUGE_VAL; };
  std::stable_sort(points.begin(), points.end(), [&](const ServePoint& a, const ServePoint& b) { return rank(a) < rank(b); });
  std::vector<Plot> out = {make_plot("Throughput against speed for one user", "tokens/s for one user", "tokens/s of all", points,
                                     &ServePoint::user_throughput, {{"", &ServePoint::output_throughput}}),
                           make_plot("Time to the first token", load_label, "ms", points, load,
                                     {{"", &ServePoint::median_ttft}, {"p99", &ServePoint::p99_ttft}}),
                           make_plot("Time per later token", load_label, "ms", points, load,
                                     {{"", &ServePoint::median_tpot}, {"p99", &ServePoint::p99_tpot}})};
  if (rates) {
    out.push_back(make_plot("Answers against requests", load_label, "answers a second", points, load,
                            {{"", &ServePoint::request_throughput}, {"good", &ServePoint::goodput}}));
  }
  return out;
}

std::string serve_html(const std::vector<ServePoint>& points) {
  std::string out;
  const std::vector<Plot> plots = serve_plots(points);
  for (size_t i = 0; i < plots.size(); ++i)
    out += fmt::format("<figure>\n{}</figure>\n", render_svg({plots[i]}, fmt::format("plot{}", i)));
  out += "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\" class=\"text\">run</th>";
  for (const Column& column : kColumns) out += fmt::format("<th scope=\"col\">{}</th>", column.name);
  out += "</tr></thead>\n<tbody>\n";
  for (const ServePoint& p : points) {
    out += fmt::format("<tr><th scope=\"row\" class=\"text\">{}</th>", xml_escape(p.label));
    for (const Column& column : kColumns) {
      const double value = p.*column.value;
      out += fmt::format("<td>{}</td>", !std::isfinite(value)
                                            ? "–"
                                            : fmt::format("{:.{}f}", value, value < 1000 && value != std::floor(value) ? 2 : 0));
    }
    out += "</tr>\n";
  }
  return html_page("Serving benchmark", out + "</tbody>\n</table></div>\n");
}

}  // namespace deepinfer::bench
