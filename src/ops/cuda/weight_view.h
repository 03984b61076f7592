#pragma once

#include "ops/cuda/host_device.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// kFp4Panels: kFp4 in the order of fp4_order.h, rows in whole panels, codes and scales at multiples of 16.
enum class WeightFormat : uint8_t { kFp8, kFp4, kFp4Panels, kBf16 };
DI_HOST_DEVICE constexpr bool is_fp4(WeightFormat f) { return f == WeightFormat::kFp4 || f == WeightFormat::kFp4Panels; }

/// A weight matrix of any format.
struct WeightView {
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;
  int64_t out = 0;
  int64_t in = 0;
};
inline WeightView view(const Fp8Weight& w) { return {w.values, w.scales, w.out, w.in}; }
inline WeightView view(const Fp4Weight& w) { return {w.codes, w.scales, w.out, w.in}; }
inline WeightView view(const Bf16Weight& w) { return {reinterpret_cast<const uint8_t*>(w.values), nullptr, w.out, w.in}; }

}  // namespace deepinfer::cuda
