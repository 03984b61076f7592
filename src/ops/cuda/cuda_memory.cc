#include "ops/cuda/cuda_memory.h"

#include <cstring>

#include "base/status.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_rows.h"

namespace deepinfer::cuda {

void* CudaMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = allocate_device(bytes);
  stream_->fill(data, 0, static_cast<size_t>(bytes));
  return data;
}

void CudaMemory::free(void* data) { DI_CUDA(cudaFree(data)); }

void* CudaMemory::allocate_host(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = allocate_pinned(bytes);
  std::memset(data, 0, static_cast<size_t>(bytes));
  return data;
}

void CudaMemory::free_host(void* data) { DI_CUDA(cudaFreeHost(data)); }

int64_t CudaMemory::free_bytes() const {
  size_t free = 0;
  size_t total = 0;
  DI_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

int64_t CudaMemory::total_bytes() const {
  size_t free = 0;
  size_t total = 0;
  DI_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total);
}

void CudaMemory::upload(void* to, const void* host, int64_t bytes) {
  if (recorder_->takes_uploads()) return recorder_->upload(to, host, bytes);
  staging_->copy_to(to, host, bytes);
}

void CudaMemory::download(void* host, const void* from, int64_t bytes) {
  DI_CHECK(!recorder_->takes_uploads(), "a download of {} bytes among calls to replay", bytes);
  if (bytes > 0) stream_->copy(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost);
  DI_CUDA(cudaStreamSynchronize(*stream_));
}

void CudaMemory::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || !recorder_->launches("copy", to, from, bytes)) return;
  stream_->copy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice);
}

void CudaMemory::copy_rows(std::span<const RowCopy> rows, int64_t row_bytes) {
  if (rows.empty()) return;
  const RowCopy* list = staging_->upload(rows);
  if (!recorder_->launches("copy_rows", rows.size(), row_bytes)) return;
  cuda::copy_rows(list, static_cast<int64_t>(rows.size()), row_bytes, *stream_);
}

void CudaMemory::fill(void* to, uint8_t byte, int64_t bytes) {
  if (bytes == 0 || !recorder_->launches("fill", to, byte, bytes)) return;
  stream_->fill(to, byte, static_cast<size_t>(bytes));
}

void CudaMemory::synchronize() { DI_CUDA(cudaStreamSynchronize(*stream_)); }

}  // namespace deepinfer::cuda
