#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <unordered_map>
#include <vector>

namespace deepinfer::cuda {

/// Device memory that grows to the largest request and stays. Growing waits for the device; planned sizes never grow.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Room for `count` elements, contents undefined.
  template <typename T>
  T* get(int64_t count) {
    return static_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  void* bytes(int64_t size);
  void* data_ = nullptr;
  int64_t size_ = 0;
};

/// Argument arrays on their way to the device: written into pinned memory, copied in stream order, and not overwritten before the
/// copy is done. A call waits only when a whole ring of arguments is still under way.
class Staging {
 public:
  explicit Staging(cudaStream_t stream);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Device copy of `data`, valid for kernels launched before the ring comes round; they must be launched by this call's caller
  /// before it stages more than the ring holds.
  template <typename T>
  T* upload(std::span<const T> data) {
    return static_cast<T*>(upload_bytes(data.data(), static_cast<int64_t>(data.size_bytes())));
  }
  /// From here on arguments are kept instead of copied, for a graph that is being recorded. Nothing else may be uploaded
  /// meanwhile.
  void begin_recording();
  /// Device memory with the arguments kept since then, at the addresses that upload gave; the caller's to free.
  void* end_recording();

  /// Any size, in pieces; the source may change after the return.
  void copy_to(void* device, const void* host, int64_t bytes);

 private:
  static constexpr int kParts = 4;
  static constexpr int64_t kPartBytes = 16 << 20;

  void* upload_bytes(const void* data, int64_t bytes);
  uint8_t* room(int64_t bytes);  ///< pinned

  cudaStream_t stream_;
  uint8_t* pinned_ = nullptr;
  uint8_t* device_ = nullptr;
  cudaEvent_t done_[kParts] = {};
  int part_ = 0;
  int64_t used_ = 0;
  uint8_t* recorded_ = nullptr;  ///< on the device, while recording
  std::vector<uint8_t> kept_;
};

/// Device copies of host tables that seldom change (page tables, expert pointers), kept by host address and compared before each
/// use: what is used is what the host has now.
class TableCache {
 public:
  explicit TableCache(Staging* staging) : staging_(staging) {}
  ~TableCache();
  TableCache(const TableCache&) = delete;
  TableCache& operator=(const TableCache&) = delete;

  /// Device copy of the first `count` entries at `host`.
  template <typename T>
  T* get(T* host, int64_t count) {
    return static_cast<T*>(bytes(host, count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  struct Table {
    void* device = nullptr;
    int64_t capacity = 0;
    std::vector<uint8_t> content;
  };
  void* bytes(const void* host, int64_t size);

  Staging* staging_;
  std::unordered_map<const void*, Table> tables_;
};

}  // namespace deepinfer::cuda
