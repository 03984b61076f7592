#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"

namespace deepinfer {

struct RandomCheckpointOptions {
  uint64_t seed = 1;
  /// A shard is closed before it would exceed this; a larger tensor gets a shard of its own.
  int64_t shard_bytes = int64_t{4} << 30;
};

/// Writes a checkpoint of `config` in the published layout (shards, index, config.json = `config_json_text`) with random
/// weights of sensible size, so that activations neither vanish nor explode: for tests, and for benchmarks in true dimensions.
/// A tensor's bytes depend on the seed and its name alone, not on the sharding. No tokenizer is written.
/// `config_json_text` must describe the tensors of `config`.
Status write_random_checkpoint(const ModelConfig& config, const std::string& config_json_text, const std::string& directory,
                               const RandomCheckpointOptions& options = {});

/// Bytes of one tensor: called with consecutive pieces, in order, each but the last a multiple of 64 bytes long.
using RandomFill = std::function<Status(int64_t offset, std::span<std::byte> out)>;
/// What write_random_checkpoint writes for a tensor, for those who need the bytes and no file.
Result<RandomFill> random_fill(const ModelConfig& config, const CatalogueEntry& tensor, uint64_t seed);

}  // namespace deepinfer
