#pragma once

// The only header of ours that includes RocksDB's; for local_*.cc alone.

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cache/tiers/kv_retention.h"
#include "cache/tiers/page_record.h"
#include "cache/tiers/store_admin.h"

namespace deepinfer {

// A record lies in two column families: "headers" has KEY -> f64 expiry, header; "rows" has KEY GROUP -> rows, checksum. KEY is
// 16 bytes, big-endian, so that keys sort as their numbers do; GROUP is one byte.

std::string local_key(const PrefixKey& key);
std::string local_group_key(const PrefixKey& key, int64_t group);
std::string local_header_value(double expiry, std::span<const uint8_t> header);
/// 0 if it says none. The header has a checksum of its own; a wrong expiry makes a page go early or late, which harms nobody.
double local_expiry(const rocksdb::Slice& header_value);
std::span<const uint8_t> local_header(const rocksdb::Slice& header_value);

std::span<const uint8_t> as_bytes(const rocksdb::Slice& slice);
rocksdb::Slice as_slice(std::span<const uint8_t> bytes);

/// What a page takes in the database, by its header.
int64_t local_page_bytes(std::span<const int64_t> group_bytes);

/// A page as its header tells; nothing if the header can't be read.
struct LocalPage {
  PrefixKey key;
  double expiry = 0;
  std::optional<PageHeader> header;
  rocksdb::Slice value;  ///< of the headers' family

  CacheClass cache_class() const { return header ? header->cache_class : CacheClass::kChat; }
  int64_t bytes() const { return header ? local_page_bytes(header->group_bytes) : static_cast<int64_t>(value.size()); }
};

class LocalDatabase {
 public:
  /// DIR/db. kDataLoss if its files are damaged; otherwise errors say that another process has it or that it can't be written.
  static Result<std::unique_ptr<LocalDatabase>> Open(const std::string& directory, int64_t memtable_bytes, bool read_only);
  ~LocalDatabase();
  LocalDatabase(const LocalDatabase&) = delete;
  LocalDatabase& operator=(const LocalDatabase&) = delete;

  rocksdb::DB& db() const { return *db_; }
  rocksdb::ColumnFamilyHandle* headers() const { return headers_; }
  rocksdb::ColumnFamilyHandle* rows() const { return rows_; }
  const std::string& directory() const { return directory_; }
  Status failed(std::string_view what, const rocksdb::Status& status) const;

  Status commit(rocksdb::WriteBatch& batch) const;
  /// In the order of their keys. kCancelled once `stop` is requested; an error of the visitor ends the walk.
  Status for_each(FunctionRef<Status(const LocalPage& page)> visit, const std::stop_token& stop) const;
  /// Header and groups put together as one record, unchecked; what is missing is missing.
  std::vector<uint8_t> record(const LocalPage& page) const;
  /// Removes header and rows of a page that is there.
  Status remove(const LocalPage& page) const;
  LocalPage page(const PrefixKey& key, const rocksdb::Slice& header_value) const;
  int64_t file_bytes() const;

 private:
  explicit LocalDatabase(std::string directory) : directory_(std::move(directory)) {}

  const std::string directory_;
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* headers_ = nullptr;
  rocksdb::ColumnFamilyHandle* rows_ = nullptr;
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
