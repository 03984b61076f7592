#pragma once

#include <string>
#include <vector>

#include "bench_result.h"
#include "svg_plot.h"

namespace deepinfer::bench {

/// Heading and one row of the table that grows while a sweep runs.
std::string sweep_heading();
std::string sweep_row(const BenchResult& result);

std::string sweep_csv_heading();
std::string sweep_csv_row(const BenchResult& result);

/// Throughput, time to the first token and inter-token time over the first of concurrency, input length, output length and shared
/// prefix that varies, with one line for every combination of the others.
std::vector<Plot> sweep_plots(const std::vector<BenchResult>& results);

/// A page with the plots and the table. It loads nothing.
std::string sweep_html(const std::vector<BenchResult>& results);

}  // namespace deepinfer::bench
