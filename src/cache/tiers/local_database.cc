#include "cache/tiers/local_database.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <tuple>

namespace deepinfer {
namespace {

using rocksdb::Slice;

constexpr size_t kKeyBytes = 16;
/// Expiry and place.
constexpr size_t kFixedBytes = 8 + 24;
constexpr const char* kPages = "pages";

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
  table.block_cache = rocksdb::NewLRUCache(size_t{16} << 20);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::ColumnFamilyOptions pages;
  pages.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  pages.compression = rocksdb::kNoCompression;  // hashes do not shrink
  pages.write_buffer_size = static_cast<size_t>(memtable_bytes);
  return {{rocksdb::kDefaultColumnFamilyName, {}}, {kPages, pages}};
}

/// Whether a version of this program made it whose pages lie elsewhere.
bool is_earlier_version(const rocksdb::DBOptions& options, const std::string& path) {
  std::vector<std::string> names;
  if (!rocksdb::DB::ListColumnFamilies(options, path, &names).ok()) return false;
  return std::find(names.begin(), names.end(), "headers") != names.end();
}

std::span<const uint8_t> as_bytes(const Slice& slice) { return {reinterpret_cast<const uint8_t*>(slice.data()), slice.size()}; }

template <typename T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
void take(const char*& at, T& value) {
  std::memcpy(&value, at, sizeof(value));
  at += sizeof(value);
}

}  // namespace

std::string local_key(const PrefixKey& key) {
  std::string bytes;
  for (const uint64_t half : {key.high, key.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(half >> shift));
  }
  return bytes;
}

std::string local_page_value(double expiry, const RowPlace& place, std::span<const uint8_t> header) {
  std::string value;
  put(value, expiry);
  put(value, place.file);
  put(value, place.offset);
  put(value, place.batch);
  put(value, place.index);
  return value.append(reinterpret_cast<const char*>(header.data()), header.size());
}

LocalPage LocalDatabase::page(const PrefixKey& key, const Slice& value) {
  LocalPage page{.key = key, .place = {}, .header = std::nullopt, .unreadable = KvStoreMiss::kCorrupt, .value = value};
  if (value.size() < kFixedBytes) return page;
  const char* at = value.data();
  take(at, page.expiry);
  if (!std::isfinite(page.expiry)) page.expiry = 0;
  take(at, page.place.file);
  take(at, page.place.offset);
  take(at, page.place.batch);
  take(at, page.place.index);
  if (Result<PageHeader> header = parse_header(as_bytes(value).subspan(kFixedBytes), page.unreadable); header)
    page.header = *std::move(header);
  return page;
}

int64_t local_page_bytes(std::span<const int64_t> group_bytes) {
  const int64_t rows = std::accumulate(group_bytes.begin(), group_bytes.end(), int64_t{0});
  return rows + static_cast<int64_t>(header_bytes(group_bytes.size()) + group_bytes.size() * kGroupChecksumBytes + kFixedBytes);
}

Result<std::unique_ptr<LocalDatabase>> LocalDatabase::Open(const std::string& directory, const LocalDatabaseOptions& options) {
  std::unique_ptr<LocalDatabase> database(new LocalDatabase(directory));
  DI_RETURN_IF_ERROR(database->open(options));
  return database;
}

