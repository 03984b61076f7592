#include "cache/tiers/local_admin.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "cache/tiers/admin_report.h"
#include "cache/tiers/local_database.h"

namespace deepinfer {
namespace {

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
      const rocksdb::Status found = database_->db().Get({}, database_->pages(), local_key(key), &stored);
      if (found.ok()) DI_RETURN_IF_ERROR(database_->remove(LocalDatabase::page(key, stored)));
    }
    DI_RETURN_IF_ERROR(database_->compact([](const PrefixKey&, const std::optional<RowPlace>&) {}, stop));
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
    const PrefixKey key = header.key;
    double expiry = page.expiry;
    header.cache_class = page.cache_class;
    rocksdb::PinnableSlice stored;
    std::optional<LocalPage> before;
    if (database_->db().Get({}, database_->pages(), local_key(key), &stored).ok()) before = LocalDatabase::page(key, stored);
    const bool there =
        before && before->header && before->header->fingerprint == header.fingerprint && (before->header->exact || !header.exact);
    RowPlace place;
    if (there) {
      place = before->place;
      expiry = std::max(expiry, before->expiry);
      header.exact = before->header->exact;
      header.created = before->header->created;
      header.cache_class = std::max(header.cache_class, before->header->cache_class);
    } else {
      DI_ASSIGN_OR_RETURN(place, append(record));
    }
    rocksdb::WriteBatch batch;
    std::vector<uint8_t> bytes;
    append_header(header, bytes);
    batch.Put(database_->pages(), local_key(key), local_page_value(expiry, place, bytes));
    DI_RETURN_IF_ERROR(database_->commit(batch));
    if (there) return Status::Ok();
    database_->rows().hold(place, local_page_bytes(header.group_bytes));
    if (before) database_->rows().release(before->place, before->bytes());
    return Status::Ok();
  }

 private:
  /// A record's rows, with the checksums that they have in it.
  Result<RowPlace> append(const ParsedRecord& record) const {
    std::vector<uint8_t> page;
    RowPage rows;
    for (const std::span<const uint8_t> group : record.groups) {
      page.insert(page.end(), group.begin(), group.end());
      // It follows the rows.
      std::memcpy(&rows.checksums.emplace_back(), group.data() + group.size(), kGroupChecksumBytes);
    }
    rows.page = page;
    DI_ASSIGN_OR_RETURN(const std::vector<RowPlace> places, database_->rows().append({record.header.group_bytes}, {&rows, 1}));
    return places.front();
  }
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
                      LocalDatabase::Open(options.directory, {.read_only = options.read_only}));
  return std::make_unique<LocalAdmin>(std::move(database), options);
}

}  // namespace deepinfer
