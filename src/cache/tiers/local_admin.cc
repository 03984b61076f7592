#include "cache/tiers/local_admin.h"

#include <algorithm>
#include <filesystem>

#include "cache/tiers/admin_report.h"
#include "cache/tiers/local_database.h"

namespace deepinfer {
namespace {

constexpr int64_t kMemtableBytes = int64_t{16} << 20;

class LocalAdmin : public StoreAdmin {
 public:
  LocalAdmin(std::unique_ptr<LocalDatabase> database, const StoreAdminOptions& options)
      : database_(std::move(database)), options_(options) {}

  Result<StoreReport> stat(double now, std::stop_token stop) override {
    StoreReport report;
    report.kind = "local";
    report.capacity_bytes = options_.capacity_bytes;
    report.file_bytes = database_->file_bytes();
    DI_RETURN_IF_ERROR(database_->for_each(
        [&](const LocalPage& page) {
          looked_at(page.bytes());
          if (!page.header) {
            report.unreadable.add(page.bytes());
          } else {
            add_to_report(report.generations[hex_text(page.header->fingerprint)], page.cache_class(), page.header->exact,
                          page.header->created, page.expiry, now, page.bytes());
          }
          return Status::Ok();
        },
        stop));
    return report;
  }

  Result<StoreVerification> verify(bool remove, std::stop_token stop) override {
    if (remove) DI_RETURN_IF_ERROR(writable());
    StoreVerification counts;
    DI_RETURN_IF_ERROR(database_->for_each(
        [&](const LocalPage& page) {
          looked_at(page.bytes());
          const ExpectedPage expected{.key = page.key, .exact = std::nullopt, .fingerprint = std::nullopt};
          const std::string place = fmt::format("{}: page {}", database_->directory(), key_text(page.key));
          if (verify_record(database_->record(page), expected, place, counts) || !remove) return Status::Ok();
          Status removed = database_->remove(page);
          if (removed.ok()) ++counts.removed;
          return removed;
        },
        stop));
    return counts;
  }

  Result<StoreCollection> gc(double now, std::stop_token stop) override {
    DI_RETURN_IF_ERROR(writable());
    DI_ASSIGN_OR_RETURN(LocalGarbage garbage,
                        find_local_garbage(*database_, options_.capacity_bytes, options_.retention, now, stop));
    for (const PrefixKey& key : garbage.keys) {
      if (stop.stop_requested()) return Err(Status::Cancelled("local store {}: cancelled", database_->directory()));
      rocksdb::PinnableSlice stored;
      const rocksdb::Status found = database_->db().Get({}, database_->headers(), local_key(key), &stored);
      if (found.ok()) DI_RETURN_IF_ERROR(database_->remove(database_->page(key, stored)));
    }
    return garbage.counts;
  }

  Status for_each(const Visitor& visitor, std::stop_token stop) override {
    return database_->for_each(
        [&](const LocalPage& page) {
          const std::vector<uint8_t> record = database_->record(page);
          return visitor({.key = page.key, .cache_class = page.cache_class(), .expiry = page.expiry, .record = record});
        },
        stop);
  }

  Status import_page(const StoredPage& page) override {
    DI_RETURN_IF_ERROR(writable());
    KvStoreMiss why = KvStoreMiss::kNone;
    DI_ASSIGN_OR_RETURN(ParsedRecord record, parse_record(page.record, why));
    PageHeader& header = record.header;
    rocksdb::PinnableSlice stored;
    double expiry = page.expiry;
    const std::string key = local_key(header.key);
    header.cache_class = page.cache_class;
    bool there = false;
    if (database_->db().Get({}, database_->headers(), key, &stored).ok()) {
      const LocalPage before = database_->page(header.key, stored);
      there = before.header && before.header->fingerprint == header.fingerprint && (before.header->exact || !header.exact);
      if (there) {
        expiry = std::max(expiry, before.expiry);
        header.exact = before.header->exact;
        header.created = before.header->created;
        header.cache_class = std::max(header.cache_class, before.header->cache_class);
      }
    }
    rocksdb::WriteBatch batch;
    std::vector<uint8_t> bytes;
    append_header(header, bytes);
    batch.Put(database_->headers(), key, local_header_value(expiry, bytes));
    for (size_t group = 0; !there && group < record.groups.size(); ++group) {
      // The checksum follows the rows in the record, too.
      const std::span<const uint8_t> rows = record.groups[group];
      const std::span<const uint8_t> with_checksum(rows.data(), rows.size() + kGroupChecksumBytes);
      batch.Put(database_->rows(), local_group_key(header.key, static_cast<int64_t>(group)), as_slice(with_checksum));
    }
    return database_->commit(batch);
  }

 private:
  Status writable() const {
    return options_.read_only ? Status::FailedPrecondition("local store {}: opened read-only", database_->directory())
                              : Status::Ok();
  }

  std::unique_ptr<LocalDatabase> database_;
  const StoreAdminOptions options_;
};

}  // namespace

Result<std::unique_ptr<StoreAdmin>> open_local_admin(const StoreAdminOptions& options) {
  DI_RETURN_IF_ERROR(options.retention.validate());
  std::error_code error;
  if (!std::filesystem::is_directory(options.directory + "/db", error)) {
    return Err(Status::NotFound("{}: no local store", options.directory));
  }
  DI_ASSIGN_OR_RETURN(std::unique_ptr<LocalDatabase> database,
                      LocalDatabase::Open(options.directory, kMemtableBytes, options.read_only));
  return std::make_unique<LocalAdmin>(std::move(database), options);
}

}  // namespace deepinfer
