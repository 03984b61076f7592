#include "cache/tiers/shared_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <utility>

#include "cache/tiers/shared_files.h"

namespace deepinfer {
namespace {

constexpr double kStampSeconds = 3600;  ///< between two stamps of a generation in use

}  // namespace

Status SharedStoreOptions::validate() const {
  if (directory.empty()) return Status::InvalidArgument("directory: must not be empty");
  // Written so that a NaN is refused.
  if (!(gc_interval_seconds >= 0)) return Status::OutOfRange("gc_interval_seconds: {}, must be at least 0", gc_interval_seconds);
  if (!(match_check_seconds >= 0)) return Status::OutOfRange("match_check_seconds: {}, must be at least 0", match_check_seconds);
  return gc.validate();
}

SharedStore::SharedStore(KvPageShape shape, const KvFingerprint& fingerprint, const SharedStoreOptions& options)
    : shape_(std::move(shape)),
      fingerprint_(fingerprint),
      options_(options),
      layout_(options.directory),
      generation_(layout_.generation(fingerprint)),
      record_bytes_(deepinfer::record_bytes(shape_)) {}

SharedStore::~SharedStore() = default;

Result<std::unique_ptr<SharedStore>> SharedStore::Open(const KvPageShape& shape, const KvFingerprint& fingerprint,
                                                       const SharedStoreOptions& options) {
  DI_RETURN_IF_ERROR(options.validate());
  if (shape.group_bytes.empty() || shape.group_bytes.size() > kMaxKvGroups) {
    return Err(Status::OutOfRange("group_bytes: {} groups, must be from 1 to {}", shape.group_bytes.size(), kMaxKvGroups));
  }
  struct stat status {};
  if (::stat(options.directory.c_str(), &status) != 0) return Err(file_failed(options.directory, "open", errno));
  if (!S_ISDIR(status.st_mode)) return Err(file_failed(options.directory, "open", ENOTDIR));
  std::unique_ptr<SharedStore> store(new SharedStore(shape, fingerprint, options));
  const Status prepared = open_generation(store->layout_, store->generation_, true);
  store->stamped_ = steady_seconds();
  // What others wrote can be read from a read-only mount.
  if (!prepared.ok() && ::stat(store->generation_.c_str(), &status) != 0) return Err(prepared);
  if (!options.directory_url.empty()) {
    RedisDirectoryOptions directory{.lookup_seconds = options.directory_lookup_seconds};
    DI_ASSIGN_OR_RETURN(directory.url, parse_redis_url(options.directory_url));
    DI_ASSIGN_OR_RETURN(store->page_directory_, RedisDirectory::Open(directory));
  }
  if (options.gc_interval_seconds > 0) {
    store->timer_ = std::make_unique<SharedGcTimer>(store->layout_, options.gc, hex_text(fingerprint),
                                                    options.gc_interval_seconds, store->eviction_listener());
  }
  return store;
}

void SharedStore::keep_alive() {
  const double now = steady_seconds();
  if (now - stamped_ < kStampSeconds) return;
  stamped_ = now;
  (void)open_generation(layout_, generation_, false);
}

/// What lies under the names of a page.
struct SharedStore::Found {
  KvStoreMiss miss = KvStoreMiss::kNotStored;
  bool exact = true;
  PageTime time;
};

SharedStore::Found SharedStore::look(const PrefixKey& key, bool exact_only, double now) const {
  Found found;
  for (const bool exact : {true, false}) {
    struct stat status {};
    if (::fstatat(AT_FDCWD, page_path(generation_, key, exact).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      found.miss = miss_of_errno(errno);
      if (errno == ENOENT) continue;
      return found;
    }
    found.exact = exact;
    found.time = to_page_time(status.st_mtim);
    found.miss = KvStoreMiss::kNone;
    if (found.time.expiry <= now) found.miss = KvStoreMiss::kExpired;
    if (exact_only && !exact) found.miss = KvStoreMiss::kInexact;
    if (!S_ISREG(status.st_mode) || status.st_size != record_bytes_ || suspects_.contains(key))
      found.miss = KvStoreMiss::kCorrupt;
    return found;
  }
  return found;
}

KvStoreMiss SharedStore::not_there() const {
  struct stat status {};
  return ::stat(layout_.generations().c_str(), &status) == 0 ? KvStoreMiss::kNotStored : KvStoreMiss::kUnavailable;
}

/// The keys of a match, each looked for at most once.
class SharedStore::Chain {
 public:
  Chain(const SharedStore& store, std::span<const PrefixKey> keys, bool exact_only, double now)
      : store_(store), keys_(keys), exact_only_(exact_only), now_(now), found_(keys.size()) {}

  const Found& at(size_t i) {
    if (!found_[i]) found_[i] = store_.look(keys_[i], exact_only_, now_);
    return *found_[i];
  }
  const std::optional<Found>& known(size_t i) const { return found_[i]; }
  bool is_there(size_t i) { return at(i).miss == KvStoreMiss::kNone; }
  bool is_exact(size_t i) { return is_there(i) && at(i).exact; }

  /// The first key from `begin` on for which `test` fails, if it does so for all behind that one.
  size_t end_of(bool (Chain::*test)(size_t), size_t begin, const std::stop_token& stop) {
    size_t end = keys_.size();
    if (begin == end || (this->*test)(end - 1)) return end;
    --end;
    if (begin == end || !(this->*test)(begin)) return begin;
    ++begin;
    while (begin < end && !stop.stop_requested()) {
      const size_t middle = begin + (end - begin) / 2;
      if ((this->*test)(middle)) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

 private:
  const SharedStore& store_;
  const std::span<const PrefixKey> keys_;
  const bool exact_only_;
  const double now_;
  std::vector<std::optional<Found>> found_;
};

KvStoreMatch SharedStore::match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) {
  keep_alive();
  KvStoreMatch match = match_directory(keys, exact_only, now, stop);
  if (match.reason == KvStoreMiss::kCancelled) return match;
  const KvStoreMatch rest = match_files(keys.subspan(static_cast<size_t>(match.pages)), exact_only, now, stop);
  if (rest.pages > 0) {
    match.exact = match.exact && rest.exact;
    match.ttl_seconds = match.pages > 0 ? std::min(match.ttl_seconds, rest.ttl_seconds) : rest.ttl_seconds;
    match.pages += rest.pages;
  }
  match.reason = rest.reason;
  return match;
}

/// The leading pages that the directory knows; none if there is no directory or it is out of order.
KvStoreMatch SharedStore::match_directory(std::span<const PrefixKey> keys, bool exact_only, double now,
                                          const std::stop_token& stop) {
  KvStoreMatch match;
  if (page_directory_ == nullptr || keys.empty()) return match;
  match.ttl_seconds = options_.gc.retention.longest_ttl();
  for (const DirectoryEntry& entry : page_directory_->look_up(fingerprint_, keys, stop)) {
    const bool usable = entry.known && entry.time.expiry > now && (entry.exact || !exact_only);
    if (!usable || suspects_.contains(keys[static_cast<size_t>(match.pages)])) break;
    ++match.pages;
    match.exact = match.exact && entry.exact;
    match.ttl_seconds = std::min(match.ttl_seconds, entry.time.expiry - now);
  }
  if (stop.stop_requested()) return {.pages = 0, .exact = true, .reason = KvStoreMiss::kCancelled, .ttl_seconds = 0};
  if (match.pages == 0) return {};
  // The last one would have gone first.
  const PrefixKey& last = keys[static_cast<size_t>(match.pages) - 1];
  if (look(last, exact_only, now).miss == KvStoreMiss::kNone) return match;
  correct_directory(last);
  return {};
}

KvStoreMatch SharedStore::match_files(std::span<const PrefixKey> keys, bool exact_only, double now, const std::stop_token& stop) {
  Chain chain(*this, keys, exact_only, now);
  KvStoreMatch match;
  const size_t exact_end = chain.end_of(&Chain::is_exact, 0, stop);
  size_t end = exact_only ? exact_end : chain.end_of(&Chain::is_there, exact_end, stop);
  // The first ones first: if one of them has gone, all the others are worth nothing.
  const double checked_until = steady_seconds() + options_.match_check_seconds;
  for (size_t i = 0; i < end && !stop.stop_requested(); ++i) {
    if (chain.known(i) || steady_seconds() < checked_until) {
      if (!chain.is_there(i)) end = i;
    }
  }
  if (stop.stop_requested()) {
    match.reason = KvStoreMiss::kCancelled;
    return match;
  }
  match.pages = static_cast<int64_t>(end);
  match.exact = end <= exact_end;
  match.ttl_seconds = end > 0 ? options_.gc.retention.longest_ttl() : 0;  // a clock that ran ahead may have promised more
  for (size_t i = 0; i < end; ++i) {
    if (const std::optional<Found>& found = chain.known(i)) {
      match.exact = match.exact && found->exact;
      match.ttl_seconds = std::min(match.ttl_seconds, found->time.expiry - now);
      tell_directory(keys[i], found->exact, found->time, now);
    }
  }
  if (end < keys.size()) {
    match.reason = chain.at(end).miss;
    if (match.reason == KvStoreMiss::kNotStored) match.reason = not_there();
  }
  return match;
}

/// The file that groups of one page are read from, or why there is none.
struct SharedStore::OpenPage {
  PrefixKey key;
  bool exact = true;
  int file = -1;
  KvStoreMiss miss = KvStoreMiss::kNotStored;

  OpenPage() = default;
  ~OpenPage() {
    if (file >= 0) ::close(file);
  }
  OpenPage(OpenPage&& other) noexcept
      : key(other.key), exact(other.exact), file(std::exchange(other.file, -1)), miss(other.miss) {}
  OpenPage& operator=(OpenPage&&) = delete;
};

SharedStore::OpenPage SharedStore::open_page(const PrefixKey& key, bool exact) const {
  OpenPage page;
  page.key = key;
  page.exact = exact;
  page.file = open_page_file(page_path(generation_, key, exact));
  page.miss = page.file >= 0 ? KvStoreMiss::kNone : miss_of_errno(errno);
  return page;
}

void SharedStore::read(std::span<KvStoreRead> reads, double, std::stop_token stop) {
  constexpr size_t kWindow = 32;  // files open at once
  for (size_t begin = 0; begin < reads.size(); begin += kWindow) {
    const std::span<KvStoreRead> window = reads.subspan(begin, std::min(kWindow, reads.size() - begin));
    std::vector<OpenPage> files;
    for (const KvStoreRead& read : window) {
      if (stop.stop_requested()) break;
      if (!files.empty() && files.back().key == read.key) continue;
      OpenPage& page = files.emplace_back(open_page(read.key, true));
      // All groups of a page are asked for, one call after the other: the disk may begin with all pages of the window at once.
      if (page.file >= 0 && read.group == 0) (void)::posix_fadvise(page.file, 0, record_bytes_, POSIX_FADV_WILLNEED);
    }
    size_t file = 0;
    for (KvStoreRead& read : window) {
      if (stop.stop_requested()) {
        read.miss = KvStoreMiss::kCancelled;
        continue;
      }
      while (!(files[file].key == read.key)) ++file;
      read_group(read, files[file]);
    }
  }
}

void SharedStore::read_group(KvStoreRead& read, const OpenPage& exact) {
  const auto size = static_cast<size_t>(shape_.group_bytes[static_cast<size_t>(read.group)]);
  DI_CHECK(read.into.size() == size, "{} bytes for a group of {}", read.into.size(), size);
  read.miss = exact.miss == KvStoreMiss::kNone ? read_rows(read, exact) : exact.miss;
  if (read.miss == KvStoreMiss::kNone) return;
  const OpenPage bounded = open_page(read.key, false);
  if (bounded.miss == KvStoreMiss::kNone && !read.exact_only) {
    read.miss = read_rows(read, bounded);
    if (read.miss == KvStoreMiss::kNone) return;
  }
  // What is wrong with an exact page is worth more than what there is instead of it.
  if (read.miss == KvStoreMiss::kNotStored) {
    read.miss = bounded.miss == KvStoreMiss::kNone ? KvStoreMiss::kInexact : bounded.miss;
  }
  if (read.miss == KvStoreMiss::kNotStored) read.miss = not_there();
  if (read.miss != KvStoreMiss::kUnavailable) correct_directory(read.key);
  const bool damaged = read.miss == KvStoreMiss::kCorrupt || read.miss == KvStoreMiss::kFormat;
  if (damaged || read.miss == KvStoreMiss::kFingerprint) suspects_.add(read.key);
}

KvStoreMiss SharedStore::read_rows(KvStoreRead& read, const OpenPage& open) const {
  std::array<uint8_t, kGroupChecksumBytes> checksum{};
  size_t got = 0;
  const size_t wanted = read.into.size() + checksum.size();
  while (got < wanted) {
    iovec parts[2] = {{.iov_base = read.into.data(), .iov_len = read.into.size()},
                      {.iov_base = checksum.data(), .iov_len = checksum.size()}};
    const size_t of_rows = std::min(got, read.into.size());
    parts[0] = {.iov_base = read.into.data() + of_rows, .iov_len = read.into.size() - of_rows};
    parts[1] = {.iov_base = checksum.data() + (got - of_rows), .iov_len = checksum.size() - (got - of_rows)};
    const auto offset = static_cast<off_t>(record_group_offset(shape_, read.group)) + static_cast<off_t>(got);
    const ssize_t more = ::preadv(open.file, parts, 2, offset);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return errno == ESTALE ? KvStoreMiss::kNotStored : miss_of_errno(errno);
    if (more == 0) break;
    got += static_cast<size_t>(more);
  }
  const uint64_t seed = group_seed(fingerprint_, read.key, open.exact, read.group);
  if (got == wanted && group_is_right(read.into, checksum, seed)) return KvStoreMiss::kNone;
  // The header may know why.
  std::vector<uint8_t> text(header_bytes(shape_.group_bytes.size()));
  if (::pread(open.file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return KvStoreMiss::kCorrupt;
  KvStoreMiss why = KvStoreMiss::kNone;
  if (const Result<PageHeader> header = parse_header(text, why); header) {
    why = check_header(*header, fingerprint_, read.key, shape_);
  }
  return why == KvStoreMiss::kNone ? KvStoreMiss::kCorrupt : why;
}

Status SharedStore::write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) {
  keep_alive();
  Status failed;
  for (const KvStoreWrite& page : pages) {
    if (stop.stop_requested()) return Status::Cancelled("shared store: cancelled");
    DI_CHECK(static_cast<int64_t>(page.page.size()) == shape_.page_bytes(), "a page of {} bytes", page.page.size());
    if (!options_.gc.retention.keeps(page.cache_class)) continue;
    Status status = write_page(page, now);
    if (status.code() == StatusCode::kResourceExhausted && timer_ != nullptr) timer_->hurry();
    if (!status.ok() && failed.ok()) failed = std::move(status);
    if (!failed.ok() && failed.code() != StatusCode::kResourceExhausted) break;  // the others would fail in the same way
  }
  return failed;
}

Status SharedStore::write_page(const KvStoreWrite& page, double now) {
  const Found found = look(page.key, page.exact, -std::numeric_limits<double>::infinity());
  if (found.miss == KvStoreMiss::kNone) {
    const int error = touch_page(page.key, found.exact, found.time, page.cache_class, now);
    if (error == 0) return Status::Ok();
    if (error != ENOENT) return file_failed(page_path(generation_, page.key, found.exact), "touch", error);
  }
  // A damaged exact page would hide the other.
  if (found.miss == KvStoreMiss::kCorrupt && found.exact && !page.exact) ::unlink(page_path(generation_, page.key, true).c_str());
  const PageTime time{.expiry = kv_expiry(options_.gc.retention, page.cache_class, now, 0), .cache_class = page.cache_class};
  const std::vector<uint8_t> record = make_record(page, fingerprint_, shape_, now);
  DI_RETURN_IF_ERROR(store_page_file(layout_, generation_, {.key = page.key, .exact = page.exact}, record, time, names_));
  suspects_.remove(page.key);
  tell_directory(page.key, page.exact, time, now);
  if (page.exact) ::unlink(page_path(generation_, page.key, false).c_str());
  return Status::Ok();
}

bool SharedStore::time_is_stale(const PageTime& time, CacheClass cache_class, double now, PageTime& fresh) const {
  const KvRetention& retention = options_.gc.retention;
  fresh.cache_class = std::max(time.cache_class, cache_class);
  fresh.expiry = kv_expiry(retention, fresh.cache_class, now, time.expiry);
  return fresh.cache_class != time.cache_class || kv_expiry_is_stale(time.expiry, fresh.expiry, retention.ttl(fresh.cache_class));
}

int SharedStore::touch_page(const PrefixKey& key, bool exact, const PageTime& time, CacheClass cache_class, double now) {
  PageTime fresh;
  if (!time_is_stale(time, cache_class, now, fresh)) return 0;
  const int error = set_page_time(page_path(generation_, key, exact), fresh);
  if (error == 0) tell_directory(key, exact, fresh, now);
  if (error == ENOENT) correct_directory(key);
  return error;
}

Status SharedStore::touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) {
  keep_alive();
  Status failed;
  std::vector<DirectoryEntry> entries;
  if (page_directory_ != nullptr) entries = page_directory_->look_up(fingerprint_, keys, stop);
  entries.resize(keys.size());
  for (size_t i = 0; i < keys.size() && !stop.stop_requested(); ++i) {
    DirectoryEntry& entry = entries[i];
    if (!entry.known) {
      const Found found = look(keys[i], false, -std::numeric_limits<double>::infinity());
      if (found.miss != KvStoreMiss::kNone) continue;
      entry = {.known = true, .exact = found.exact, .time = found.time};
    }
    const int error = touch_page(keys[i], entry.exact, entry.time, cache_class, now);
    if (error != 0 && error != ENOENT && failed.ok()) {
      failed = file_failed(page_path(generation_, keys[i], entry.exact), "touch", error);
    }
  }
  return failed;
}

Status SharedStore::erase(std::span<const PrefixKey> keys, std::stop_token stop) {
  for (const PrefixKey& key : keys) {
    if (stop.stop_requested()) return Status::Cancelled("shared store: cancelled");
    for (const bool exact : {true, false}) {
      const std::string path = page_path(generation_, key, exact);
      if (::unlink(path.c_str()) != 0 && errno != ENOENT) return file_failed(path, "remove", errno);
    }
    suspects_.remove(key);
    correct_directory(key);
  }
  return Status::Ok();
}

void SharedStore::tell_directory(const PrefixKey& key, bool exact, const PageTime& time, double now) {
  if (page_directory_ != nullptr) page_directory_->put(fingerprint_, key, {.known = true, .exact = exact, .time = time}, now);
}

void SharedStore::correct_directory(const PrefixKey& key) {
  if (page_directory_ != nullptr) page_directory_->remove(fingerprint_, key);
}

SharedEvictionListener SharedStore::eviction_listener() const {
  if (page_directory_ == nullptr) return {};
  return [directory = page_directory_](const KvFingerprint& generation, const PrefixKey& key) {
    directory->remove(generation, key);
  };
}

Result<StoreCollection> SharedStore::collect_garbage(double now, std::stop_token stop) {
  return collect_shared_garbage(layout_, options_.gc, hex_text(fingerprint_), now, std::move(stop), eviction_listener());
}

}  // namespace deepinfer
