#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"

namespace deepinfer {

/// Element types of safetensors that the loader knows. kI8 holds two E2M1 codes a byte where the catalogue says so.
enum class DType : uint8_t { kBF16, kF32, kF16, kF8E4M3, kF8E8M0, kI8, kU8, kI32, kI64, kBool };

std::string_view dtype_name(DType dtype);  ///< the safetensors tag, "F8_E4M3"
int64_t dtype_bytes(DType dtype);

/// A tensor where it lies in a mapped file (row-major). Not owned: valid as long as the Checkpoint.
struct TensorView {
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  int64_t elements() const;
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

/// What a checkpoint of a given config must hold.
struct CatalogueEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::string group;  ///< for size tables: "attention", "experts", "engram", ...
  int64_t bytes() const;
};

/// Every tensor that the config implies, in checkpoint order (spec/backbone §2, dspark.md §2, vision.md). Pure.
std::vector<CatalogueEntry> make_catalogue(const ModelConfig& config);

enum class VerifyLevel {
  kHeaders,  ///< names, shapes, dtypes, offsets
  kScales,   ///< and: FP8 tile scales within 2^+-60; no NaN in expert and Engram row scales while they are below 2 GiB together
  kFull,     ///< and: no NaN in any scale, nothing but finite numbers among FP8, bf16 and fp32 values
};

/// A checkpoint directory: config.json, safetensors (one file, or shards with an index), tokenizer.json beside them.
/// Opening maps the files and checks them against the catalogue. No weight is copied, except where a file holds a tensor at an
/// address that its element type does not allow (the format does not promise alignment): TensorView::data is always aligned to
/// the element type. Thread-safe once open.
class Checkpoint {
 public:
  struct Options {
    VerifyLevel verify = VerifyLevel::kScales;
    /// Called from the opening thread with (bytes checked, bytes to check), for progress lines.
    std::function<void(int64_t done, int64_t total)> progress;
  };

  /// The first mismatch is the error. Use `inspect_checkpoint` (inspect.h) for all of them.
  static Result<std::shared_ptr<const Checkpoint>> Open(const std::string& directory, const Options& options);
  static Result<std::shared_ptr<const Checkpoint>> Open(const std::string& directory) { return Open(directory, Options{}); }

  const std::string& directory() const;
  const ModelConfig& config() const;
  /// The tensor of that (canonical) name, or nullptr; only tensors of the catalogue are known.
  const TensorView* find(std::string_view name) const;
  int64_t total_bytes() const;
  /// What is odd but harmless: tensors that the config does not imply, or that the index does not list. At most 100.
  const std::vector<std::string>& warnings() const;

  ~Checkpoint();

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
