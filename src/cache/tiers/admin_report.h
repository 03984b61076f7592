#pragma once

#include <optional>
#include <string_view>

#include "cache/tiers/page_record.h"
#include "cache/tiers/store_admin.h"

namespace deepinfer {

// What the keepers of all stores count alike.

/// Adds a page to the report of its generation. `created`: seconds since 1970.
void add_to_report(StoreReport::Generation& generation, CacheClass cache_class, bool exact, double created, double expiry,
                   double now, int64_t bytes);

/// Checks a page's record, whatever model it is of, and counts it. `expected`: what its name and place say it is; without a
/// fingerprint, any. Returns whether it is right.
struct ExpectedPage {
  PrefixKey key;
  std::optional<bool> exact;
  std::optional<KvFingerprint> fingerprint;
};
bool verify_record(std::span<const uint8_t> record, const ExpectedPage& expected, std::string_view place,
                   StoreVerification& counts);

}  // namespace deepinfer
