#include "cache/tiers/local_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <mutex>

namespace deepinfer {
namespace {

using rocksdb::Slice;

constexpr size_t kKeyBytes = 16;
constexpr size_t kExpiryBytes = 8;

/// Big-endian halves: keys sort as their numbers do.
std::string key_bytes(const PrefixKey& key) {
  std::string bytes;
  for (const uint64_t half : {key.high, key.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(half >> shift));
  }
  return bytes;
}

PrefixKey key_of(const Slice& bytes) {
  PrefixKey key;
  for (size_t i = 0; i < 8; ++i) key.high = key.high << 8 | static_cast<uint8_t>(bytes[i]);
  for (size_t i = 8; i < 16; ++i) key.low = key.low << 8 | static_cast<uint8_t>(bytes[i]);
  return key;
}

std::string group_key(const PrefixKey& key, int64_t group) { return key_bytes(key) + static_cast<char>(group); }

std::span<const uint8_t> as_bytes(const Slice& slice) { return {reinterpret_cast<const uint8_t*>(slice.data()), slice.size()}; }
Slice as_slice(std::span<const uint8_t> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// What the family of headers holds: f64 expiry, then the header. The header has a checksum of its own; a wrong expiry makes a
/// page go early or late, which harms nobody.
std::string header_value(double expiry, std::span<const uint8_t> header) {
  std::string value(kExpiryBytes, '\0');
  std::memcpy(value.data(), &expiry, kExpiryBytes);
  return value.append(reinterpret_cast<const char*>(header.data()), header.size());
}

double expiry_of(const Slice& value) {
  double expiry = 0;
  if (value.size() >= kExpiryBytes) std::memcpy(&expiry, value.data(), kExpiryBytes);
  return std::isfinite(expiry) ? expiry : 0;
}

Slice header_of(const Slice& value) {
  return value.size() < kExpiryBytes ? Slice() : Slice(value.data() + kExpiryBytes, value.size() - kExpiryBytes);
}

Status failed(std::string_view what, const rocksdb::Status& status) {
  return Status::Unavailable("local store: {}: {}", what, status.ToString());
}

KvStoreMiss miss_of(const rocksdb::Status& status) {
  if (status.IsNotFound()) return KvStoreMiss::kNotStored;
  return status.IsCorruption() ? KvStoreMiss::kCorrupt : KvStoreMiss::kUnavailable;
}

}  // namespace

Status LocalStoreOptions::validate() const {
  if (directory.empty()) return Status::InvalidArgument("directory: must not be empty");
  if (capacity_bytes < (int64_t{1} << 20))
    return Status::OutOfRange("capacity_bytes: {}, must be at least 1 MiB", capacity_bytes);
  if (memtable_bytes < (int64_t{1} << 16))
    return Status::OutOfRange("memtable_bytes: {}, must be at least 64 KiB", memtable_bytes);
  return retention.validate();
}

struct LocalStore::Impl {
  KvPageShape shape;
  KvFingerprint fingerprint;
  LocalStoreOptions options;
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* headers = nullptr;
  rocksdb::ColumnFamilyHandle* rows = nullptr;
  std::mutex write_mutex;  ///< looking whether a page is there and storing it are one step
  std::atomic<int64_t> pages{0}, bytes{0}, expired{0}, evicted{0};

  ~Impl() {
    if (db == nullptr) return;
    for (rocksdb::ColumnFamilyHandle* family : {headers, rows}) {
      if (family != nullptr) (void)db->DestroyColumnFamilyHandle(family);
    }
    (void)db->Close();
  }

  rocksdb::Status open();
  Status count();
  /// Header and expiry of one stored page as the match sees it.
  KvStoreMiss check(const rocksdb::Status& status, const Slice& value, const PrefixKey& key, bool exact_only, double now,
                    PageHeader& header) const;
  void read_group(KvStoreRead& read, const rocksdb::Status& status, const Slice& value, double now) const;
  void remove(rocksdb::WriteBatch& batch, const PrefixKey& key, const Slice& value) const;
  Status commit(rocksdb::WriteBatch& batch);

