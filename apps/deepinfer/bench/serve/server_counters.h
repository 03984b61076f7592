#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::bench {

/// Samples of a Prometheus text, summed over labels.
std::map<std::string, double> read_counters(std::string_view metrics);

/// What the counters of two texts rose by; empty where a server has none.
std::map<std::string, double> risen(const Result<std::string>& before, const Result<std::string>& after);

}  // namespace deepinfer::bench
