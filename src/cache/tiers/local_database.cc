#include "cache/tiers/local_database.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

namespace deepinfer {
namespace {

using rocksdb::Slice;

constexpr size_t kKeyBytes = 16;
constexpr size_t kExpiryBytes = 8;

PrefixKey key_of(const Slice& bytes) {
  PrefixKey key;
  for (size_t i = 0; i < 8; ++i) key.high = key.high << 8 | static_cast<uint8_t>(bytes[i]);
  for (size_t i = 8; i < 16; ++i) key.low = key.low << 8 | static_cast<uint8_t>(bytes[i]);
  return key;
}

/// RocksDB's own log would be a file beside the data, and Debian's RocksDB aborts the process when it writes to that a second
/// time after the disk was full. What matters of it is in the errors of calls.
class NoLog final : public rocksdb::Logger {
 public:
  NoLog() : Logger(rocksdb::InfoLogLevel::HEADER_LEVEL) {}
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::DBOptions database_options(int64_t memtable_bytes) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.max_background_jobs = 2;
  options.max_total_wal_size = static_cast<uint64_t>(memtable_bytes) * 4;
  options.info_log = std::make_shared<NoLog>();
  options.max_open_files = 512;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

std::vector<rocksdb::ColumnFamilyDescriptor> families(int64_t memtable_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{64} << 20);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::ColumnFamilyOptions headers;
  headers.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  headers.compression = rocksdb::kNoCompression;  // quantised rows do not shrink
  headers.write_buffer_size = static_cast<size_t>(memtable_bytes);
  rocksdb::ColumnFamilyOptions rows = headers;
  rows.enable_blob_files = true;
  rows.min_blob_size = 1024;
  rows.enable_blob_garbage_collection = true;
  rows.blob_garbage_collection_age_cutoff = 1.0;
  rows.blob_garbage_collection_force_threshold = 0.25;
  return {{rocksdb::kDefaultColumnFamilyName, {}}, {"headers", headers}, {"rows", rows}};
}

}  // namespace

std::string local_key(const PrefixKey& key) {
  std::string bytes;
  for (const uint64_t half : {key.high, key.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(half >> shift));
  }
  return bytes;
}

std::string local_group_key(const PrefixKey& key, int64_t group) { return local_key(key) + static_cast<char>(group); }

std::string local_header_value(double expiry, std::span<const uint8_t> header) {
  std::string value(kExpiryBytes, '\0');
  std::memcpy(value.data(), &expiry, kExpiryBytes);
  return value.append(reinterpret_cast<const char*>(header.data()), header.size());
}

double local_expiry(const Slice& value) {
  double expiry = 0;
  if (value.size() >= kExpiryBytes) std::memcpy(&expiry, value.data(), kExpiryBytes);
  return std::isfinite(expiry) ? expiry : 0;
}

std::span<const uint8_t> local_header(const Slice& value) {
  return value.size() < kExpiryBytes ? std::span<const uint8_t>() : as_bytes(value).subspan(kExpiryBytes);
}

std::span<const uint8_t> as_bytes(const Slice& slice) { return {reinterpret_cast<const uint8_t*>(slice.data()), slice.size()}; }
Slice as_slice(std::span<const uint8_t> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

int64_t local_page_bytes(std::span<const int64_t> group_bytes) {
  const int64_t rows = std::accumulate(group_bytes.begin(), group_bytes.end(), int64_t{0});
  return rows + static_cast<int64_t>(header_bytes(group_bytes.size()) + group_bytes.size() * kGroupChecksumBytes + kExpiryBytes);
}

Result<std::unique_ptr<LocalDatabase>> LocalDatabase::Open(const std::string& directory, int64_t memtable_bytes, bool read_only) {
  std::unique_ptr<LocalDatabase> database(new LocalDatabase(directory));
  const rocksdb::DBOptions options = database_options(memtable_bytes);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  const std::string path = directory + "/db";
  const rocksdb::Status status = read_only
                                     ? rocksdb::DB::OpenForReadOnly(options, path, families(memtable_bytes), &handles, &opened)
                                     : rocksdb::DB::Open(options, path, families(memtable_bytes), &handles, &opened);
  if (!status.ok()) {
    // Files that others name and that are not there: those others are damaged, or the directory is.
    const bool damaged = status.IsCorruption() || status.IsPathNotFound();
    return Err(Status(damaged ? StatusCode::kDataLoss : StatusCode::kFailedPrecondition,
                      fmt::format("local store {}: {}", directory, status.ToString())));
  }
  database->db_.reset(opened);
  (void)opened->DestroyColumnFamilyHandle(handles[0]);
  database->headers_ = handles[1];
  database->rows_ = handles[2];
  return database;
}

LocalDatabase::~LocalDatabase() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* family : {headers_, rows_}) {
    if (family != nullptr) (void)db_->DestroyColumnFamilyHandle(family);
  }
  (void)db_->Close();
}

