#include <cstdlib>

#include "base/status.h"
#include "ops/device_memory.h"

namespace deepinfer {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  bool is_host() const override { return true; }

  void* allocate(int64_t bytes) override {
    constexpr size_t kAlignment = 64;
    const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    void* data = std::aligned_alloc(kAlignment, rounded);
    DI_CHECK(data != nullptr || rounded == 0, "out of memory: {} bytes", rounded);
    if (rounded > 0) std::memset(data, 0, rounded);
    return data;
  }
  void free(void* data) override { std::free(data); }
  void* allocate_host(int64_t bytes) override { return allocate(bytes); }
  void free_host(void* data) override { free(data); }

  void upload(void* to, const void* host, int64_t bytes) override { copy(to, host, bytes); }
  void download(void* host, const void* from, int64_t bytes) override { copy(host, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void copy_rows(std::span<const RowCopy> rows, int64_t row_bytes) override {
    for (const RowCopy& row : rows) {
      if (row.to != nullptr) copy(row.to, row.from, row_bytes);
    }
  }
  void fill(void* to, uint8_t byte, int64_t bytes) override {
    if (bytes > 0) std::memset(to, byte, static_cast<size_t>(bytes));
  }
  void synchronize() override {}
};

}  // namespace

DeviceMemory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace deepinfer
