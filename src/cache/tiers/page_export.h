#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/tiers/page_record.h"
#include "cache/tiers/store_admin.h"

namespace deepinfer {

// Pages of a store in one file, to be carried to another one. Integers and doubles are little-endian.
//
//   header   magic[8] "DIKVEXPT", u32 version, u32 zero, secret id[32], f64 created (seconds since 1970), u64 XXH3 of all before
//   entries  u64 record bytes, f64 expiry, u64 class, u64 XXH3 of those; record (page_record.h), which has checksums of its own
//   end      u64 0, u64 pages, u64 bytes of all records, u64 XXH3 of those; nothing follows
//
// XXH3 of an entry's fields is seeded with the header's and the entry's number, so that an entry that was taken out, put in, or
// put elsewhere is found. Checksums find damage, not malice: who can write an export can put wrong rows into it, as who can
// write to a store can.

inline constexpr uint32_t kPageExportVersion = 1;
inline constexpr size_t kExportHeaderBytes = 8 + 4 + 4 + 32 + 8 + 8;
inline constexpr size_t kExportEntryBytes = 4 * 8;
/// A record that says to be larger is refused before memory is taken for it.
inline constexpr int64_t kMaxExportRecordBytes = int64_t{256} << 20;

/// Says which secret keys were made with, and nothing about it; all zero: not known.
using StoreSecretId = std::array<uint8_t, 32>;

struct PageExportHeader {
  StoreSecretId secret_id{};
  double created = 0;
};

/// Encodes an export, piece by piece: the header, entries, the end.
class PageExportEncoder {
 public:
  std::vector<uint8_t> header(const PageExportHeader& header);
  /// What precedes the record of `page`.
  std::array<uint8_t, kExportEntryBytes> entry(const StoredPage& page);
  std::array<uint8_t, kExportEntryBytes> end();

  int64_t pages() const { return pages_; }
  int64_t record_bytes() const { return record_bytes_; }

 private:
  uint64_t header_checksum_ = 0;
  int64_t pages_ = 0;
  int64_t record_bytes_ = 0;
};

/// Reads an export and trusts nothing in it: memory is taken only for records whose length agrees with their own header, with
/// the limit and with the size of the file. Errors name the export, the entry, the field, its value and its limit.
class PageExportReader {
 public:
  /// Fills `into` from byte `offset` on; returns how many bytes there were.
  using ReadAt = std::function<Result<size_t>(int64_t offset, std::span<uint8_t> into)>;
  /// `name`: for errors. `size`: of the export in bytes.
  static Result<PageExportReader> Open(std::string name, int64_t size, ReadAt read);

  const PageExportHeader& header() const { return header_; }

  struct Entry {
    StoredPage page;  ///< a view into the reader, until the next call
    PageHeader header;
  };
  /// The next page, every checksum checked; nothing once the end, which has to be there, has been read.
  Result<std::optional<Entry>> next();
  /// To the first page again.
  void rewind();

  int64_t pages() const { return pages_; }        ///< read so far
  int64_t position() const { return position_; }  ///< bytes read so far
  int64_t size() const { return size_; }

 private:
  PageExportReader(std::string name, int64_t size, ReadAt read) : name_(std::move(name)), size_(size), read_(std::move(read)) {}

  template <typename... Args>
  Status damaged(fmt::format_string<Args...> format, Args&&... args) const;
  Status read_exactly(int64_t offset, std::span<uint8_t> into, std::string_view what);
  Status read_header();
  /// The record of the next entry, which says to have so many bytes.
  Status read_record(int64_t bytes);
  Status check_end(uint64_t pages, uint64_t record_bytes) const;

  std::string name_;
  int64_t size_ = 0;
  ReadAt read_;
  PageExportHeader header_;
  uint64_t header_checksum_ = 0;
  int64_t position_ = 0;
  int64_t pages_ = 0;
  int64_t record_bytes_ = 0;
  bool ended_ = false;
  std::vector<uint8_t> record_;
};

}  // namespace deepinfer
