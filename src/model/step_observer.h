#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/scalar_types.h"

namespace deepinfer {

/// Sees (and, for the stream, may replace) what a forward pass computes. For tests, statistics and traces; a null observer costs
/// one comparison per value.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  /// Before block `layer`: x [rows, n, hidden] and pre [rows, n]. Writing to them teacher-forces the block.
  virtual void before_block(int64_t /*layer*/, std::span<bf16> /*x*/, std::span<float> /*pre*/) {}

  /// After a value that later steps read was computed (attn_out; window_kv, compressed and index_k before packing): may replace
  /// it, and says so. With `before_block` this teacher-forces every sublayer.
  virtual bool replace(std::string_view /*name*/, int64_t /*layer*/, std::span<bf16> /*data*/) { return false; }

  /// Values by the names of the golden files: attn_out, ffn_out, stream, window_kv (packed rows), engram_out, ...
  virtual void value(std::string_view /*name*/, int64_t /*layer*/, std::span<const bf16> /*data*/) {}
  virtual void value(std::string_view /*name*/, int64_t /*layer*/, std::span<const float> /*data*/) {}
  virtual void value(std::string_view /*name*/, int64_t /*layer*/, std::span<const int32_t> /*data*/) {}
  virtual void value(std::string_view /*name*/, int64_t /*layer*/, std::span<const int64_t> /*data*/) {}
  virtual void value(std::string_view /*name*/, int64_t /*layer*/, std::span<const uint8_t> /*data*/) {}
  virtual void value(std::string_view /*name*/, int64_t /*layer*/, std::span<const uint64_t> /*data*/) {}
};

}  // namespace deepinfer
