#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"

namespace deepinfer {

enum class WeightsCheck : uint8_t {
  kSample,  ///< tensors up to 12 KiB whole; of larger ones begin, end and places between: 12 KiB each and 256 MiB in all
  kFull,    ///< every byte: reads all weights once
};

/// 32 hexadecimal digits that say which checkpoint this is, wherever it lies and however it is cut into files: of config.json,
/// tokenizer.json (Engram rows depend on it), name, type and shape of each tensor that the config implies, and its bytes as far
/// as `check` says. A sample tells training runs, quantisations and merges apart, which change every tensor they touch nearly
/// everywhere; it cannot tell checkpoints that differ in a few places of a large tensor only, such as single rows of an
/// embedding. The two checks give different identities. Guards against mix-ups, not against forgery.
Result<std::string> checkpoint_identity(const Checkpoint& checkpoint, ThreadPool& pool, WeightsCheck check);

/// Bytes of a tensor that a sample reads, [offset, offset + bytes).
struct SampledBytes {
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// Of a tensor of `bytes` bytes, in a checkpoint of `total_bytes`; ascending and without overlap. Depends on nothing else, so
/// that copies agree; `name` decides where between begin and end it looks.
std::vector<SampledBytes> sample_of(std::string_view name, int64_t bytes, int64_t total_bytes);

}  // namespace deepinfer
