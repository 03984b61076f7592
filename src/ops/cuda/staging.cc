#include "ops/cuda/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/status.h"
#include "ops/cuda/cuda_check.h"

namespace deepinfer::cuda {

namespace {
constexpr int64_t kAlignment = 256;
// More tables than this and the cache starts anew: sequences come and go, their tables with them.
constexpr size_t kMostTables = 1 << 17;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

void cuda_failed(const char* file, int line, const char* what, const char* reason) {
  internal::check_failed(file, line, what, std::string("CUDA: ") + reason);
}

namespace {
std::atomic<int64_t> allocations = 0;

std::string no_memory(const char* where, int64_t bytes) {
  size_t free = 0;
  size_t total = 0;
  cudaMemGetInfo(&free, &total);
  return fmt::format("{} bytes of {} memory wanted, {} of the GPU's {} are free", bytes, where, free, total);
}
}  // namespace

int64_t allocation_count() { return allocations; }

void* allocate_device(int64_t bytes) {
  void* data = nullptr;
  ++allocations;
  if (cudaMalloc(&data, static_cast<size_t>(bytes)) != cudaSuccess)
    cuda_failed(__FILE__, __LINE__, "allocate_device", no_memory("GPU", bytes).c_str());
  return data;
}

void* allocate_pinned(int64_t bytes) {
  void* data = nullptr;
  ++allocations;
  if (cudaMallocHost(&data, static_cast<size_t>(bytes)) != cudaSuccess)
    cuda_failed(__FILE__, __LINE__, "allocate_pinned", no_memory("pinned", bytes).c_str());
  return data;
}

Scratch::~Scratch() { cudaFree(data_); }

void* Scratch::bytes(int64_t size) {
  if (size > size_) {
    DI_CUDA(cudaFree(data_));  // waits for the kernels that use it
    data_ = nullptr;
    size_ = aligned(size + size / 4);
    data_ = allocate_device(size_);
  }
  return data_;
}

Staging::Staging(LaunchStream* stream) : stream_(stream) {
  pinned_ = static_cast<uint8_t*>(allocate_pinned(kParts * kPartBytes));
  device_ = static_cast<uint8_t*>(allocate_device(kParts * kPartBytes));
  for (cudaEvent_t& event : done_) {
    DI_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    DI_CUDA(cudaEventRecord(event, *stream_));
  }
}

Staging::~Staging() {
  cudaStreamSynchronize(*stream_);
  for (cudaEvent_t event : done_) cudaEventDestroy(event);
  cudaFreeHost(pinned_);
  cudaFree(device_);
}

uint8_t* Staging::room(int64_t bytes) {
  if (used_ + bytes > kPartBytes) {
    DI_CUDA(cudaEventRecord(done_[part_], *stream_));
    part_ = (part_ + 1) % kParts;
    used_ = 0;
    DI_CUDA(cudaEventSynchronize(done_[part_]));
  }
  uint8_t* at = pinned_ + part_ * kPartBytes + used_;
  used_ += aligned(bytes);
  return at;
}

void Staging::keep_arguments(uint8_t* host, uint8_t* device, int64_t capacity, bool rehearsal) {
  kept_ = {host, device, capacity, 0, rehearsal};
}

int64_t Staging::end_arguments() { return std::exchange(kept_, Kept{}).used; }

void* Staging::upload_bytes(const void* data, int64_t bytes) {
  if (kept_.host != nullptr) {
    if (kept_.rehearsal && kept_.used + bytes > kept_.capacity) kept_.used = 0;
    if (kept_.rehearsal && bytes > kept_.capacity) return kept_.device;  // goes in pieces when it comes
    const int64_t at = kept_.used;
    DI_CHECK(at + bytes <= kept_.capacity, "the arguments of a graph are more than {} bytes", kept_.capacity);
    if (bytes > 0) std::memcpy(kept_.host + at, data, static_cast<size_t>(bytes));
    kept_.used += aligned(bytes);
    return kept_.device + at;
  }
  DI_CHECK(bytes <= kPartBytes, "an argument array of {} bytes, {} is the limit", bytes, kPartBytes);
  uint8_t* pinned = room(bytes);
  uint8_t* device = device_ + (pinned - pinned_);
  std::memcpy(pinned, data, static_cast<size_t>(bytes));
  stream_->copy(device, pinned, static_cast<size_t>(bytes), cudaMemcpyHostToDevice);
  return device;
}

void Staging::copy_to(void* device, const void* host, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPartBytes) {
    const int64_t piece = std::min(kPartBytes, bytes - at);
    uint8_t* pinned = room(piece);
    std::memcpy(pinned, static_cast<const uint8_t*>(host) + at, static_cast<size_t>(piece));
    stream_->copy(static_cast<uint8_t*>(device) + at, pinned, static_cast<size_t>(piece), cudaMemcpyHostToDevice);
  }
}

TableCache::~TableCache() {
  free_replaced();
  for (auto& [host, table] : tables_) cudaFree(table.device);
}

void TableCache::free_replaced() {
  for (void* device : replaced_) cudaFree(device);
  replaced_.clear();
}

void* TableCache::bytes(const void* host, int64_t size) {
  if (size == 0) return nullptr;
  // Operators that were described a moment ago run later, with the tables that they were given.
  const bool others_wait = staging_->keeps_arguments();
  if (!others_wait) free_replaced();
  if (tables_.size() >= kMostTables && !others_wait && !tables_.contains(host)) {
    for (auto& [key, table] : tables_) DI_CUDA(cudaFree(table.device));
    tables_.clear();
  }
  Table& table = tables_[host];
  const auto known = static_cast<int64_t>(table.content.size());
  if (known >= size && std::memcmp(table.content.data(), host, static_cast<size_t>(size)) == 0) return table.device;
  if (size > table.capacity) {
    if (table.device != nullptr) replaced_.push_back(table.device);
    if (!others_wait) free_replaced();
    table.capacity = aligned(2 * size);
    table.device = allocate_device(table.capacity);
  }
  const auto* from = static_cast<const uint8_t*>(host);
  table.content.assign(from, from + size);
  staging_->copy_to(table.device, host, size);
  return table.device;
}

}  // namespace deepinfer::cuda
