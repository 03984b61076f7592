#pragma once

#include <string>

#include "cache/tiers/store_admin.h"

namespace deepinfer::cache {

// What the keeper of a store found, as tables for people and as one JSON object in one line. `directory`: of the store.

std::string format_report(const std::string& directory, const StoreReport& report);
std::string report_json(const std::string& directory, const StoreReport& report);

/// Pages of the verification that are not right.
StoreUsage damaged(const StoreVerification& verification);
std::string format_verification(const std::string& directory, const StoreVerification& verification);
std::string verification_json(const std::string& directory, const StoreVerification& verification);

std::string format_collection(const std::string& directory, const StoreCollection& collection);
std::string collection_json(const std::string& directory, const StoreCollection& collection);

/// "12,345 pages, 1.30 GiB".
std::string usage_text(const StoreUsage& usage);

}  // namespace deepinfer::cache
