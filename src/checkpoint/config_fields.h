#pragma once

// The integer fields of config.json in one table: how they are called in the published and in DeepSeek's inference config
// (spec/backbone §1.2, dspark.md §1, vision.md §2), when they are needed, and the range that keeps every later product of two
// or three of them far inside an int64. Parsing and validation both walk it.

#include <cstdint>
#include <span>

#include "checkpoint/model_config.h"

namespace deepinfer::internal {

enum class Need { kAlways, kCompressed, kCandidate, kEngram, kDraft, kVision, kOptional };

inline bool needed(Need need, const ModelConfig& c) {
  switch (need) {
    case Need::kAlways:
      return true;
    case Need::kCompressed:
      return !c.kv_source_layer_ids.empty();
    case Need::kCandidate:
      return c.candidate_source_layer_id >= 0;
    case Need::kEngram:
      return !c.engram_layer_ids.empty();
    case Need::kDraft:
      return c.num_nextn_predict_layers > 0;
    case Need::kVision:
      return c.has_vision;
    case Need::kOptional:
      return false;
  }
  return false;
}

struct IntField {
  const char* name;   ///< of the published config
  const char* alias;  ///< of the flat inference config; "" if the same
  int64_t ModelConfig::*member;
  int64_t low;
  int64_t high;
  int64_t multiple;  ///< 32 where a scale tile or group must not be ragged (spec §2.5)
  Need need;
};

std::span<const IntField> text_int_fields();
std::span<const IntField> vision_int_fields();  ///< the alias is the name at the root of a flat config

inline constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;

/// Bucket primes of all Engram layers in walk order (spec/backbone §5.2): layer-major, then order, then head.
std::vector<int64_t> engram_bucket_primes(const ModelConfig& config);

}  // namespace deepinfer::internal
