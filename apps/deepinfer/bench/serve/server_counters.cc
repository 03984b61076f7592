#include "serve/server_counters.h"

#include <cmath>
#include <cstdlib>

namespace deepinfer::bench {

std::map<std::string, double> read_counters(std::string_view metrics) {
  std::map<std::string, double> out;
  while (!metrics.empty()) {
    const size_t end = metrics.find('\n');
    const std::string_view text = metrics.substr(0, end);
    metrics.remove_prefix(end == std::string_view::npos ? metrics.size() : end + 1);
    const size_t name_end = text.find_first_of("{ ");
    // Labels may hold anything, a brace too: the value is behind the last blank.
    const size_t blank = text.rfind(' ');
    if (text.empty() || text[0] == '#' || name_end == std::string_view::npos || blank < name_end) continue;
    const std::string value(text.substr(blank + 1));
    char* rest = nullptr;
    const double number = std::strtod(value.c_str(), &rest);
    if (rest != value.c_str() && std::isfinite(number)) out[std::string(text.substr(0, name_end))] += number;
  }
  return out;
}

std::map<std::string, double> risen(const Result<std::string>& before, const Result<std::string>& after) {
  std::map<std::string, double> out;
  if (!before || !after) return out;
  const auto start = read_counters(*before);
  for (const auto& [name, value] : read_counters(*after)) {
    const auto old = start.find(name);
    if (name.ends_with("_total") && old != start.end() && value > old->second) out[name] = value - old->second;
    // Known to be zero is worth saying.
    if (name == "vllm:num_preemptions_total" && old != start.end()) out[name] = value - old->second;
  }
  return out;
}

}  // namespace deepinfer::bench
