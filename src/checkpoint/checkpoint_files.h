#pragma once

// The files of a checkpoint directory and how they compare with the catalogue. Shared by Checkpoint::Open, which stops at the
// first problem, and by inspect_checkpoint, which collects them.

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace deepinfer::internal {

/// Takes problems; `stop` is true once no more are wanted.
class Problems {
 public:
  explicit Problems(int64_t keep) : keep_(keep) {}
  /// False if the caller should stop.
  bool add(Status status) {
    ++count_;
    if (static_cast<int64_t>(kept_.size()) < keep_) kept_.push_back(std::move(status));
    return !stop();
  }
  void warn(std::string text) {
    ++warning_count_;
    if (static_cast<int64_t>(warnings_.size()) < kKeepWarnings) warnings_.push_back(std::move(text));
  }
  bool stop() const { return keep_ == 1 && count_ > 0; }
  int64_t count() const { return count_; }
  int64_t warning_count() const { return warning_count_; }
  const std::vector<Status>& kept() const { return kept_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  Status first() const { return kept_.empty() ? Status::Ok() : kept_.front(); }

 private:
  static constexpr int64_t kKeepWarnings = 100;
  int64_t keep_;
  int64_t count_ = 0;
  int64_t warning_count_ = 0;
  std::vector<Status> kept_;
  std::vector<std::string> warnings_;
};

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <typename T>
using NameMap = boost::unordered_flat_map<std::string, T, StringHash, std::equal_to<>>;

struct FoundTensor {
  TensorView view;
  size_t file = 0;        ///< index into CheckpointFiles::files
  std::string stored_as;  ///< the name in the file, if it differs
};

struct CheckpointFiles {
  std::vector<MappedFile> files;
  std::vector<int64_t> tensors_per_file;
  NameMap<FoundTensor> tensors;  ///< by canonical name
};

inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleFile = "model.safetensors";

/// The name that the spec uses for a tensor that a converter may have renamed (spec §2.1).
std::string canonical_name(std::string_view stored);

/// True if the directory holds any weights.
bool has_weights(const std::string& directory);

/// Maps the files and reads their headers.
CheckpointFiles load_files(const std::string& directory, Problems& problems);

/// Missing tensors and wrong shapes or dtypes are problems, unexpected tensors are warnings.
void compare_with_catalogue(const std::vector<CatalogueEntry>& catalogue, const CheckpointFiles& files, Problems& problems);

/// The checks of `level` on the bytes of the catalogue's tensors.
void verify_values(const std::vector<CatalogueEntry>& catalogue, const CheckpointFiles& files, VerifyLevel level,
                   const std::function<void(int64_t, int64_t)>& progress, Problems& problems);

}  // namespace deepinfer::internal
