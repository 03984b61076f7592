#pragma once

// The only header of ours that includes RocksDB's; for local_*.cc alone.

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cache/tiers/kv_retention.h"
#include "cache/tiers/page_record.h"
#include "cache/tiers/row_files.h"
#include "cache/tiers/store_admin.h"

namespace deepinfer {

// The column family "pages" has KEY -> f64 expiry, where the rows lie (u64 file, u64 offset, u32 batch, u32 index), header. KEY
// is 16 bytes, big-endian, so that keys sort as their numbers do. The rows lie in files beside the database's own (row_files.h).

std::string local_key(const PrefixKey& key);
std::string local_page_value(double expiry, const RowPlace& place, std::span<const uint8_t> header);

/// What a page takes in the database, by its header.
int64_t local_page_bytes(std::span<const int64_t> group_bytes);

/// A page as the database tells. The header has a checksum of its own, and the rows have; a wrong expiry makes a page go early or
/// late, which harms nobody, and a wrong place gives wrong rows.
struct LocalPage {
  PrefixKey key;
  double expiry = 0;
  RowPlace place;
  std::optional<PageHeader> header;             ///< nothing if it can't be read
  KvStoreMiss unreadable = KvStoreMiss::kNone;  ///< why not
  rocksdb::Slice value;                         ///< of the family "pages"

  CacheClass cache_class() const { return header ? header->cache_class : CacheClass::kChat; }
  int64_t bytes() const { return header ? local_page_bytes(header->group_bytes) : static_cast<int64_t>(value.size()); }
};

struct LocalDatabaseOptions {
  int64_t memtable_bytes = int64_t{16} << 20;
  int64_t row_file_bytes = int64_t{256} << 20;
  bool read_only = false;
};

class LocalDatabase {
 public:
  /// DIR/db. kDataLoss if its files are damaged; kUnimplemented if it is of an earlier version; otherwise errors say that another
  /// process has it or that it can't be written.
  static Result<std::unique_ptr<LocalDatabase>> Open(const std::string& directory, const LocalDatabaseOptions& options);
  ~LocalDatabase();
  LocalDatabase(const LocalDatabase&) = delete;
  LocalDatabase& operator=(const LocalDatabase&) = delete;

  rocksdb::DB& db() const { return *db_; }
  rocksdb::ColumnFamilyHandle* pages() const { return pages_; }
  RowFiles& rows() const { return *rows_; }
  const std::string& directory() const { return directory_; }
  Status failed(std::string_view what, const rocksdb::Status& status) const;

  Status commit(rocksdb::WriteBatch& batch) const;
  /// The database has met an error, not for want of room, after which it writes no more, whatever becomes of the disk: only
  /// opening it anew helps.
  bool stuck() const { return stuck_; }
  /// A database is there, and files can be made beside it. Makes no folder.
  static bool can_be_written(const std::string& directory);
  /// In the order of their keys. kCancelled once `stop` is requested; an error of the visitor ends the walk.
  Status for_each(FunctionRef<Status(const LocalPage& page)> visit, const std::stop_token& stop) const;
  /// Header and groups put together as one record, unchecked; what is missing is missing.
  std::vector<uint8_t> record(const LocalPage& page) const;
  /// Removes a page that is there; its rows stay until their file goes.
  Status remove(const LocalPage& page) const;
  static LocalPage page(const PrefixKey& key, const rocksdb::Slice& value);
  /// Writes the pages of files of which little is in use into others, so that those go. `moved` hears of each before its old
  /// place goes. What can't be read is removed. No page may be written or removed meanwhile.
  using Moved = FunctionRef<void(const PrefixKey& key, const std::optional<RowPlace>& to)>;
  Status compact(Moved moved, const std::stop_token& stop) const;
  int64_t file_bytes() const;

 private:
  struct Moving;

  explicit LocalDatabase(std::string directory) : directory_(std::move(directory)) {}
  Status open(const LocalDatabaseOptions& options);
  Status move(std::span<const Moving> pages, Moved moved) const;
  /// The rows as they are stored, with their checksums; false: they can't be read.
  bool read_rows(const KvPageShape& shape, const RowPlace& place, std::vector<uint8_t>& page,
                 std::vector<uint64_t>& checksums) const;

  const std::string directory_;
  std::unique_ptr<RowFiles> rows_;
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* pages_ = nullptr;
  mutable std::atomic<bool> stuck_ = false;
};

/// What has to go: pages whose time is over or whose headers can't be read, then those that would expire first until the store
/// and each class are within their sizes (`capacity_bytes` 0: no limit).
struct LocalGarbage {
  std::vector<PrefixKey> keys;
  StoreCollection counts;
};
Result<LocalGarbage> find_local_garbage(const LocalDatabase& database, int64_t capacity_bytes, const KvRetention& retention,
                                        double now, const std::stop_token& stop);

}  // namespace deepinfer
