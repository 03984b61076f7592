#include "cache/tiers/page_export.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace deepinfer {

// Fields are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little);

namespace {

constexpr std::array<uint8_t, 8> kMagic = {'D', 'I', 'K', 'V', 'E', 'X', 'P', 'T'};

/// The four words before a record or at the end.
struct EntryFields {
  uint64_t record_bytes = 0;  ///< 0: the end
  uint64_t second = 0;        ///< the bits of the expiry; at the end, pages
  uint64_t third = 0;         ///< the class; at the end, bytes of all records
  uint64_t checksum = 0;
};
static_assert(sizeof(EntryFields) == kExportEntryBytes);

uint64_t checksum_of(const EntryFields& fields, uint64_t header_checksum, int64_t number) {
  return XXH3_64bits_withSeed(&fields, sizeof(fields) - sizeof(fields.checksum), header_checksum + static_cast<uint64_t>(number));
}

std::array<uint8_t, kExportEntryBytes> sealed(EntryFields fields, uint64_t header_checksum, int64_t number) {
  fields.checksum = checksum_of(fields, header_checksum, number);
  return std::bit_cast<std::array<uint8_t, kExportEntryBytes>>(fields);
}

/// The header as it lies in the file.
struct HeaderFields {
  std::array<uint8_t, 8> magic = kMagic;
  uint32_t version = kPageExportVersion;
  uint32_t zero = 0;
  StoreSecretId secret_id{};
  double created = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(HeaderFields) == kExportHeaderBytes);

uint64_t checksum_of(const HeaderFields& fields) { return XXH3_64bits(&fields, sizeof(fields) - sizeof(fields.checksum)); }

}  // namespace

std::vector<uint8_t> PageExportEncoder::header(const PageExportHeader& header) {
  HeaderFields fields;
  fields.secret_id = header.secret_id;
  fields.created = header.created;
  fields.checksum = checksum_of(fields);
  header_checksum_ = fields.checksum;
  const auto bytes = std::bit_cast<std::array<uint8_t, kExportHeaderBytes>>(fields);
  return {bytes.begin(), bytes.end()};
}

std::array<uint8_t, kExportEntryBytes> PageExportEncoder::entry(const StoredPage& page) {
  const auto number = pages_++;
  record_bytes_ += static_cast<int64_t>(page.record.size());
  return sealed({.record_bytes = page.record.size(),
                 .second = std::bit_cast<uint64_t>(page.expiry),
                 .third = static_cast<uint64_t>(page.cache_class)},
                header_checksum_, number);
}

std::array<uint8_t, kExportEntryBytes> PageExportEncoder::end() {
  return sealed({.second = static_cast<uint64_t>(pages_), .third = static_cast<uint64_t>(record_bytes_)}, header_checksum_,
                pages_);
}

