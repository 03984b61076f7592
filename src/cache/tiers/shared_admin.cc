#include "cache/tiers/shared_admin.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "cache/tiers/admin_report.h"
#include "cache/tiers/redis_directory.h"
#include "cache/tiers/shared_files.h"
#include "cache/tiers/shared_walk.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer {
namespace {

/// A record can't be larger: what is beyond it is not read.
constexpr size_t kMostRecordBytes = size_t{1} << 32;
constexpr double kRedisConnectSeconds = 3;
constexpr double kRedisUpdateSeconds = 10;  ///< in which it has to have taken what waits

Status read_only_error(const SharedLayout& layout) {
  return Status::FailedPrecondition("shared store {}: opened read-only", layout.root());
}

}  // namespace

Result<std::unique_ptr<SharedAdmin>> SharedAdmin::Open(const std::string& directory, const SharedGcOptions& options,
                                                       bool read_only, std::optional<RedisUrl> redis) {
  DI_RETURN_IF_ERROR(options.validate());
  std::unique_ptr<SharedAdmin> admin(new SharedAdmin(directory, options, read_only, std::move(redis)));
  struct stat status {};
  if (::stat(admin->layout_.generations().c_str(), &status) != 0) {
    if (errno == ENOENT) return Err(Status::NotFound("{}: no shared store", directory));
    return Err(file_failed(admin->layout_.generations(), "open", errno));
  }
  return admin;
}

Result<StoreReport> SharedAdmin::stat(double now, std::stop_token stop) {
  StoreReport report;
  report.kind = "shared";
  report.capacity_bytes = options_.capacity_bytes;
  DI_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_generations(layout_));
  for (const std::string& name : names) {
    StoreReport::Generation& generation = report.generations[name];
    const std::string path = layout_.generations() + "/" + name;
    struct stat stamp {};
    if (::stat((path + "/" + std::string(kLastOpenName)).c_str(), &stamp) == 0) {
      generation.idle_seconds = std::max(wall_seconds() - static_cast<double>(stamp.st_mtim.tv_sec), 0.0);
    }
    DI_RETURN_IF_ERROR(walk_generation(
        path,
        [&](const SharedFile& file) {
          looked_at(file.bytes());
          report.file_bytes += static_cast<int64_t>(file.status.st_blocks) * 512;
          if (file.temporary || !file.page) {
            (file.temporary ? report.temporary : report.foreign).add(file.bytes());
            return Status::Ok();
          }
          const Result<std::vector<uint8_t>> text = read_file(file.folder, file.name, header_bytes(kMaxKvGroups));
          KvStoreMiss why = KvStoreMiss::kNotStored;
          const Result<PageHeader> header = text ? parse_header(*text, why) : Err(text.error());
          if (!header) {
            report.unreadable.add(file.bytes());
            return Status::Ok();
          }
          const PageTime time = to_page_time(file.status.st_mtim);
          add_to_report(generation, time.cache_class, file.page->exact, header->created, time.expiry, now, file.bytes());
          return Status::Ok();
        },
        stop));
  }
  return report;
}

Result<StoreVerification> SharedAdmin::verify(bool remove, std::stop_token stop) {
  if (remove && read_only_) return Err(read_only_error(layout_));
  StoreVerification counts;
  DI_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_generations(layout_));
  for (const std::string& name : names) {
    DI_ASSIGN_OR_RETURN(const KvFingerprint fingerprint, parse_fingerprint(name));
    DI_RETURN_IF_ERROR(walk_generation(
        layout_.generations() + "/" + name,
        [&](const SharedFile& file) {
          if (!file.page) return Status::Ok();
          looked_at(file.bytes());
          const Result<std::vector<uint8_t>> record = read_file(file.folder, file.name, kMostRecordBytes);
          if (!record) return Status::Ok();  // it has gone meanwhile
          const ExpectedPage expected{.key = file.page->key, .exact = file.page->exact, .fingerprint = fingerprint};
          if (verify_record(*record, expected, file.path(), counts) || !remove) return Status::Ok();
          if (::unlinkat(file.folder, file.name, 0) == 0) ++counts.removed;
          return Status::Ok();
        },
        stop));
  }
  return counts;
}

Result<StoreCollection> SharedAdmin::gc(double now, std::stop_token stop) {
  if (read_only_) return Err(read_only_error(layout_));
  if (!redis_) return collect_shared_garbage(layout_, options_, {}, now, std::move(stop));
  const RedisDirectoryOptions directory_options{.url = *redis_};
  DI_ASSIGN_OR_RETURN(const auto directory, RedisDirectory::Open(directory_options));
  if (!directory->flush(kRedisConnectSeconds)) {
    const std::string why = directory->stats().last_error;
    return Err(Status::Unavailable("directory: {}", why.empty() ? redis_->text() + ": no answer" : why));
  }
  int64_t told = 0;
  auto collected = collect_shared_garbage(
      layout_, options_, {}, now, std::move(stop), [&](const KvFingerprint& generation, const PrefixKey& key) {
        // No faster than it takes them; when it has gone, what is over is dropped.
        if (++told % (directory_options.queued_updates / 2) == 0 && directory->stats().connected)
          (void)directory->flush(kRedisUpdateSeconds);
        directory->remove(generation, key);
      });
  if (directory->stats().connected) (void)directory->flush(kRedisUpdateSeconds);
  if (!collected) return collected;
  collected->entries_removed = directory->stats().updates;
  collected->entries_left = told - collected->entries_removed;
  return collected;
}

Status SharedAdmin::for_each(const Visitor& visitor, std::stop_token stop) {
  DI_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_generations(layout_));
  for (const std::string& name : names) {
    DI_RETURN_IF_ERROR(walk_generation(
        layout_.generations() + "/" + name,
        [&](const SharedFile& file) {
          if (!file.page) return Status::Ok();
          const Result<std::vector<uint8_t>> record = read_file(file.folder, file.name, kMostRecordBytes);
          if (!record) return Status::Ok();
          const PageTime time = to_page_time(file.status.st_mtim);
          return visitor({.key = file.page->key, .cache_class = time.cache_class, .expiry = time.expiry, .record = *record});
        },
        stop));
  }
  return Status::Ok();
}

Status SharedAdmin::import_page(const StoredPage& page) {
  if (read_only_) return read_only_error(layout_);
  KvStoreMiss why = KvStoreMiss::kNone;
  DI_ASSIGN_OR_RETURN(const ParsedRecord record, parse_record(page.record, why));
  const PageHeader& header = record.header;
  const std::string generation = layout_.generation(header.fingerprint);
  PageTime time{.expiry = page.expiry, .cache_class = page.cache_class};
  for (const bool exact : {true, header.exact}) {
    struct stat status {};
    const std::string path = page_path(generation, header.key, exact);
    if (::lstat(path.c_str(), &status) != 0 || status.st_size != static_cast<off_t>(page.record.size())) continue;
    const PageTime before = to_page_time(status.st_mtim);
    time.expiry = std::max(time.expiry, before.expiry);
    time.cache_class = std::max(time.cache_class, before.cache_class);
    const int error = set_page_time(path, time);
    return error == 0 ? Status::Ok() : file_failed(path, "touch", error);
  }
  return store_page_file(layout_, generation, {.key = header.key, .exact = header.exact}, page.record, time, names_);
}

}  // namespace deepinfer
