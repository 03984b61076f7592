#include "cache/tiers/local_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>

#include "cache/tiers/local_database.h"
#include "cache/tiers/local_index.h"

namespace deepinfer {
namespace {

/// How large a file of rows gets: small enough for what is left of a file not to matter, and few enough to have them all open.
int64_t row_file_bytes(int64_t capacity_bytes) { return std::clamp(capacity_bytes / 64, int64_t{256} << 10, int64_t{256} << 20); }

/// Seconds between two collections in a store that is not full: expired pages stay a quarter of their time longer, a minute or an
/// hour if that is shorter or longer.
double collection_interval(const KvRetention& retention) {
  double shortest = 3600 * 4;
  for (const double ttl : retention.ttl_seconds) {
    if (ttl > 0) shortest = std::min(shortest, ttl);
  }
  return std::max(shortest / 4, 60.0);
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
  std::unique_ptr<LocalDatabase> database;  ///< null: it was closed and could not be opened again yet
  std::mutex write_mutex;                   ///< looking whether a page is there and storing it are one step
  LocalIndex index;                         ///< says what the headers in the database say
  std::atomic<int64_t> pages{0}, bytes{0}, expired{0}, evicted{0}, moved{0};

  double collect_at = 0;  ///< by the times that writes come with
  std::chrono::steady_clock::time_point reopen_at{};

  /// Opens the database, anew if it was open. One that can't be used is put aside or removed.
  Status open();
  Status read_headers();
  bool usable() const { return database != nullptr; }
  Status closed() const { return Status::Unavailable("local store {}: closed, its disk was away", options.directory); }
  Status write(std::span<const KvStoreWrite> pages, double now, const std::stop_token& stop);
  Status erase(std::span<const PrefixKey> keys, const std::stop_token& stop);
  Status collect_garbage(double now, const std::stop_token& stop);
  void note(const PrefixKey& key, const LocalIndex::Entry& entry);
  /// Where the page lies, or why it is of no use to this read, in `read.miss`.
  std::optional<LocalIndex::Entry> find(KvStoreRead& read) const;
  /// Reads of one group of pages that follow each other in a batch.
  void read_run(std::span<KvStoreRead> reads, std::span<const LocalIndex::Entry> entries);
  void read_alone(KvStoreRead& read);
  void check(KvStoreRead& read, const LocalIndex::Entry& entry, uint64_t checksum);
  /// With the mutex held: pages of one call, each either touched or stored.
  Status write_pages(std::span<const KvStoreWrite> writes, double now);
  Status store_pages(std::span<const KvStoreWrite* const> writes, double now, rocksdb::WriteBatch& batch);
  /// Gives a page that is there its time anew, in `batch` and in `entry`; false: it isn't worth a write.
  Result<bool> touch_page(const PrefixKey& key, LocalIndex::Entry& entry, CacheClass cache_class, double now,
                          rocksdb::WriteBatch& batch) const;
};

Status LocalStore::Impl::open() {
  const std::filesystem::path folder = options.directory;
  std::error_code error;
  Status status = read_headers();
  if (status.code() == StatusCode::kUnimplemented) {
    database.reset();
    std::filesystem::remove_all(folder / "db", error);
    if (error) return Status::FailedPrecondition("{}; cannot remove it: {}", status.message(), error.message());
    status = read_headers();
  }
  if (status.code() == StatusCode::kDataLoss) {
    // What can't be read is worth nothing, but whoever wonders may look at it.
    database.reset();
    std::filesystem::remove_all(folder / "db.damaged", error);
    std::filesystem::rename(folder / "db", folder / "db.damaged", error);
    if (error) return Status::FailedPrecondition("{}; cannot put it aside: {}", status.message(), error.message());
    status = read_headers();
  }
  if (!status.ok()) database.reset();
  return status;
}

Status LocalStore::Impl::read_headers() {
  database.reset();  // before it is opened again: one at a time may have it
  index.clear();
  pages = bytes = 0;
  DI_ASSIGN_OR_RETURN(database,
                      LocalDatabase::Open(options.directory, {.memtable_bytes = options.memtable_bytes,
                                                              .row_file_bytes = row_file_bytes(options.capacity_bytes)}));
  return database->for_each(
      [this](const LocalPage& page) {
        LocalIndex::Entry entry{
            .expiry = page.expiry, .bytes = page.bytes(), .place = page.place, .cache_class = page.cache_class()};
        entry.unusable = page.header ? check_header(*page.header, fingerprint, page.key, shape) : page.unreadable;
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
  auto impl = std::make_unique<Impl>();
  impl->shape = shape;
  impl->fingerprint = fingerprint;
  impl->options = options;
  DI_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<LocalStore>(new LocalStore(std::move(impl)));
}

LocalStore::LocalStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalStore::~LocalStore() = default;

bool LocalStore::reopen() {
  constexpr std::chrono::seconds kInterval{1};
  const std::lock_guard lock(open_mutex_);
  if (impl_->usable() && !impl_->database->stuck()) return true;  // somebody else has
  const auto now = std::chrono::steady_clock::now();
  if (now < impl_->reopen_at) return false;
  impl_->reopen_at = now + kInterval;
  // What can still be read is kept until there is hope.
  return LocalDatabase::can_be_written(impl_->options.directory) && impl_->open().ok();
}

KvStoreMatch LocalStore::match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) {
  if (stop.stop_requested()) return {.pages = 0, .exact = true, .reason = KvStoreMiss::kCancelled, .ttl_seconds = 0};
  const std::shared_lock lock(open_mutex_);
  if (!impl_->usable()) return {.pages = 0, .exact = true, .reason = KvStoreMiss::kUnavailable, .ttl_seconds = 0};
  return impl_->index.match(keys, exact_only, now);
}

std::optional<LocalIndex::Entry> LocalStore::Impl::find(KvStoreRead& read) const {
  const auto size = static_cast<size_t>(shape.group_bytes[static_cast<size_t>(read.group)]);
  DI_CHECK(read.into.size() == size, "{} bytes for a group of {}", read.into.size(), size);
  std::optional<LocalIndex::Entry> entry = index.find(read.key);
  read.miss = entry ? entry->unusable : KvStoreMiss::kNotStored;
  if (read.miss == KvStoreMiss::kNone && read.exact_only && !entry->exact) read.miss = KvStoreMiss::kInexact;
  return read.miss == KvStoreMiss::kNone ? entry : std::nullopt;
}

void LocalStore::Impl::check(KvStoreRead& read, const LocalIndex::Entry& entry, uint64_t checksum) {
  if (checksum == group_checksum(read.into, group_seed(fingerprint, read.key, entry.exact, read.group))) return;
  read.miss = KvStoreMiss::kCorrupt;
  index.mark_damaged(read.key, entry.place);
}

void LocalStore::Impl::read_run(std::span<KvStoreRead> reads, std::span<const LocalIndex::Entry> entries) {
  std::vector<RowRead> rows;
  for (const KvStoreRead& read : reads) rows.push_back({.into = read.into});
  if (database->rows().read(shape, entries.front().place, reads.front().group, rows).ok()) {
    for (size_t i = 0; i < reads.size(); ++i) check(reads[i], entries[i], rows[i].checksum);
    return;
  }
  for (KvStoreRead& read : reads) read_alone(read);
}

void LocalStore::Impl::read_alone(KvStoreRead& read) {
  std::optional<RowPlace> before;
  for (;;) {
    const std::optional<LocalIndex::Entry> entry = find(read);
    if (!entry) return;
    RowRead rows{.into = read.into};
    const Status status = database->rows().read(shape, entry->place, read.group, {&rows, 1});
    if (status.ok()) return check(read, *entry, rows.checksum);
    read.miss = KvStoreMiss::kUnavailable;
    if (status.code() != StatusCode::kDataLoss) return;
    // It may have been moved, or written anew, since it was looked up.
    if (before == entry->place) {
      read.miss = KvStoreMiss::kCorrupt;
      return index.mark_damaged(read.key, entry->place);
    }
    before = entry->place;
  }
}

void LocalStore::read(std::span<KvStoreRead> reads, double, std::stop_token stop) {
  constexpr size_t kPagesAtOnce = 64;
  const std::shared_lock lock(open_mutex_);
  if (!impl_->usable()) {
    for (KvStoreRead& read : reads) read.miss = KvStoreMiss::kUnavailable;
    return;
  }
  std::vector<LocalIndex::Entry> entries;
  for (size_t begin = 0, end = 0; begin < reads.size(); begin = end) {
    end = begin + 1;
    if (stop.stop_requested()) {
      reads[begin].miss = KvStoreMiss::kCancelled;
      continue;
    }
    const std::optional<LocalIndex::Entry> first = impl_->find(reads[begin]);
    if (!first) continue;
    entries.assign(1, *first);
    for (; end < reads.size() && reads[end].group == reads[begin].group && entries.size() < kPagesAtOnce; ++end) {
      const std::optional<LocalIndex::Entry> next = impl_->find(reads[end]);
      if (!next || !next->place.follows(entries.back().place)) break;
      entries.push_back(*next);
    }
    impl_->read_run(reads.subspan(begin, end - begin), entries);
  }
}

Status LocalStore::write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) {
  const auto attempt = [&](bool& stuck) {
    const std::shared_lock lock(open_mutex_);
    const Status status = impl_->usable() ? impl_->write(pages, now, stop) : impl_->closed();
    stuck = !status.ok() && (!impl_->usable() || impl_->database->stuck());
    return status;
  };
  bool stuck = false;
  const Status status = attempt(stuck);
  return stuck && reopen() ? attempt(stuck) : status;
}

Status LocalStore::Impl::write(std::span<const KvStoreWrite> writes, double now, const std::stop_token& stop) {
  const int64_t most = bytes + static_cast<int64_t>(writes.size()) * local_page_bytes(shape.group_bytes);
  const double interval = collection_interval(options.retention);
  bool due = false;
  {
    const std::lock_guard lock(write_mutex);
    // The first write of all, and one of a clock that was set back, only begin to wait.
    if (collect_at == 0 || collect_at > now + interval) collect_at = now + interval;
    due = now >= collect_at;
    if (due) collect_at = now + interval;
  }
  if (due || most > options.capacity_bytes) DI_RETURN_IF_ERROR(collect_garbage(now, stop));
  constexpr size_t kPagesAtOnce = 64;
  for (size_t begin = 0; begin < writes.size(); begin += kPagesAtOnce) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    const std::lock_guard lock(write_mutex);
    DI_RETURN_IF_ERROR(write_pages(writes.subspan(begin, std::min(kPagesAtOnce, writes.size() - begin)), now));
  }
  return Status::Ok();
}

Status LocalStore::Impl::write_pages(std::span<const KvStoreWrite> writes, double now) {
  rocksdb::WriteBatch batch;
  std::vector<std::pair<PrefixKey, LocalIndex::Entry>> touched;
  std::vector<const KvStoreWrite*> fresh;
  for (const KvStoreWrite& page : writes) {
    DI_CHECK(static_cast<int64_t>(page.page.size()) == shape.page_bytes(), "a page of {} bytes", page.page.size());
    if (!options.retention.keeps(page.cache_class)) continue;
    std::optional<LocalIndex::Entry> entry = index.find(page.key);
    if (entry && entry->unusable == KvStoreMiss::kNone && (entry->exact || !page.exact)) {
      DI_ASSIGN_OR_RETURN(const bool worth, touch_page(page.key, *entry, page.cache_class, now, batch));
      if (worth) touched.emplace_back(page.key, *entry);
      continue;
    }
    const auto twice =
        std::find_if(fresh.begin(), fresh.end(), [&](const KvStoreWrite* other) { return other->key == page.key; });
    if (twice == fresh.end()) {
      fresh.push_back(&page);
    } else if (page.exact) {
      *twice = &page;
    }
  }
  DI_RETURN_IF_ERROR(store_pages(fresh, now, batch));
  for (const auto& [key, entry] : touched) note(key, entry);
  return Status::Ok();
}

Status LocalStore::Impl::store_pages(std::span<const KvStoreWrite* const> writes, double now, rocksdb::WriteBatch& batch) {
  std::vector<RowPage> rows;
  for (const KvStoreWrite* page : writes) {
    RowPage& row = rows.emplace_back(RowPage{.page = page->page, .checksums = {}});
    for (size_t group = 0; group < shape.group_bytes.size(); ++group) {
      const auto number = static_cast<int64_t>(group);
      const auto part =
          page->page.subspan(static_cast<size_t>(shape.group_offset(number)), static_cast<size_t>(shape.group_bytes[group]));
      row.checksums.push_back(group_checksum(part, group_seed(fingerprint, page->key, page->exact, number)));
    }
  }
  // Rows first: a header whose rows are missing would promise what isn't there.
  DI_ASSIGN_OR_RETURN(const std::vector<RowPlace> places, database->rows().append(shape, rows));
  std::vector<LocalIndex::Entry> entries;
  for (size_t i = 0; i < writes.size(); ++i) {
    const KvStoreWrite& page = *writes[i];
    const LocalIndex::Entry& entry =
        entries.emplace_back(LocalIndex::Entry{.expiry = kv_expiry(options.retention, page.cache_class, now, 0),
                                               .bytes = local_page_bytes(shape.group_bytes),
                                               .place = places[i],
                                               .exact = page.exact,
                                               .cache_class = page.cache_class});
    std::vector<uint8_t> header;
    append_header(header_of(page, fingerprint, shape, now), header);
    batch.Put(database->pages(), local_key(page.key), local_page_value(entry.expiry, entry.place, header));
  }
  DI_RETURN_IF_ERROR(database->commit(batch));
  for (size_t i = 0; i < writes.size(); ++i) {
    database->rows().hold(entries[i].place, entries[i].bytes);
    const std::optional<LocalIndex::Entry> before = index.find(writes[i]->key);
    note(writes[i]->key, entries[i]);
    if (before) database->rows().release(before->place, before->bytes);
  }
  return Status::Ok();
}

Result<bool> LocalStore::Impl::touch_page(const PrefixKey& key, LocalIndex::Entry& entry, CacheClass cache_class, double now,
                                          rocksdb::WriteBatch& batch) const {
  const CacheClass higher = std::max(entry.cache_class, cache_class);
  const double expiry = kv_expiry(options.retention, higher, now, entry.expiry);
  if (higher == entry.cache_class && !kv_expiry_is_stale(entry.expiry, expiry, options.retention.ttl(higher))) return false;
  rocksdb::PinnableSlice stored;
  const rocksdb::Status found = database->db().Get({}, database->pages(), local_key(key), &stored);
  if (!found.ok()) return Err(database->failed("read", found));
  LocalPage page = LocalDatabase::page(key, stored);
  if (!page.header) return Err(Status::DataLoss("local store {}: the header of a page is damaged", database->directory()));
  page.header->cache_class = entry.cache_class = higher;
  entry.expiry = expiry;
  std::vector<uint8_t> header;
  append_header(*page.header, header);
  batch.Put(database->pages(), local_key(key), local_page_value(expiry, page.place, header));
  return true;
}

Status LocalStore::touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) {
  rocksdb::WriteBatch batch;
  std::vector<std::pair<PrefixKey, LocalIndex::Entry>> touched;
  const std::shared_lock open(open_mutex_);
  if (!impl_->usable()) return impl_->closed();
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
  const std::shared_lock lock(open_mutex_);
  return impl_->usable() ? impl_->erase(keys, stop) : impl_->closed();
}

