#pragma once

// The safetensors container: 8-byte little-endian header length, a JSON header, the payload. Format: the `safetensors`
// package's README. A file is refused unless its tensors cover the payload exactly, without overlap, hole or trailing byte.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace deepinfer {

inline constexpr int64_t kMaxSafetensorsHeader = int64_t{256} << 20;
inline constexpr int64_t kMaxTensorDims = 8;
inline constexpr size_t kMaxTensorName = 1024;

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< from the start of the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in payload order
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// Reads the header of a whole file's bytes; the payload is not touched. `source` names the file in errors. Everything that
/// comes back is in bounds: offset + bytes <= file.size(), bytes == dtype_bytes x product of the shape.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view source);

/// One tensor to write. `fill` is called with consecutive pieces of the tensor, in order, so that a file larger than memory
/// can be written; every piece but the last is a multiple of 64 bytes long.
struct SafetensorsWrite {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::function<Status(int64_t offset, std::span<std::byte> out)> fill;
};

/// Writes `path` by way of a temporary file beside it, so that a reader never sees half a file.
Status write_safetensors(const std::string& path, std::span<const SafetensorsWrite> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata = {});

}  // namespace deepinfer
