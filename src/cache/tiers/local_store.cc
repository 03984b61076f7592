#include "cache/tiers/local_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <limits>
#include <mutex>

#include "cache/tiers/local_database.h"
#include "cache/tiers/suspect_pages.h"

namespace deepinfer {
namespace {

using rocksdb::Slice;

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
  std::unique_ptr<LocalDatabase> database;
  std::mutex write_mutex;  ///< looking whether a page is there and storing it are one step
  std::atomic<int64_t> pages{0}, bytes{0}, expired{0}, evicted{0};
  SuspectPages suspects;

  Status open();
  /// Header and expiry of one stored page as the match sees it.
  KvStoreMiss check(const rocksdb::Status& status, const Slice& value, const PrefixKey& key, bool exact_only, double now,
                    PageHeader& header) const;
  void read_group(KvStoreRead& read, const rocksdb::Status& status, const Slice& value, double now);
  int64_t page_bytes() const { return local_page_bytes(shape.group_bytes); }
};

Status LocalStore::Impl::open() {
  DI_ASSIGN_OR_RETURN(database, LocalDatabase::Open(options.directory, options.memtable_bytes, false));
  return database->for_each(
      [this](const LocalPage& page) {
        ++pages;
        bytes += page.bytes();
        return Status::Ok();
      },
      {});
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
    return impl->open();
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

KvStoreMiss LocalStore::Impl::check(const rocksdb::Status& status, const Slice& value, const PrefixKey& key, bool exact_only,
                                    double now, PageHeader& header) const {
  if (!status.ok()) return miss_of(status);
  KvStoreMiss why = KvStoreMiss::kNone;
  Result<PageHeader> parsed = parse_header(local_header(value), why);
  if (!parsed) return why;
  header = *std::move(parsed);
  if (const KvStoreMiss wrong = check_header(header, fingerprint, key, shape); wrong != KvStoreMiss::kNone) return wrong;
  if (suspects.contains(key)) return KvStoreMiss::kCorrupt;
  if (local_expiry(value) <= now) return KvStoreMiss::kExpired;
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
    for (size_t i = 0; i < count; ++i) slices[i] = names[i] = local_key(keys[begin + i]);
    std::vector<rocksdb::PinnableSlice> values(count);
    std::vector<rocksdb::Status> statuses(count);
    impl_->database->db().MultiGet({}, impl_->database->headers(), count, slices.data(), values.data(), statuses.data());
    for (size_t i = 0; i < count; ++i) {
      PageHeader header;
      match.reason = impl_->check(statuses[i], values[i], keys[begin + i], exact_only, now, header);
      if (match.reason != KvStoreMiss::kNone) break;
      ++match.pages;
      match.exact = match.exact && header.exact;
      match.ttl_seconds = std::min(match.ttl_seconds, local_expiry(values[i]) - now);
    }
  }
  if (match.pages == 0) match.ttl_seconds = 0;
  return match;
}

void LocalStore::Impl::read_group(KvStoreRead& read, const rocksdb::Status& status, const Slice& value, double now) {
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
  const rocksdb::Status found = database->db().Get({}, database->headers(), local_key(read.key), &stored);
  PageHeader header;
  const KvStoreMiss why = check(found, stored, read.key, read.exact_only, now, header);
  if (why != KvStoreMiss::kNone) read.miss = why;
  if (read.miss == KvStoreMiss::kCorrupt) suspects.add(read.key);
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
    for (size_t i = 0; i < batch.size(); ++i) slices[i] = names[i] = local_group_key(batch[i].key, batch[i].group);
    std::vector<rocksdb::PinnableSlice> values(batch.size());
    std::vector<rocksdb::Status> statuses(batch.size());
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    impl_->database->db().MultiGet(options, impl_->database->rows(), batch.size(), slices.data(), values.data(), statuses.data());
    for (size_t i = 0; i < batch.size(); ++i) impl_->read_group(batch[i], statuses[i], values[i], now);
  }
}

