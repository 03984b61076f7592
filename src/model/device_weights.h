#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "model/weights.h"
#include "ops/device_buffer.h"

namespace deepinfer {

/// Where a device's Engram tables lie: with the other weights, or in host memory, where the gather reads a step's few rows.
enum class EngramMemory : uint8_t { kAuto, kDevice, kHost };

/// The memory behind weights that were copied.
struct DeviceWeights {
  explicit DeviceWeights(DeviceMemory* memory) : weights(memory) {}
  ~DeviceWeights() {
    if (tables != nullptr) weights.memory().free_host(tables);
  }
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;

  DeviceBuffer<uint8_t> weights;
  uint8_t* tables = nullptr;  ///< Engram's, if they stay with the host
};

/// Copies all weights into `memory` and points `weights` at the copies; nothing to do for host memory. Sizes are known before the
/// first allocation, and an error says how much is missing. `utilization`: part of all memory that may be in use then. kAuto:
/// tables on the device if they fit beside the other weights in half of what is free. `progress` gets bytes done and in all, and
/// may be empty.
Status upload_weights(ModelWeights& weights, EngramMemory engram, double utilization,
                      const std::function<void(int64_t, int64_t)>& progress, DeviceWeights& out);

}  // namespace deepinfer
