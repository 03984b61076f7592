#pragma once

#include "cache/kv_store_rig.h"

namespace deepinfer::bench {

/// Pages through KvTiers::write_back, as an engine gives them away: what the store takes, and what giving one away costs.
void bench_write_back(const std::string& name, const StoreBenchSetting& setting);

/// Pages that come, are read, and go for want of space, while a third of the store's requests are for what has gone. What is read
/// must be right; in the end everything that is kept is verified.
void bench_churn(const std::string& name, const StoreBenchSetting& setting);

}  // namespace deepinfer::bench
