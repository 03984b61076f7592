#pragma once

#include <sys/stat.h>

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "cache/tiers/shared_layout.h"

namespace deepinfer {

/// A file of a generation.
struct SharedFile {
  int folder = -1;  ///< open
  const std::string& folder_path;
  const char* name = nullptr;
  struct stat status {};
  std::optional<PageName> page{};  ///< what its name says; only if it is a regular file in the folder where it belongs
  bool temporary = false;

  std::string path() const { return folder_path + "/" + name; }
  /// Bytes that a page's record takes, as far as its size tells.
  int64_t bytes() const { return static_cast<int64_t>(status.st_size); }
};

/// Every file of the generation at `path`, folder by folder. What goes meanwhile is passed over; a folder that can't be read is
/// too, but its error is returned in the end. kCancelled once `stop` is requested. An error of the visitor ends the walk.
Status walk_generation(const std::string& path, FunctionRef<Status(const SharedFile& file)> visit, const std::stop_token& stop);

/// Names of the generations.
Result<std::vector<std::string>> list_generations(const SharedLayout& layout);

/// The file's first bytes, at most `limit`.
Result<std::vector<uint8_t>> read_file(int folder, const char* name, size_t limit);

}  // namespace deepinfer
