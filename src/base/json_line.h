#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer {

/// What a measurement depends on, in the order it is printed: {"threads", "8"}, {"rows", "1"}. Keys should be distinct.
using BenchConditions = std::vector<std::pair<std::string, std::string>>;

/// `text` as a JSON string, quotes included, one line whatever is in it. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

/// One measurement as one line of JSON, without the newline (bench/README.md):
///   {"name":...,"value":...,"unit":...,"ceiling":...,"fraction":...,"conditions":{...},"commit":...}
/// ceiling: what the same machine allows, in the same unit; fraction is value / ceiling. Without a ceiling, or with one that is
/// not above zero, fraction is null. A number that JSON cannot carry (NaN, infinity) is null.
std::string bench_line(std::string_view name, double value, std::string_view unit, std::optional<double> ceiling = std::nullopt,
                       const BenchConditions& conditions = {});

/// Prints bench_line and a newline to `out`, and flushes, so that a run that is cut short keeps what it measured.
void print_bench_line(std::FILE* out, std::string_view name, double value, std::string_view unit,
                      std::optional<double> ceiling = std::nullopt, const BenchConditions& conditions = {});

}  // namespace deepinfer
