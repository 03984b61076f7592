#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_store.h"

namespace deepinfer {

/// Where the rows of a page lie in RowFiles. Pages that were written together are a batch, which lies as pulls read it: group
/// after group, and of each group the rows and their checksum of one page after the other.
struct RowPlace {
  uint64_t file = 0;    ///< its number; no number is used twice
  uint64_t offset = 0;  ///< at which the batch begins
  uint32_t batch = 0;   ///< pages of it
  uint32_t index = 0;   ///< which of them

  bool operator==(const RowPlace&) const = default;
  /// The page behind `before` in the same batch.
  bool follows(const RowPlace& before) const {
    return file == before.file && offset == before.offset && batch == before.batch && index == before.index + 1;
  }
};

/// A page to be written: its groups one after the other, and the checksum of each.
struct RowPage {
  std::span<const uint8_t> page;
  std::vector<uint64_t> checksums;
};

/// One group of one page to be read.
struct RowRead {
  std::span<uint8_t> into;
  uint64_t checksum = 0;  ///< as stored, unchecked
};

/// The rows of a local store: a folder of files to which batches of pages are appended, each with one write, and that never
/// change otherwise. A file goes when no page of it is in use; where too little of one is, `sparse` says so. What is in use is
/// known by the database alone: it tells with `hold` and `release`. Nothing in a file is trusted; what it gives is checked by who
/// reads. Appends come one at a time, reads at any time from any thread: who reads a file that goes reads on.
class RowFiles {
 public:
  /// Makes the folder if need be. `file_bytes`: a file that has so much gets no more. `read_only`: of another process; nothing is
  /// made, and nothing goes.
  static Result<std::unique_ptr<RowFiles>> Open(std::string folder, int64_t file_bytes, bool read_only);
  ~RowFiles();
  RowFiles(const RowFiles&) = delete;
  RowFiles& operator=(const RowFiles&) = delete;

  /// Files that have come since; for read-only.
  Status rescan();
  /// What a page takes in them.
  static int64_t page_bytes(const KvPageShape& shape);

  /// Appends the pages, all of one shape, as a batch; nobody holds them yet. On error nothing was. ResourceExhausted: no room.
  Result<std::vector<RowPlace>> append(const KvPageShape& shape, std::span<const RowPage> pages);
  /// Reads `group` of pages that follow each other in a batch, with one read. DataLoss: they are not there.
  Status read(const KvPageShape& shape, const RowPlace& first, int64_t group, std::span<RowRead> pages) const;

  void hold(const RowPlace& place, int64_t bytes);
  void release(const RowPlace& place, int64_t bytes);
  /// After all pages are held: files of nobody go.
  void remove_unused();
  /// Numbers of files whose pages should be written anew, so that all files are not much larger than what is in use. Mostly none.
  std::vector<uint64_t> sparse() const;
  /// Size of all files.
  int64_t bytes() const;

 private:
  struct File;

  RowFiles(std::string folder, int64_t file_bytes, bool read_only)
      : folder_(std::move(folder)), file_bytes_(file_bytes), read_only_(read_only) {}
  std::string path(uint64_t number) const;
  std::shared_ptr<File> find(uint64_t number) const;
  /// The file that is appended to.
  Result<std::shared_ptr<File>> current();
  void drop_if_unused(uint64_t number);

  const std::string folder_;
  const int64_t file_bytes_;
  const bool read_only_;
  mutable std::mutex mutex_;  ///< of everything below, and of what is counted in a file
  std::map<uint64_t, std::shared_ptr<File>> files_;
  uint64_t appending_ = 0;  ///< number of the file that is appended to; 0: none yet
  uint64_t last_ = 0;       ///< the highest number
};

}  // namespace deepinfer
