#pragma once

#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>

#include "cache/kv_store.h"
#include "cache/tiers/kv_retention.h"
#include "cache/tiers/page_record.h"

namespace deepinfer {

struct LocalStoreOptions {
  std::string directory;
  int64_t capacity_bytes = int64_t{64} << 30;  ///< of rows and headers; the files may for a while be a quarter larger
  KvRetention retention{};
  int64_t memtable_bytes = int64_t{16} << 20;  ///< of the database, which has the headers

  Status validate() const;
};

struct LocalStoreStats {
  int64_t pages = 0;
  int64_t bytes = 0;       ///< of their records
  int64_t file_bytes = 0;  ///< that the files take
  int64_t expired = 0;     ///< since the store was opened
  int64_t evicted = 0;
  int64_t moved = 0;  ///< pages written anew so that the rest of their file could go
};

/// Pages in a RocksDB database of this process alone, which survive its end, also a sudden one (after a power failure the last
/// seconds may be gone; what is there is whole). The database has the headers; the rows are appended to files beside it, a batch
/// with one write (row_files.h), before their headers are written. What the headers say is kept in memory too (local_index.h), so
/// a match reads no file. A database that can't be opened because its files are damaged is put aside (DIR/db.damaged), as it is a
/// cache; one of an earlier version is removed. A database that writes no more, for its disk was away, is opened anew as soon as
/// files can be made there again.
class LocalStore : public KvStore {
 public:
  /// Fails if another process has the directory open, or it can't be written.
  static Result<std::unique_ptr<LocalStore>> Open(const KvPageShape& shape, const KvFingerprint& fingerprint,
                                                  const LocalStoreOptions& options);
  ~LocalStore() override;

  std::string_view tier() const override { return "local"; }
  KvStoreMatch match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) override;
  void read(std::span<KvStoreRead> reads, double now, std::stop_token stop) override;
  Status write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) override;
  Status touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) override;
  Status erase(std::span<const PrefixKey> keys, std::stop_token stop) override;
  int64_t pages() const override;

  /// Drops pages whose time is over, then those that would expire first until the store and each class are within their size, and
  /// then what too few of the pages in a file are left of. `write` calls it when the store is full, and now and then.
  Status collect_garbage(double now, std::stop_token stop);
  LocalStoreStats stats() const;

  /// Each record put together as one, of every model and unchecked (parse_record checks). An error of the visitor ends the walk.
  using Visitor = std::function<Status(const PrefixKey& key, std::span<const uint8_t> record, double expiry)>;
  Status visit(const Visitor& visitor) const;

 private:
  struct Impl;  // RocksDB stays out of here
  explicit LocalStore(std::unique_ptr<Impl> impl);
  /// Opens a database anew that writes no more, if it may help. True: worth another try.
  bool reopen();

  std::unique_ptr<Impl> impl_;
  mutable std::shared_mutex open_mutex_;  ///< shared by those who use the database, of its own for who opens it anew
};

}  // namespace deepinfer