Status LocalDatabase::open(const LocalDatabaseOptions& options) {
  const rocksdb::DBOptions db_options = database_options(options.memtable_bytes);
  const std::string path = directory_ + "/db";
  if (is_earlier_version(db_options, path)) {
    return Status::Unimplemented("local store {}: is of an earlier version, whose pages this program can't read", directory_);
  }
  std::error_code error;
  if (!options.read_only) std::filesystem::create_directory(path, error);
  if (error) return Status::FailedPrecondition("local store {}: {}", directory_, error.message());
  // Files before the database, and files again: whoever writes may remove some and make others meanwhile, and what the database
  // names is to be there.
  DI_ASSIGN_OR_RETURN(rows_, RowFiles::Open(path + "/rows", options.row_file_bytes, options.read_only));
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  const auto columns = families(options.memtable_bytes);
  const rocksdb::Status status = options.read_only ? rocksdb::DB::OpenForReadOnly(db_options, path, columns, &handles, &opened)
                                                   : rocksdb::DB::Open(db_options, path, columns, &handles, &opened);
  if (!status.ok()) {
    // Files that others name and that are not there: those others are damaged, or the directory is.
    const bool damaged = status.IsCorruption() || status.IsPathNotFound();
    return {damaged ? StatusCode::kDataLoss : StatusCode::kFailedPrecondition,
            fmt::format("local store {}: {}", directory_, status.ToString())};
  }
  db_.reset(opened);
  (void)opened->DestroyColumnFamilyHandle(handles[0]);
  pages_ = handles[1];
  if (options.read_only) return rows_->rescan();
  DI_RETURN_IF_ERROR(for_each(
      [this](const LocalPage& page) {
        rows_->hold(page.place, page.bytes());
        return Status::Ok();
      },
      {}));
  rows_->remove_unused();
  return Status::Ok();
}

LocalDatabase::~LocalDatabase() {
  if (db_ == nullptr) return;
  if (pages_ != nullptr) (void)db_->DestroyColumnFamilyHandle(pages_);
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
  stuck_ = !status.ok() && !status.IsNoSpace();
  return status.ok() ? Status::Ok() : failed("write", status);
}

bool LocalDatabase::can_be_written(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory + "/db/CURRENT", error)) return false;
  const std::string probe = directory + "/db/probe";
  const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return false;
  ::close(file);
  return ::unlink(probe.c_str()) == 0;
}

Status LocalDatabase::for_each(FunctionRef<Status(const LocalPage& page)> visit, const std::stop_token& stop) const {
  const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator({}, pages_));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    if (stop.stop_requested()) return Status::Cancelled("local store {}: cancelled", directory_);
    if (at->key().size() != kKeyBytes) continue;
    DI_RETURN_IF_ERROR(visit(page(key_of(at->key()), at->value())));
  }
  return at->status().ok() ? Status::Ok() : failed("walk", at->status());
}

bool LocalDatabase::read_rows(const KvPageShape& shape, const RowPlace& place, std::vector<uint8_t>& page,
                              std::vector<uint64_t>& checksums) const {
  page.resize(static_cast<size_t>(shape.page_bytes()));
  checksums.clear();
  for (size_t group = 0; group < shape.group_bytes.size(); ++group) {
    const auto index = static_cast<int64_t>(group);
    RowRead read{.into = std::span(page).subspan(static_cast<size_t>(shape.group_offset(index)),
                                                 static_cast<size_t>(shape.group_bytes[group]))};
    if (!rows_->read(shape, place, index, {&read, 1}).ok()) return false;
    checksums.push_back(read.checksum);
  }
  return true;
}

std::vector<uint8_t> LocalDatabase::record(const LocalPage& page) const {
  const std::span<const uint8_t> header = as_bytes(page.value).subspan(std::min(kFixedBytes, page.value.size()));
  std::vector<uint8_t> record(header.begin(), header.end());
  if (!page.header) return record;
  const KvPageShape shape{.group_bytes = page.header->group_bytes};
  for (size_t group = 0; group < shape.group_bytes.size(); ++group) {
    const size_t begin = record.size(), rows = static_cast<size_t>(shape.group_bytes[group]);
    record.resize(begin + rows + kGroupChecksumBytes);
    RowRead read{.into = std::span(record).subspan(begin, rows)};
    if (!rows_->read(shape, page.place, static_cast<int64_t>(group), {&read, 1}).ok()) {
      record.resize(begin);
      break;
    }
    std::memcpy(record.data() + begin + rows, &read.checksum, kGroupChecksumBytes);
  }
  return record;
}