Status LocalDatabase::failed(std::string_view what, const rocksdb::Status& status) const {
  return {status.IsCorruption() ? StatusCode::kDataLoss : StatusCode::kUnavailable,
          fmt::format("local store {}: {}: {}", directory_, what, status.ToString())};
}

Status LocalDatabase::commit(rocksdb::WriteBatch& batch) const {
  if (batch.Count() == 0) return Status::Ok();
  rocksdb::Status status = db_->Write({}, &batch);
  // After an error such as a full disk the database refuses writes until it is told that things are better.
  if (!status.ok() && db_->Resume().ok()) status = db_->Write({}, &batch);
  return status.ok() ? Status::Ok() : failed("write", status);
}

LocalPage LocalDatabase::page(const PrefixKey& key, const Slice& header_value) const {
  LocalPage page{.key = key, .expiry = local_expiry(header_value), .header = std::nullopt, .value = header_value};
  KvStoreMiss why = KvStoreMiss::kNone;
  if (Result<PageHeader> header = parse_header(local_header(header_value), why); header) page.header = *std::move(header);
  return page;
}

Status LocalDatabase::for_each(FunctionRef<Status(const LocalPage& page)> visit, const std::stop_token& stop) const {
  const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator({}, headers_));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    if (stop.stop_requested()) return Status::Cancelled("local store {}: cancelled", directory_);
    if (at->key().size() != kKeyBytes) continue;
    DI_RETURN_IF_ERROR(visit(page(key_of(at->key()), at->value())));
  }
  return at->status().ok() ? Status::Ok() : failed("walk", at->status());
}

std::vector<uint8_t> LocalDatabase::record(const LocalPage& page) const {
  const std::span<const uint8_t> header = local_header(page.value);
  std::vector<uint8_t> record(header.begin(), header.end());
  for (size_t group = 0; page.header && group < page.header->group_bytes.size(); ++group) {
    rocksdb::PinnableSlice value;
    if (!db_->Get({}, rows_, local_group_key(page.key, static_cast<int64_t>(group)), &value).ok()) break;
    record.insert(record.end(), as_bytes(value).begin(), as_bytes(value).end());
  }
  return record;
}

Status LocalDatabase::remove(const LocalPage& page) const {
  rocksdb::WriteBatch batch;
  batch.Delete(headers_, local_key(page.key));
  // One delete for all groups that there may be would slow every later read down; without a header nobody knows how many.
  const size_t groups = page.header ? page.header->group_bytes.size() : kMaxKvGroups;
  for (size_t group = 0; group < groups; ++group) batch.Delete(rows_, local_group_key(page.key, static_cast<int64_t>(group)));
  return commit(batch);
}

int64_t LocalDatabase::file_bytes() const {
  int64_t bytes = 0;
  std::error_code error;
  std::filesystem::directory_iterator file(directory_ + "/db", error);
  for (; !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    std::error_code gone;
    if (const uintmax_t size = file->file_size(gone); !gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

Result<LocalGarbage> find_local_garbage(const LocalDatabase& database, int64_t capacity_bytes, const KvRetention& retention,
                                        double now, const std::stop_token& stop) {
  struct Candidate {
    double expiry = 0;
    PrefixKey key;
    CacheClass cache_class = CacheClass::kChat;
    int64_t bytes = 0;
    bool readable = true;
  };
  std::vector<Candidate> all;
  DI_RETURN_IF_ERROR(database.for_each(
      [&](const LocalPage& page) {
        all.push_back({.expiry = page.expiry,
                       .key = page.key,
                       .cache_class = page.cache_class(),
                       .bytes = page.bytes(),
                       .readable = page.header.has_value()});
        return Status::Ok();
      },
      stop));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.expiry < b.expiry; });
  std::array<int64_t, kCacheClassCount> used{};
  int64_t total = 0;
  for (const Candidate& page : all) {
    used[static_cast<size_t>(page.cache_class)] += page.bytes;
    total += page.bytes;
  }
  // Somewhat below the limit, or the next page would call for it again.
  constexpr double kFill = 0.9;
  const double capacity = capacity_bytes > 0 ? static_cast<double>(capacity_bytes) * kFill : INFINITY;
  LocalGarbage garbage;
  for (const Candidate& page : all) {
    int64_t& of_class = used[static_cast<size_t>(page.cache_class)];
    const double limit = capacity * retention.max_fraction[static_cast<size_t>(page.cache_class)];
    const bool over = page.expiry <= now || !page.readable;
    if (!over && static_cast<double>(total) <= capacity && !(static_cast<double>(of_class) > limit)) {
      garbage.counts.kept.add(page.bytes);
      continue;
    }
    of_class -= page.bytes;
    total -= page.bytes;
    (over ? garbage.counts.expired : garbage.counts.evicted).add(page.bytes);
    garbage.keys.push_back(page.key);
  }
  return garbage;
}

}  // namespace deepinfer