Status LocalStore::Impl::erase(std::span<const PrefixKey> keys, const std::stop_token& stop) {
  constexpr size_t kPagesAtOnce = 256;
  for (size_t begin = 0; begin < keys.size(); begin += kPagesAtOnce) {
    if (stop.stop_requested()) return Status::Cancelled("local store: cancelled");
    const std::lock_guard lock(write_mutex);
    const auto part = keys.subspan(begin, std::min(kPagesAtOnce, keys.size() - begin));
    rocksdb::WriteBatch batch;
    for (const PrefixKey& key : part) batch.Delete(database->pages(), local_key(key));
    DI_RETURN_IF_ERROR(database->commit(batch));
    for (const PrefixKey& key : part) {
      const std::optional<LocalIndex::Entry> entry = index.take(key);
      if (!entry) continue;
      --pages;
      bytes -= entry->bytes;
      database->rows().release(entry->place, entry->bytes);
    }
  }
  return Status::Ok();
}

Status LocalStore::collect_garbage(double now, std::stop_token stop) {
  const std::shared_lock lock(open_mutex_);
  return impl_->usable() ? impl_->collect_garbage(now, stop) : impl_->closed();
}

Status LocalStore::Impl::collect_garbage(double now, const std::stop_token& stop) {
  DI_ASSIGN_OR_RETURN(const LocalGarbage garbage,
                      find_local_garbage(*database, options.capacity_bytes, options.retention, now, stop));
  expired += garbage.counts.expired.pages;
  evicted += garbage.counts.evicted.pages;
  DI_RETURN_IF_ERROR(erase(garbage.keys, stop));
  const std::lock_guard lock(write_mutex);
  return database->compact(
      [this](const PrefixKey& key, const std::optional<RowPlace>& to) {
        ++moved;
        if (to) return index.move(key, *to);
        const std::optional<LocalIndex::Entry> gone = index.take(key);
        if (!gone) return;
        --pages;
        bytes -= gone->bytes;
      },
      stop);
}

int64_t LocalStore::pages() const { return impl_->pages; }

LocalStoreStats LocalStore::stats() const {
  const std::shared_lock lock(open_mutex_);
  return {.pages = impl_->pages,
          .bytes = impl_->bytes,
          .file_bytes = impl_->usable() ? impl_->database->file_bytes() : 0,
          .expired = impl_->expired,
          .evicted = impl_->evicted,
          .moved = impl_->moved};
}

Status LocalStore::visit(const Visitor& visitor) const {
  const std::shared_lock lock(open_mutex_);
  if (!impl_->usable()) return impl_->closed();
  return impl_->database->for_each(
      [&](const LocalPage& page) { return visitor(page.key, impl_->database->record(page), page.expiry); }, {});
}

}  // namespace deepinfer