  struct Candidate {
    double expiry = 0;
    PrefixKey key;
    CacheClass cache_class = CacheClass::kChat;
    int64_t bytes = 0;
    bool readable = true;
  };
  std::vector<Candidate> candidates(std::stop_token stop) const;
  int64_t record_size() const { return record_bytes(shape) + static_cast<int64_t>(kExpiryBytes); }
};

rocksdb::Status LocalStore::Impl::open() {
  rocksdb::DBOptions db_options;
  db_options.create_if_missing = true;
  db_options.create_missing_column_families = true;
  db_options.max_background_jobs = 2;
  db_options.max_total_wal_size = static_cast<uint64_t>(options.memtable_bytes) * 4;
  db_options.keep_log_file_num = 2;
  db_options.max_open_files = 512;
  db_options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;

  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{64} << 20);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::ColumnFamilyOptions header_options;
  header_options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::ColumnFamilyOptions row_options = header_options;
  for (rocksdb::ColumnFamilyOptions* family : {&header_options, &row_options}) {
    family->compression = rocksdb::kNoCompression;  // quantised rows do not shrink
    family->write_buffer_size = static_cast<size_t>(options.memtable_bytes);
  }
  row_options.enable_blob_files = true;
  row_options.min_blob_size = 1024;
  row_options.enable_blob_garbage_collection = true;
  row_options.blob_garbage_collection_age_cutoff = 1.0;
  row_options.blob_garbage_collection_force_threshold = 0.25;

  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(
      db_options, options.directory + "/db",
      {{rocksdb::kDefaultColumnFamilyName, {}}, {"headers", header_options}, {"rows", row_options}}, &handles, &opened);
  if (!status.ok()) return status;
  db.reset(opened);
  (void)db->DestroyColumnFamilyHandle(handles[0]);
  headers = handles[1];
  rows = handles[2];
  return status;
}

Result<std::unique_ptr<LocalStore>> LocalStore::Open(const KvPageShape& shape, const KvFingerprint& fingerprint,
                                                     const LocalStoreOptions& options) {
  DI_RETURN_IF_ERROR(options.validate());
  if (shape.group_bytes.empty() || shape.group_bytes.size() > kMaxKvGroups) {
    return Err(Status::OutOfRange("group_bytes: {} groups, must be from 1 to {}", shape.group_bytes.size(), kMaxKvGroups));
  }
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) return Err(Status::FailedPrecondition("local store {}: {}", options.directory, error.message()));
  const auto start = [&](std::unique_ptr<Impl>& impl) {
    impl = std::make_unique<Impl>();
    impl->shape = shape;
    impl->fingerprint = fingerprint;
    impl->options = options;
    rocksdb::Status status = impl->open();
    return status.ok() ? impl->count()
                       : Status(status.IsCorruption() ? StatusCode::kDataLoss : StatusCode::kFailedPrecondition,
                                fmt::format("local store {}: {}", options.directory, status.ToString()));
  };
  std::unique_ptr<Impl> impl;
  Status status = start(impl);
  if (status.code() == StatusCode::kDataLoss) {
    // What can't be read is worth nothing, but whoever wonders may look at it.
    impl.reset();
    const std::filesystem::path folder = options.directory;
    std::filesystem::remove_all(folder / "db.damaged", error);
    std::filesystem::rename(folder / "db", folder / "db.damaged", error);
    if (error) return Err(Status::FailedPrecondition("{}; cannot put it aside: {}", status.message(), error.message()));
    status = start(impl);
  }
  if (!status.ok()) return Err(std::move(status));
  return std::unique_ptr<LocalStore>(new LocalStore(std::move(impl)));
}

LocalStore::LocalStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalStore::~LocalStore() = default;

Status LocalStore::Impl::count() {
  int64_t found = 0;
  const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator({}, headers));
  for (at->SeekToFirst(); at->Valid(); at->Next()) ++found;
  if (at->status().IsCorruption()) return Status::DataLoss("local store {}: {}", options.directory, at->status().ToString());
  pages = found;
  bytes = found * record_size();
  return Status::Ok();
}

KvStoreMiss LocalStore::Impl::check(const rocksdb::Status& status, const Slice& value, const PrefixKey& key, bool exact_only,
                                    double now, PageHeader& header) const {
  if (!status.ok()) return miss_of(status);
  KvStoreMiss why = KvStoreMiss::kNone;
  Result<PageHeader> parsed = parse_header(as_bytes(header_of(value)), why);
  if (!parsed) return why;
  header = *std::move(parsed);
  if (const KvStoreMiss wrong = check_header(header, fingerprint, key, shape); wrong != KvStoreMiss::kNone) return wrong;
  if (expiry_of(value) <= now) return KvStoreMiss::kExpired;
  return exact_only && !header.exact ? KvStoreMiss::kInexact : KvStoreMiss::kNone;
}

