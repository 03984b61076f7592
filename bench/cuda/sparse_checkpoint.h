#pragma once

// A checkpoint whose weights are never written: one file of holes with the right header, and memory that fills a device with
// random bytes of the right distribution where the model would copy them from the file. So a hundred gigabytes of layers stand on
// a GPU after seconds, without a disk of that size.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ops/device_memory.h"

namespace deepinfer::bench {

/// Writes config.json and model.safetensors, which is holes but for Engram tables (they stay in host memory and are read there).
Status write_sparse_checkpoint(const ModelConfig& config, const std::string& config_text, const std::string& directory);

/// Random bytes for the tensors of a checkpoint, in device memory. Of each kind (type, columns, name without its numbers) a block
/// of some megabytes is drawn and repeated, from another place for each tensor.
class DeviceFill {
 public:
  DeviceFill(const Checkpoint& checkpoint, DeviceMemory* memory);
  ~DeviceFill();
  DeviceFill(const DeviceFill&) = delete;
  DeviceFill& operator=(const DeviceFill&) = delete;

  /// Whether `host` is where a tensor begins; then `to` has its bytes.
  bool fill(void* to, const void* host, int64_t bytes);

 private:
  struct Block {
    uint8_t* data = nullptr;
    int64_t bytes = 0;
  };
  const Block& block(const CatalogueEntry& tensor);

  ModelConfig config_;
  DeviceMemory* memory_;
  std::vector<CatalogueEntry> catalogue_;
  std::unordered_map<const void*, const CatalogueEntry*> tensors_;
  std::unordered_map<std::string, Block> blocks_;
  int64_t filled_ = 0;
};

}  // namespace deepinfer::bench