Status LocalStore::write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) {
  if (impl_->bytes + static_cast<int64_t>(pages.size()) * impl_->page_bytes() > impl_->options.capacity_bytes) {
    DI_RETURN_IF_ERROR(collect_garbage(now, stop));
  }
  for (const KvStoreWrite& page : pages) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    DI_CHECK(static_cast<int64_t>(page.page.size()) == impl_->shape.page_bytes(), "a page of {} bytes", page.page.size());
    if (!impl_->options.retention.keeps(page.cache_class)) continue;
    const std::lock_guard lock(impl_->write_mutex);
    rocksdb::PinnableSlice stored;
    const rocksdb::Status found = impl_->database->db().Get({}, impl_->database->headers(), local_key(page.key), &stored);
    PageHeader before;
    const KvStoreMiss why = impl_->check(found, stored, page.key, page.exact, -std::numeric_limits<double>::infinity(), before);
    rocksdb::WriteBatch batch;
    const double expiry = kv_expiry(impl_->options.retention, page.cache_class, now, local_expiry(stored));
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
    batch.Put(impl_->database->headers(), local_key(page.key), local_header_value(expiry, bytes));
    for (size_t group = 0; !there && group < impl_->shape.group_bytes.size(); ++group) {
      const auto index = static_cast<int64_t>(group);
      bytes.clear();
      append_group(page.page.subspan(static_cast<size_t>(impl_->shape.group_offset(index)),
                                     static_cast<size_t>(impl_->shape.group_bytes[group])),
                   group_seed(impl_->fingerprint, page.key, page.exact, index), bytes);
      batch.Put(impl_->database->rows(), local_group_key(page.key, index), as_slice(bytes));
    }
    const int64_t bytes_before = found.ok() ? impl_->database->page(page.key, stored).bytes() : 0;
    DI_RETURN_IF_ERROR(impl_->database->commit(batch));
    if (!found.ok()) ++impl_->pages;
    impl_->bytes += impl_->page_bytes() - bytes_before;
    impl_->suspects.remove(page.key);
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
    const rocksdb::Status found = impl_->database->db().Get({}, impl_->database->headers(), local_key(key), &stored);
    PageHeader header;
    if (impl_->check(found, stored, key, false, -std::numeric_limits<double>::infinity(), header) != KvStoreMiss::kNone) continue;
    const CacheClass higher = std::max(header.cache_class, cache_class);
    const double expiry = kv_expiry(retention, higher, now, local_expiry(stored));
    if (higher == header.cache_class && !kv_expiry_is_stale(local_expiry(stored), expiry, retention.ttl(higher))) continue;
    header.cache_class = higher;
    std::vector<uint8_t> bytes;
    append_header(header, bytes);
    batch.Put(impl_->database->headers(), local_key(key), local_header_value(expiry, bytes));
  }
  return impl_->database->commit(batch);
}

Status LocalStore::erase(std::span<const PrefixKey> keys, std::stop_token stop) {
  const std::lock_guard lock(impl_->write_mutex);
  for (const PrefixKey& key : keys) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    rocksdb::PinnableSlice stored;
    const rocksdb::Status found = impl_->database->db().Get({}, impl_->database->headers(), local_key(key), &stored);
    if (found.IsNotFound()) continue;
    const LocalPage page = impl_->database->page(key, stored);
    DI_RETURN_IF_ERROR(impl_->database->remove(page));
    --impl_->pages;
    impl_->bytes -= page.bytes();
  }
  return Status::Ok();
}

Status LocalStore::collect_garbage(double now, std::stop_token stop) {
  const LocalStoreOptions& options = impl_->options;
  DI_ASSIGN_OR_RETURN(const LocalGarbage garbage,
                      find_local_garbage(*impl_->database, options.capacity_bytes, options.retention, now, stop));
  impl_->expired += garbage.counts.expired.pages;
  impl_->evicted += garbage.counts.evicted.pages;
  return erase(garbage.keys, stop);
}

int64_t LocalStore::pages() const { return impl_->pages; }

LocalStoreStats LocalStore::stats() const {
  return {.pages = impl_->pages,
          .bytes = impl_->bytes,
          .file_bytes = impl_->database->file_bytes(),
          .expired = impl_->expired,
          .evicted = impl_->evicted};
}

Status LocalStore::visit(const Visitor& visitor) const {
  return impl_->database->for_each(
      [&](const LocalPage& page) { return visitor(page.key, impl_->database->record(page), page.expiry); }, {});
}

}  // namespace deepinfer
