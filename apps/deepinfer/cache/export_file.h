#pragma once

#include <string>

#include "cache/tiers/page_export.h"

namespace deepinfer::cache {

/// An export on its way to a file: written beside it under another name, which becomes the file's when everything is there. Only
/// the owner can read it.
class ExportFile {
 public:
  /// `replace`: a file of that name may be there.
  static Result<ExportFile> Create(const std::string& path, const PageExportHeader& header, bool replace);
  ExportFile(ExportFile&& other) noexcept;
  ExportFile& operator=(ExportFile&&) = delete;
  /// Unless it was finished, nothing is left.
  ~ExportFile();

  Status add(const StoredPage& page);
  Status finish(bool replace);
  StoreUsage usage() const { return {.pages = encoder_.pages(), .bytes = encoder_.record_bytes()}; }

 private:
  ExportFile(std::string path, std::string temporary, int file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}
  Status write(std::span<const uint8_t> bytes);

  std::string path_, temporary_;
  int file_ = -1;
  PageExportEncoder encoder_;
};

/// A reader of the file, which must be a regular one.
Result<PageExportReader> open_export(const std::string& path);

/// Of the secret in `secret_file` or, if that is empty, in the store's folder; all zero if no secret lies there.
Result<StoreSecretId> secret_id_of(const std::string& directory, const std::string& secret_file);
inline bool is_known(const StoreSecretId& id) { return id != StoreSecretId{}; }

}  // namespace deepinfer::cache
