#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace deepinfer {

/// The memory that a backend's operators work on: the host's own, or a device's. Writes and copies happen in the order of the
/// operators around them. One caller at a time, the backend's.
class DeviceMemory {
 public:
  struct RowCopy {
    void* to = nullptr;  ///< nullptr: nothing is copied
    const void* from = nullptr;
  };

  virtual ~DeviceMemory() = default;

  /// True: the host may read and write it directly once the operators are done.
  virtual bool is_host() const = 0;
  /// Zeroed, aligned to 64 bytes at least. Aborts when there is no memory: sizes are planned before.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void free(void* data) = 0;
  /// Host memory that operators can read where it lies, and that downloads reach fastest; else as `allocate`.
  virtual void* allocate_host(int64_t bytes) = 0;
  virtual void free_host(void* data) = 0;
  /// Bytes that `allocate` can still give; unknown, and as good as endless, for the host's own.
  virtual int64_t free_bytes() const { return INT64_MAX; }
  /// All of it, whoever uses it; unknown for the host's own.
  virtual int64_t total_bytes() const { return INT64_MAX; }

  /// From host memory, which may change after the return.
  virtual void upload(void* to, const void* host, int64_t bytes) = 0;
  /// Into host memory; waits for the operators before it.
  virtual void download(void* host, const void* from, int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Rows of equal size, in no order: no row written is another's source or target.
  virtual void copy_rows(std::span<const RowCopy> rows, int64_t row_bytes) = 0;
  virtual void fill(void* to, uint8_t byte, int64_t bytes) = 0;
  /// Waits for everything before it.
  virtual void synchronize() = 0;

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

 protected:
  DeviceMemory() = default;
};

/// The host's heap.
DeviceMemory& host_memory();

}  // namespace deepinfer