template <typename... Args>
Status PageExportReader::damaged(fmt::format_string<Args...> format, Args&&... args) const {
  return Status::DataLoss("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
}

Status PageExportReader::read_exactly(int64_t offset, std::span<uint8_t> into, std::string_view what) {
  if (offset > size_ || static_cast<int64_t>(into.size()) > size_ - offset) {
    return damaged("truncated: {} takes {} bytes, {} are left", what, into.size(), std::max<int64_t>(size_ - offset, 0));
  }
  DI_ASSIGN_OR_RETURN(const size_t got, read_(offset, into));
  if (got != into.size()) return damaged("truncated: {} takes {} bytes, {} could be read", what, into.size(), got);
  return Status::Ok();
}

Result<PageExportReader> PageExportReader::Open(std::string name, int64_t size, ReadAt read) {
  PageExportReader reader(std::move(name), size, std::move(read));
  DI_RETURN_IF_ERROR(reader.read_header());
  return reader;
}

Status PageExportReader::read_header() {
  std::array<uint8_t, kExportHeaderBytes> bytes{};
  DI_RETURN_IF_ERROR(read_exactly(0, bytes, "the header"));
  const auto fields = std::bit_cast<HeaderFields>(bytes);
  if (fields.magic != kMagic) return damaged("no export of a KV store: it begins with other bytes");
  if (fields.version != kPageExportVersion) {
    return Status::InvalidArgument("{}: version {}, this program reads {}", name_, fields.version, kPageExportVersion);
  }
  if (fields.checksum != checksum_of(fields)) return damaged("wrong checksum of the header");
  if (fields.zero != 0 || !std::isfinite(fields.created)) return damaged("a field of the header is out of range");
  header_ = {.secret_id = fields.secret_id, .created = fields.created};
  header_checksum_ = fields.checksum;
  rewind();
  return Status::Ok();
}

void PageExportReader::rewind() {
  position_ = kExportHeaderBytes;
  pages_ = 0;
  record_bytes_ = 0;
  ended_ = false;
}

Status PageExportReader::check_end(uint64_t pages, uint64_t record_bytes) const {
  if (pages != static_cast<uint64_t>(pages_) || record_bytes != static_cast<uint64_t>(record_bytes_)) {
    return damaged("the end says {} pages and {} bytes, there were {} and {}", pages, record_bytes, pages_, record_bytes_);
  }
  if (position_ != size_) return damaged("{} bytes behind the end", size_ - position_);
  return Status::Ok();
}

Status PageExportReader::read_record(int64_t bytes) {
  // The record's own header, of at most two kilobytes, says how long the record must be.
  const auto head = static_cast<size_t>(std::min(bytes, static_cast<int64_t>(header_bytes(kMaxKvGroups))));
  record_.resize(head);
  DI_RETURN_IF_ERROR(read_exactly(position_, record_, "a page's header"));
  KvStoreMiss why = KvStoreMiss::kNone;
  const Result<PageHeader> header = parse_header(record_, why);
  if (!header) return damaged("entry {}: {}", pages_, header.error().message());
  auto expected = static_cast<int64_t>(header_bytes(header->group_bytes.size()));
  for (const int64_t group : header->group_bytes) expected += group + static_cast<int64_t>(kGroupChecksumBytes);
  if (expected != bytes) return damaged("entry {}: record_bytes: is {}, the page's header says {}", pages_, bytes, expected);
  record_.resize(static_cast<size_t>(bytes));
  return read_exactly(position_ + static_cast<int64_t>(head), std::span(record_).subspan(head), "a page's rows");
}

Result<std::optional<PageExportReader::Entry>> PageExportReader::next() {
  if (ended_) return std::nullopt;
  std::array<uint8_t, kExportEntryBytes> bytes{};
  DI_RETURN_IF_ERROR(read_exactly(position_, bytes, "the head of an entry"));
  const auto fields = std::bit_cast<EntryFields>(bytes);
  if (fields.checksum != checksum_of(fields, header_checksum_, pages_)) {
    return Err(damaged("entry {}: wrong checksum of its head", pages_));
  }
  position_ += kExportEntryBytes;
  if (fields.record_bytes == 0) {
    DI_RETURN_IF_ERROR(check_end(fields.second, fields.third));
    ended_ = true;
    return std::nullopt;
  }
  const int64_t left = size_ - position_;
  if (fields.record_bytes > static_cast<uint64_t>(kMaxExportRecordBytes)) {
    return Err(damaged("entry {}: record_bytes: is {}, must be at most {}", pages_, fields.record_bytes, kMaxExportRecordBytes));
  }
  if (static_cast<int64_t>(fields.record_bytes) > left) {
    return Err(damaged("truncated: entry {} has a record of {} bytes, {} are left", pages_, fields.record_bytes, left));
  }
  const auto expiry = std::bit_cast<double>(fields.second);
  if (!std::isfinite(expiry) || fields.third >= kCacheClassCount) {
    return Err(damaged("entry {}: expiry {} and class {}: out of range", pages_, expiry, fields.third));
  }
  DI_RETURN_IF_ERROR(read_record(static_cast<int64_t>(fields.record_bytes)));
  KvStoreMiss why = KvStoreMiss::kNone;
  Result<ParsedRecord> record = parse_record(record_, why);
  if (!record) return Err(damaged("entry {}: {}", pages_, record.error().message()));
  position_ += static_cast<int64_t>(fields.record_bytes);
  record_bytes_ += static_cast<int64_t>(fields.record_bytes);
  ++pages_;
  Entry entry;
  entry.page = {
      .key = record->header.key, .cache_class = static_cast<CacheClass>(fields.third), .expiry = expiry, .record = record_};
  entry.header = std::move(record->header);
  return entry;
}

}  // namespace deepinfer