KvStoreMatch LocalStore::match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) {
  constexpr size_t kBatch = 256;
  KvStoreMatch match;
  match.ttl_seconds = std::numeric_limits<double>::infinity();
  for (size_t begin = 0; begin < keys.size() && match.reason == KvStoreMiss::kNone; begin += kBatch) {
    if (stop.stop_requested()) {
      match.reason = KvStoreMiss::kCancelled;
      break;
    }
    const size_t count = std::min(kBatch, keys.size() - begin);
    std::vector<std::string> names(count);
    std::vector<Slice> slices(count);
    for (size_t i = 0; i < count; ++i) slices[i] = names[i] = key_bytes(keys[begin + i]);
    std::vector<rocksdb::PinnableSlice> values(count);
    std::vector<rocksdb::Status> statuses(count);
    impl_->db->MultiGet({}, impl_->headers, count, slices.data(), values.data(), statuses.data());
    for (size_t i = 0; i < count; ++i) {
      PageHeader header;
      match.reason = impl_->check(statuses[i], values[i], keys[begin + i], exact_only, now, header);
      if (match.reason != KvStoreMiss::kNone) break;
      ++match.pages;
      match.exact = match.exact && header.exact;
      match.ttl_seconds = std::min(match.ttl_seconds, expiry_of(values[i]) - now);
    }
  }
  if (match.pages == 0) match.ttl_seconds = 0;
  return match;
}

void LocalStore::Impl::read_group(KvStoreRead& read, const rocksdb::Status& status, const Slice& value, double now) const {
  const auto size = static_cast<size_t>(shape.group_bytes[static_cast<size_t>(read.group)]);
  DI_CHECK(read.into.size() == size, "{} bytes for a group of {}", read.into.size(), size);
  read.miss = miss_of(status);
  if (status.ok()) {
    read.miss = KvStoreMiss::kCorrupt;
    if (value.size() == size + kGroupChecksumBytes) {
      const std::span<const uint8_t> record = as_bytes(value);
      const auto right = [&](bool exact) {
        return group_is_right(record.first(size), record.subspan(size).first<kGroupChecksumBytes>(),
                              group_seed(fingerprint, read.key, exact, read.group));
      };
      if (right(true) || (!read.exact_only && right(false))) {
        std::memcpy(read.into.data(), record.data(), size);
        read.miss = KvStoreMiss::kNone;
        return;
      }
    }
  }
  if (read.miss != KvStoreMiss::kCorrupt) return;
  // The header may know why.
  rocksdb::PinnableSlice stored;
  const rocksdb::Status found = db->Get({}, headers, key_bytes(read.key), &stored);
  PageHeader header;
  const KvStoreMiss why = check(found, stored, read.key, read.exact_only, now, header);
  if (why != KvStoreMiss::kNone) read.miss = why;
}

void LocalStore::read(std::span<KvStoreRead> reads, double now, std::stop_token stop) {
  constexpr size_t kBatch = 32;
  for (size_t begin = 0; begin < reads.size(); begin += kBatch) {
    const std::span<KvStoreRead> batch = reads.subspan(begin, std::min(kBatch, reads.size() - begin));
    if (stop.stop_requested()) {
      for (KvStoreRead& read : batch) read.miss = KvStoreMiss::kCancelled;
      continue;
    }
    std::vector<std::string> names(batch.size());
    std::vector<Slice> slices(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) slices[i] = names[i] = group_key(batch[i].key, batch[i].group);
    std::vector<rocksdb::PinnableSlice> values(batch.size());
    std::vector<rocksdb::Status> statuses(batch.size());
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    impl_->db->MultiGet(options, impl_->rows, batch.size(), slices.data(), values.data(), statuses.data());
    for (size_t i = 0; i < batch.size(); ++i) impl_->read_group(batch[i], statuses[i], values[i], now);
  }
}

