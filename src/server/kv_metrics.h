#pragma once

#include <string>
#include <string_view>

#include "deepinfer/engine.h"

namespace deepinfer::server {

/// Families of the KV pages: by class and tier, and what the tiers did, as far as there are any. `label`: of every sample,
/// without braces.
void write_kv_metrics(std::string& out, const EngineStats& stats, const IntervalsByClass& revisits, std::string_view label);

}  // namespace deepinfer::server
