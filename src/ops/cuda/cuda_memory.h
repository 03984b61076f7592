#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/recorder.h"
#include "ops/cuda/staging.h"
#include "ops/device_memory.h"

namespace deepinfer::cuda {

/// Memory of the current device, used in the order of a stream.
class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(LaunchStream* stream, Staging* staging, Recorder* recorder)
      : stream_(stream), staging_(staging), recorder_(recorder) {}

  bool is_host() const override { return false; }
  void* allocate(int64_t bytes) override;
  void free(void* data) override;
  void* allocate_host(int64_t bytes) override;
  void free_host(void* data) override;
  int64_t free_bytes() const override;
  int64_t total_bytes() const override;
  void upload(void* to, const void* host, int64_t bytes) override;
  void download(void* host, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void copy_rows(std::span<const RowCopy> rows, int64_t row_bytes) override;
  void fill(void* to, uint8_t byte, int64_t bytes) override;
  void synchronize() override;

 private:
  LaunchStream* stream_;
  Staging* staging_;
  Recorder* recorder_;
};

}  // namespace deepinfer::cuda