Status LocalStore::Impl::commit(rocksdb::WriteBatch& batch) {
  if (batch.Count() == 0) return Status::Ok();
  rocksdb::Status status = db->Write({}, &batch);
  // After an error such as a full disk the database refuses writes until it is told that things are better.
  if (!status.ok() && db->Resume().ok()) status = db->Write({}, &batch);
  return status.ok() ? Status::Ok() : failed("write", status);
}

Status LocalStore::write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) {
  if (impl_->bytes + static_cast<int64_t>(pages.size()) * impl_->record_size() > impl_->options.capacity_bytes) {
    DI_RETURN_IF_ERROR(collect_garbage(now, stop));
  }
  for (const KvStoreWrite& page : pages) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    DI_CHECK(static_cast<int64_t>(page.page.size()) == impl_->shape.page_bytes(), "a page of {} bytes", page.page.size());
    if (!impl_->options.retention.keeps(page.cache_class)) continue;
    const std::lock_guard lock(impl_->write_mutex);
    rocksdb::PinnableSlice stored;
    const rocksdb::Status found = impl_->db->Get({}, impl_->headers, key_bytes(page.key), &stored);
    PageHeader before;
    const KvStoreMiss why = impl_->check(found, stored, page.key, page.exact, -std::numeric_limits<double>::infinity(), before);
    rocksdb::WriteBatch batch;
    const double expiry = kv_expiry(impl_->options.retention, page.cache_class, now, expiry_of(stored));
    const bool there = why == KvStoreMiss::kNone;
    PageHeader header{.fingerprint = impl_->fingerprint,
                      .key = page.key,
                      .parent = page.parent,
                      .exact = page.exact,
                      .cache_class = page.cache_class,
                      .created = now,
                      .group_bytes = impl_->shape.group_bytes};
    if (there) {
      header = before;
      header.cache_class = std::max(before.cache_class, page.cache_class);
    }
    std::vector<uint8_t> bytes;
    append_header(header, bytes);
    batch.Put(impl_->headers, key_bytes(page.key), header_value(expiry, bytes));
    for (size_t group = 0; !there && group < impl_->shape.group_bytes.size(); ++group) {
      const auto index = static_cast<int64_t>(group);
      bytes.clear();
      append_group(page.page.subspan(static_cast<size_t>(impl_->shape.group_offset(index)),
                                     static_cast<size_t>(impl_->shape.group_bytes[group])),
                   group_seed(impl_->fingerprint, page.key, page.exact, index), bytes);
      batch.Put(impl_->rows, group_key(page.key, index), as_slice(bytes));
    }
    DI_RETURN_IF_ERROR(impl_->commit(batch));
    if (found.IsNotFound()) {
      ++impl_->pages;
      impl_->bytes += impl_->record_size();
    }
  }
  return Status::Ok();
}

Status LocalStore::touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) {
  const KvRetention& retention = impl_->options.retention;
  rocksdb::WriteBatch batch;
  const std::lock_guard lock(impl_->write_mutex);
  for (const PrefixKey& key : keys) {
    if (stop.stop_requested()) break;
    rocksdb::PinnableSlice stored;
    const rocksdb::Status found = impl_->db->Get({}, impl_->headers, key_bytes(key), &stored);
    PageHeader header;
    if (impl_->check(found, stored, key, false, -std::numeric_limits<double>::infinity(), header) != KvStoreMiss::kNone) continue;
    const CacheClass higher = std::max(header.cache_class, cache_class);
    const double expiry = kv_expiry(retention, higher, now, expiry_of(stored));
    if (higher == header.cache_class && !kv_expiry_is_stale(expiry_of(stored), expiry, retention.ttl(higher))) continue;
    header.cache_class = higher;
    std::vector<uint8_t> bytes;
    append_header(header, bytes);
    batch.Put(impl_->headers, key_bytes(key), header_value(expiry, bytes));
  }
  return impl_->commit(batch);
}

void LocalStore::Impl::remove(rocksdb::WriteBatch& batch, const PrefixKey& key, const Slice& value) const {
  KvStoreMiss why = KvStoreMiss::kNone;
  const Result<PageHeader> header = parse_header(as_bytes(header_of(value)), why);
  const size_t groups = header ? header->group_bytes.size() : shape.group_bytes.size();
  batch.Delete(headers, key_bytes(key));
  for (size_t group = 0; group < groups; ++group) batch.Delete(rows, group_key(key, static_cast<int64_t>(group)));
}