Status LocalDatabase::remove(const LocalPage& page) const {
  rocksdb::WriteBatch batch;
  batch.Delete(pages_, local_key(page.key));
  DI_RETURN_IF_ERROR(commit(batch));
  rows_->release(page.place, page.bytes());
  return Status::Ok();
}

/// A page that is to lie elsewhere.
struct LocalDatabase::Moving {
  PrefixKey key;
  RowPlace place;
  std::string value;  ///< the page's in the database

  LocalPage page() const { return LocalDatabase::page(key, value); }
};

Status LocalDatabase::compact(Moved moved, const std::stop_token& stop) const {
  const std::vector<uint64_t> files = rows_->sparse();
  if (files.empty()) return Status::Ok();
  std::vector<Moving> pages;
  DI_RETURN_IF_ERROR(for_each(
      [&](const LocalPage& page) {
        if (std::find(files.begin(), files.end(), page.place.file) != files.end())
          pages.push_back({.key = page.key, .place = page.place, .value = page.value.ToString()});
        return Status::Ok();
      },
      stop));
  // As they lie: what was written together is read together.
  std::sort(pages.begin(), pages.end(), [](const Moving& a, const Moving& b) {
    return std::tie(a.place.file, a.place.offset, a.place.index) < std::tie(b.place.file, b.place.offset, b.place.index);
  });
  constexpr size_t kPagesAtOnce = 32;
  for (size_t begin = 0; begin < pages.size(); begin += kPagesAtOnce) {
    if (stop.stop_requested()) return Status::Cancelled("local store {}: cancelled", directory_);
    DI_RETURN_IF_ERROR(move(std::span(pages).subspan(begin, std::min(kPagesAtOnce, pages.size() - begin)), moved));
  }
  return Status::Ok();
}

Status LocalDatabase::move(std::span<const Moving> pages, Moved moved) const {
  struct Read {
    LocalPage page;
    std::vector<uint8_t> bytes;
    std::vector<uint64_t> checksums;
  };
  std::map<std::vector<int64_t>, std::vector<Read>> by_shape;
  for (const Moving& moving : pages) {
    Read read{.page = moving.page(), .bytes = {}, .checksums = {}};
    if (read.page.header && read_rows({read.page.header->group_bytes}, moving.place, read.bytes, read.checksums)) {
      by_shape[read.page.header->group_bytes].push_back(std::move(read));
    } else {
      moved(moving.key, std::nullopt);
      DI_RETURN_IF_ERROR(remove(read.page));
    }
  }
  for (const auto& [group_bytes, reads] : by_shape) {
    std::vector<RowPage> rows;
    for (const Read& read : reads) rows.push_back({.page = read.bytes, .checksums = read.checksums});
    DI_ASSIGN_OR_RETURN(const std::vector<RowPlace> places, rows_->append({group_bytes}, rows));
    rocksdb::WriteBatch batch;
    for (size_t i = 0; i < reads.size(); ++i) {
      const LocalPage& page = reads[i].page;
      batch.Put(pages_, local_key(page.key), local_page_value(page.expiry, places[i], as_bytes(page.value).subspan(kFixedBytes)));
    }
    DI_RETURN_IF_ERROR(commit(batch));
    for (size_t i = 0; i < reads.size(); ++i) {
      const LocalPage& page = reads[i].page;
      rows_->hold(places[i], page.bytes());
      moved(page.key, places[i]);
      rows_->release(page.place, page.bytes());
    }
  }
  return Status::Ok();
}

int64_t LocalDatabase::file_bytes() const {
  int64_t bytes = rows_->bytes();
  std::error_code error;
  std::filesystem::directory_iterator file(directory_ + "/db", error);
  for (; !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    std::error_code gone;
    if (const uintmax_t size = file->is_regular_file(gone) ? file->file_size(gone) : 0; !gone)
      bytes += static_cast<int64_t>(size);
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
