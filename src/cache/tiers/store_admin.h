#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "cache/kv_store.h"
#include "cache/tiers/kv_retention.h"

namespace deepinfer {

/// A page as a store keeps it, of whatever model.
struct StoredPage {
  PrefixKey key;  ///< under which it is stored; the header of `record` may say otherwise if it is damaged
  CacheClass cache_class = CacheClass::kChat;
  double expiry = 0;                  ///< seconds since 1970
  std::span<const uint8_t> record{};  ///< header and groups (page_record.h); unchecked
};

struct StoreUsage {
  int64_t pages = 0;
  int64_t bytes = 0;  ///< of their records

  void add(int64_t record_bytes) {
    ++pages;
    bytes += record_bytes;
  }
};

/// Upper bounds of the ages and times to live that reports count by, in seconds; beyond the last one: one more.
inline constexpr std::array<double, 7> kStoreAgeBounds = {60, 600, 3600, 6 * 3600.0, 86400, 3 * 86400.0, 7 * 86400.0};

/// What a store holds.
struct StoreReport {
  /// Pages of one model, numerics and page shape.
  struct Generation {
    std::array<StoreUsage, kCacheClassCount> by_class{};
    StoreUsage exact, bounded;
    StoreUsage expired;  ///< counted in the others too
    /// Since the page was first written, and until it expires: bucket i has what is below kStoreAgeBounds[i].
    std::array<StoreUsage, kStoreAgeBounds.size() + 1> by_age{}, by_ttl_left{};
    double idle_seconds = -1;  ///< since an engine had it open; negative: not known
  };
  std::string kind;                               ///< "local" or "shared"
  std::map<std::string, Generation> generations;  ///< by fingerprint, in hexadecimal
  StoreUsage unreadable;                          ///< no header tells what they are
  StoreUsage temporary;                           ///< being written, or left behind by somebody who was killed
  StoreUsage foreign;                             ///< files that are none of the store's
  int64_t capacity_bytes = 0;                     ///< that garbage collection enforces
  int64_t file_bytes = 0;                         ///< that its files take
};

struct StoreVerification {
  StoreUsage checked;
  std::array<StoreUsage, kKvStoreMissCount> by_reason{};  ///< kNone: right
  int64_t removed = 0;
  std::vector<std::string> problems;  ///< the first hundred, one line each
};

struct StoreCollection {
  StoreUsage expired, evicted, temporary;  ///< that are gone
  int64_t generations = 0;                 ///< dead ones that were removed as a whole
  StoreUsage kept;
  /// Of the directory (StoreAdminOptions::directory_url), of evicted pages: what it confirmed, and what it may still have, which
  /// costs whoever believes it a miss. Entries of expired pages have expired themselves.
  int64_t entries_removed = 0, entries_left = 0;
};

/// A store as its keeper sees it: no model, no keys asked for, every generation at once. For tools; calls take as long as the
/// store is large, and end with kCancelled once `stop` is requested.
class StoreAdmin {
 public:
  virtual ~StoreAdmin() = default;

  virtual Result<StoreReport> stat(double now, std::stop_token stop) = 0;
  /// Reads every page and checks every checksum. `remove`: bad ones go.
  virtual Result<StoreVerification> verify(bool remove, std::stop_token stop) = 0;
  /// Removes what has expired, then what would expire first until store and classes are within their sizes.
  virtual Result<StoreCollection> gc(double now, std::stop_token stop) = 0;
  /// Each page, in the order of the keys of a generation, or of the files. An error of the visitor ends the walk.
  using Visitor = std::function<Status(const StoredPage& page)>;
  virtual Status for_each(const Visitor& visitor, std::stop_token stop) = 0;
  /// Stores a record under the key, fingerprint and exactness in its header; a page that is there stays, with the later expiry.
  /// Refuses a record that is not right, with the reason.
  virtual Status import_page(const StoredPage& page) = 0;

  /// `stat` and `verify` call it after each page, with what they have looked at so far.
  void on_progress(std::function<void(const StoreUsage& seen)> report) { report_ = std::move(report); }

  StoreAdmin(const StoreAdmin&) = delete;
  StoreAdmin& operator=(const StoreAdmin&) = delete;

 protected:
  StoreAdmin() = default;
  void looked_at(int64_t record_bytes) {
    seen_.add(record_bytes);
    if (report_) report_(seen_);
  }

 private:
  std::function<void(const StoreUsage& seen)> report_;
  StoreUsage seen_;
};

struct StoreAdminOptions {
  std::string directory;
  int64_t capacity_bytes = 0;  ///< that gc enforces; 0: by time to live alone
  KvRetention retention{};
  /// Redis that says what a shared store holds, for `gc` to tell what it evicts; empty: none. Unavailable, before anything is
  /// removed, if it cannot be reached.
  std::string directory_url{};
  /// Only stat, verify without `remove`, and for_each. A local store can then be looked at while an engine has it open.
  bool read_only = false;
};

/// The store in a directory, local or shared, whichever lies there. NotFound: neither does.
Result<std::unique_ptr<StoreAdmin>> open_store_admin(const StoreAdminOptions& options);

}  // namespace deepinfer