Status LocalStore::erase(std::span<const PrefixKey> keys, std::stop_token stop) {
  const std::lock_guard lock(impl_->write_mutex);
  for (const PrefixKey& key : keys) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    rocksdb::PinnableSlice stored;
    const rocksdb::Status found = impl_->db->Get({}, impl_->headers, key_bytes(key), &stored);
    if (found.IsNotFound()) continue;
    rocksdb::WriteBatch batch;
    impl_->remove(batch, key, stored);
    DI_RETURN_IF_ERROR(impl_->commit(batch));
    --impl_->pages;
    impl_->bytes -= impl_->record_size();
  }
  return Status::Ok();
}

std::vector<LocalStore::Impl::Candidate> LocalStore::Impl::candidates(std::stop_token stop) const {
  std::vector<Candidate> all;
  const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator({}, headers));
  for (at->SeekToFirst(); at->Valid() && !stop.stop_requested(); at->Next()) {
    if (at->key().size() != kKeyBytes) continue;
    KvStoreMiss why = KvStoreMiss::kNone;
    const Result<PageHeader> header = parse_header(as_bytes(header_of(at->value())), why);
    all.push_back({.expiry = expiry_of(at->value()),
                   .key = key_of(at->key()),
                   .cache_class = header ? header->cache_class : CacheClass::kChat,
                   .bytes = record_size(),
                   .readable = header.has_value()});
  }
  return all;
}

Status LocalStore::collect_garbage(double now, std::stop_token stop) {
  // Somewhat below the limit, or the next page would call for it again.
  constexpr double kFill = 0.9;
  std::vector<Impl::Candidate> all = impl_->candidates(stop);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.expiry < b.expiry; });
  std::array<int64_t, kCacheClassCount> used{};
  int64_t total = 0;
  for (const Impl::Candidate& page : all) {
    used[static_cast<size_t>(page.cache_class)] += page.bytes;
    total += page.bytes;
  }
  const auto capacity = static_cast<double>(impl_->options.capacity_bytes) * kFill;
  std::vector<PrefixKey> doomed;
  for (const Impl::Candidate& page : all) {
    int64_t& of_class = used[static_cast<size_t>(page.cache_class)];
    const double limit = capacity * impl_->options.retention.max_fraction[static_cast<size_t>(page.cache_class)];
    const bool over = page.expiry <= now || !page.readable;
    if (!over && static_cast<double>(total) <= capacity && static_cast<double>(of_class) <= limit) continue;
    of_class -= page.bytes;
    total -= page.bytes;
    ++(over ? impl_->expired : impl_->evicted);
    doomed.push_back(page.key);
  }
  return erase(doomed, stop);
}

int64_t LocalStore::pages() const { return impl_->pages; }

LocalStoreStats LocalStore::stats() const {
  LocalStoreStats stats{.pages = impl_->pages, .bytes = impl_->bytes, .expired = impl_->expired, .evicted = impl_->evicted};
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(impl_->options.directory + "/db", error)) {
    const uintmax_t size = file.file_size(error);
    if (!error) stats.file_bytes += static_cast<int64_t>(size);
  }
  return stats;
}

Status LocalStore::visit(const Visitor& visitor) const {
  const std::unique_ptr<rocksdb::Iterator> at(impl_->db->NewIterator({}, impl_->headers));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    if (at->key().size() != kKeyBytes) continue;
    const PrefixKey key = key_of(at->key());
    const std::span<const uint8_t> header_text = as_bytes(header_of(at->value()));
    std::vector<uint8_t> record(header_text.begin(), header_text.end());
    KvStoreMiss why = KvStoreMiss::kNone;
    const Result<PageHeader> header = parse_header(header_text, why);
    for (size_t group = 0; header && group < header->group_bytes.size(); ++group) {
      rocksdb::PinnableSlice value;
      if (!impl_->db->Get({}, impl_->rows, group_key(key, static_cast<int64_t>(group)), &value).ok()) break;
      record.insert(record.end(), as_bytes(value).begin(), as_bytes(value).end());
    }
    DI_RETURN_IF_ERROR(visitor(key, record, expiry_of(at->value())));
  }
  return at->status().ok() ? Status::Ok() : failed("walk", at->status());
}

}  // namespace deepinfer
