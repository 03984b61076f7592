#include "cache/tiers/local_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>

#include "cache/tiers/local_database.h"
#include "cache/tiers/local_index.h"

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
  LocalIndex index;        ///< says what the headers in the database say
  std::atomic<int64_t> pages{0}, bytes{0}, expired{0}, evicted{0};

  Status open();
  void note(const PrefixKey& key, const LocalIndex::Entry& entry);
  void read_group(KvStoreRead& read, const rocksdb::Status& status, const Slice& value);
  /// What is wrong with a page of which a group is wrong.
  KvStoreMiss explain(const KvStoreRead& read) const;
  Status write_page(const KvStoreWrite& page, double now);
  /// Gives a page that is there its time anew, in `batch` and in `entry`; false: it isn't worth a write.
  Result<bool> touch_page(const PrefixKey& key, LocalIndex::Entry& entry, CacheClass cache_class, double now,
                          rocksdb::WriteBatch& batch) const;
};

Status LocalStore::Impl::open() {
  DI_ASSIGN_OR_RETURN(database, LocalDatabase::Open(options.directory, options.memtable_bytes, false));
  return database->for_each(
      [this](const LocalPage& page) {
        LocalIndex::Entry entry{.expiry = page.expiry, .bytes = page.bytes(), .cache_class = page.cache_class()};
        entry.unusable = page.header ? check_header(*page.header, fingerprint, page.key, shape) : KvStoreMiss::kCorrupt;
        entry.exact = page.header && page.header->exact;
        note(page.key, entry);
        return Status::Ok();
      },
      {});
}

void LocalStore::Impl::note(const PrefixKey& key, const LocalIndex::Entry& entry) {
  const std::optional<LocalIndex::Entry> before = index.put(key, entry);
  bytes += entry.bytes - (before ? before->bytes : 0);
  if (!before) ++pages;
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

KvStoreMatch LocalStore::match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) {
  if (stop.stop_requested()) return {.pages = 0, .exact = true, .reason = KvStoreMiss::kCancelled, .ttl_seconds = 0};
  return impl_->index.match(keys, exact_only, now);
}

void LocalStore::Impl::read_group(KvStoreRead& read, const rocksdb::Status& status, const Slice& value) {
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
  read.miss = explain(read);
  if (read.miss == KvStoreMiss::kCorrupt) index.mark_damaged(read.key);
}

KvStoreMiss LocalStore::Impl::explain(const KvStoreRead& read) const {
  rocksdb::PinnableSlice stored;
  const rocksdb::Status found = database->db().Get({}, database->headers(), local_key(read.key), &stored);
  if (!found.ok()) return miss_of(found);
  KvStoreMiss why = KvStoreMiss::kNone;
  const Result<PageHeader> header = parse_header(local_header(stored), why);
  if (!header) return why;
  why = check_header(*header, fingerprint, read.key, shape);
  if (why == KvStoreMiss::kNone && read.exact_only && !header->exact) return KvStoreMiss::kInexact;
  return why == KvStoreMiss::kNone ? KvStoreMiss::kCorrupt : why;
}

void LocalStore::read(std::span<KvStoreRead> reads, double, std::stop_token stop) {
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
    // Ours are checked instead, three times as fast as Debian's RocksDB does it.
    options.verify_checksums = false;
    impl_->database->db().MultiGet(options, impl_->database->rows(), batch.size(), slices.data(), values.data(), statuses.data());
    for (size_t i = 0; i < batch.size(); ++i) impl_->read_group(batch[i], statuses[i], values[i]);
  }
}

Status LocalStore::write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) {
  if (impl_->bytes + static_cast<int64_t>(pages.size()) * local_page_bytes(impl_->shape.group_bytes) >
      impl_->options.capacity_bytes) {
    DI_RETURN_IF_ERROR(collect_garbage(now, stop));
  }
  for (const KvStoreWrite& page : pages) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    DI_CHECK(static_cast<int64_t>(page.page.size()) == impl_->shape.page_bytes(), "a page of {} bytes", page.page.size());
    if (!impl_->options.retention.keeps(page.cache_class)) continue;
    DI_RETURN_IF_ERROR(impl_->write_page(page, now));
  }
  return Status::Ok();
}

