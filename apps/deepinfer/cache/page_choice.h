#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cache/tiers/page_record.h"
#include "cache/tiers/store_admin.h"

namespace deepinfer::cache {

/// The beginning of a fingerprint in hexadecimal, as `cache stat` shows it: 8 digits at least.
Result<std::string> parse_fingerprint_prefix(std::string_view text);

/// Which pages of a store are meant. Without flags: all that have not expired.
struct PageChoice {
  std::vector<CacheClass> classes;        ///< empty: all
  std::vector<std::string> fingerprints;  ///< beginnings; empty: all
  std::optional<double> newer_than;       ///< written less than so many seconds ago
  std::optional<double> older_than;
  bool exact_only = false;
  bool expired = false;  ///< expired ones too

  /// The flags keep references to this object.
  void add_to(CLI::App& command);
  bool has(const StoredPage& page, const PageHeader& header, double now) const;
};

}  // namespace deepinfer::cache
