#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "svg_plot.h"

namespace deepinfer::bench {

/// What plots and tables need of a run, read back from its JSON; NaN: it says nothing.
struct ServePoint {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  std::string label;                                          ///< of the series
  double rate = kNone, concurrency = kNone;                   ///< requests a second; requests or clients at a time
  double request_throughput = kNone, goodput = kNone;         ///< answers a second
  double output_throughput = kNone, user_throughput = kNone;  ///< tokens a second, of all and of one user (1 / mean TPOT)
  double median_ttft = kNone, p99_ttft = kNone, median_tpot = kNone, p99_tpot = kNone;  ///< milliseconds
  double completed = kNone, failed = kNone;
};

/// Errors: not a result of a serving benchmark, ours or vLLM's.
Result<ServePoint> read_point(const nlohmann::ordered_json& result, const std::string& label);
/// The runs of a file's text: JSON Lines, or one object.
Result<std::vector<ServePoint>> read_points(const std::string& text, const std::string& label);

/// Throughput against speed for one user, as the field draws it, and times over the load. A series that varies rate and
/// concurrency gets a line for each concurrency.
std::vector<Plot> serve_plots(std::vector<ServePoint> points);
/// A page with plots and a table of all runs, which loads nothing.
std::string serve_html(const std::vector<ServePoint>& points);

}  // namespace deepinfer::bench
