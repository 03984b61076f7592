#include "cache/tiers/admin_report.h"

#include <algorithm>

namespace deepinfer {
namespace {

size_t age_bucket(double seconds) {
  return static_cast<size_t>(std::upper_bound(kStoreAgeBounds.begin(), kStoreAgeBounds.end(), seconds) - kStoreAgeBounds.begin());
}

/// What is wrong with a record that is right in itself.
std::string_view misplaced(const PageHeader& header, const ExpectedPage& expected) {
  if (header.key != expected.key) return "it is another page than its name says";
  if (expected.exact && header.exact != *expected.exact) return "its name says otherwise of whether it is exact";
  if (expected.fingerprint && header.fingerprint != *expected.fingerprint)
    return "it is of another generation than its folder says";
  return {};
}

}  // namespace

void add_to_report(StoreReport::Generation& generation, CacheClass cache_class, bool exact, double created, double expiry,
                   double now, int64_t bytes) {
  generation.by_class[static_cast<size_t>(cache_class)].add(bytes);
  (exact ? generation.exact : generation.bounded).add(bytes);
  if (expiry <= now) generation.expired.add(bytes);
  generation.by_age[age_bucket(now - created)].add(bytes);
  generation.by_ttl_left[age_bucket(expiry - now)].add(bytes);
}

bool verify_record(std::span<const uint8_t> record, const ExpectedPage& expected, std::string_view place,
                   StoreVerification& counts) {
  constexpr size_t kMostProblems = 100;
  const auto bytes = static_cast<int64_t>(record.size());
  KvStoreMiss why = KvStoreMiss::kNone;
  std::string problem;
  if (const Result<ParsedRecord> parsed = parse_record(record, why); !parsed) {
    problem = parsed.error().message();
  } else if (const std::string_view wrong = misplaced(parsed->header, expected); !wrong.empty()) {
    why = KvStoreMiss::kCorrupt;
    problem = wrong;
  }
  counts.checked.add(bytes);
  counts.by_reason[static_cast<size_t>(why)].add(bytes);
  if (why != KvStoreMiss::kNone && counts.problems.size() < kMostProblems) {
    counts.problems.push_back(fmt::format("{}: {}: {}", place, kv_store_miss_name(why), problem));
  }
  return why == KvStoreMiss::kNone;
}

}  // namespace deepinfer