Status LocalStore::Impl::write_page(const KvStoreWrite& page, double now) {
  const std::lock_guard lock(write_mutex);
  rocksdb::WriteBatch batch;
  std::optional<LocalIndex::Entry> entry = index.find(page.key);
  if (entry && entry->unusable == KvStoreMiss::kNone && (entry->exact || !page.exact)) {
    DI_ASSIGN_OR_RETURN(const bool touched, touch_page(page.key, *entry, page.cache_class, now, batch));
    if (!touched) return Status::Ok();
  } else {
    entry = {.expiry = kv_expiry(options.retention, page.cache_class, now, 0),
             .bytes = local_page_bytes(shape.group_bytes),
             .exact = page.exact,
             .cache_class = page.cache_class};
    std::vector<uint8_t> text;
    append_header(header_of(page, fingerprint, shape, now), text);
    batch.Put(database->headers(), local_key(page.key), local_header_value(entry->expiry, text));
    for (size_t group = 0; group < shape.group_bytes.size(); ++group) {
      const auto number = static_cast<int64_t>(group);
      text.clear();
      append_group(
          page.page.subspan(static_cast<size_t>(shape.group_offset(number)), static_cast<size_t>(shape.group_bytes[group])),
          group_seed(fingerprint, page.key, page.exact, number), text);
      batch.Put(database->rows(), local_group_key(page.key, number), as_slice(text));
    }
  }
  DI_RETURN_IF_ERROR(database->commit(batch));
  note(page.key, *entry);
  return Status::Ok();
}

Result<bool> LocalStore::Impl::touch_page(const PrefixKey& key, LocalIndex::Entry& entry, CacheClass cache_class, double now,
                                          rocksdb::WriteBatch& batch) const {
  const CacheClass higher = std::max(entry.cache_class, cache_class);
  const double expiry = kv_expiry(options.retention, higher, now, entry.expiry);
  if (higher == entry.cache_class && !kv_expiry_is_stale(entry.expiry, expiry, options.retention.ttl(higher))) return false;
  rocksdb::PinnableSlice stored;
  const rocksdb::Status found = database->db().Get({}, database->headers(), local_key(key), &stored);
  KvStoreMiss why = KvStoreMiss::kNone;
  Result<PageHeader> header = found.ok() ? parse_header(local_header(stored), why) : Err(database->failed("read", found));
  if (!header) return Err(std::move(header).error());
  header->cache_class = entry.cache_class = higher;
  entry.expiry = expiry;
  std::vector<uint8_t> text;
  append_header(*header, text);
  batch.Put(database->headers(), local_key(key), local_header_value(expiry, text));
  return true;
}

Status LocalStore::touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) {
  rocksdb::WriteBatch batch;
  std::vector<std::pair<PrefixKey, LocalIndex::Entry>> touched;
  const std::lock_guard lock(impl_->write_mutex);
  for (const PrefixKey& key : keys) {
    if (stop.stop_requested()) break;
    std::optional<LocalIndex::Entry> entry = impl_->index.find(key);
    if (!entry || entry->unusable != KvStoreMiss::kNone) continue;
    const Result<bool> worth = impl_->touch_page(key, *entry, cache_class, now, batch);
    if (worth && *worth) touched.emplace_back(key, *entry);
  }
  DI_RETURN_IF_ERROR(impl_->database->commit(batch));
  for (const auto& [key, entry] : touched) impl_->note(key, entry);
  return Status::Ok();
}

Status LocalStore::erase(std::span<const PrefixKey> keys, std::stop_token stop) {
  const std::lock_guard lock(impl_->write_mutex);
  for (const PrefixKey& key : keys) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    rocksdb::PinnableSlice stored;
    const rocksdb::Status found = impl_->database->db().Get({}, impl_->database->headers(), local_key(key), &stored);
    if (found.ok()) DI_RETURN_IF_ERROR(impl_->database->remove(impl_->database->page(key, stored)));
    const std::optional<LocalIndex::Entry> entry = impl_->index.take(key);
    if (!entry) continue;
    --impl_->pages;
    impl_->bytes -= entry->bytes;
  }
  return Status::Ok();
}

Status LocalStore::collect_garbage(double now, std::stop_token stop) {
  const LocalStoreOptions& options = impl_->options;
  DI_ASSIGN_OR_RETURN(const LocalGarbage garbage,
                      find_local_garbage(*impl_->database, options.capacity_bytes, options.retention, now, stop));
  impl_->expired += garbage.counts.expired.pages;
  impl_->evicted += garbage.counts.evicted.pages;
  return erase(garbage.keys, std::move(stop));
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
