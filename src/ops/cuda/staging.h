#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/cuda/launch.h"

namespace deepinfer::cuda {

/// Memory of the device, and of the host for its copies. Aborts, saying how much was wanted and how much there is, when there is
/// none: sizes are planned before.
void* allocate_device(int64_t bytes);
void* allocate_pinned(int64_t bytes);
/// How often either was called.
int64_t allocation_count();

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
  explicit Staging(LaunchStream* stream);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Device copy of `data`, valid for kernels launched before the ring comes round; they must be launched by this call's caller
  /// before it stages more than the ring holds.
  template <typename T>
  T* upload(std::span<const T> data) {
    return static_cast<T*>(upload_bytes(data.data(), static_cast<int64_t>(data.size_bytes())));
  }
  /// From here on `upload` leaves arguments in `host` instead of copying them, and gives addresses in `device`, where they are to
  /// be when a graph runs; both have room for `capacity` bytes. `rehearsal`: nothing is going to run, and what does not fit
  /// takes the place of what came before.
  void keep_arguments(uint8_t* host, uint8_t* device, int64_t capacity, bool rehearsal = false);
  /// Bytes that were kept.
  int64_t end_arguments();
  bool keeps_arguments() const { return kept_.host != nullptr; }

  /// Any size, in pieces; the source may change after the return.
  void copy_to(void* device, const void* host, int64_t bytes);

 private:
  static constexpr int kParts = 4;
  static constexpr int64_t kPartBytes = 16 << 20;

  void* upload_bytes(const void* data, int64_t bytes);
  uint8_t* room(int64_t bytes);  ///< pinned

  LaunchStream* stream_;
  uint8_t* pinned_ = nullptr;
  uint8_t* device_ = nullptr;
  cudaEvent_t done_[kParts] = {};
  int part_ = 0;
  int64_t used_ = 0;
  struct Kept {
    uint8_t* host = nullptr;
    uint8_t* device = nullptr;
    int64_t capacity = 0;
    int64_t used = 0;
    bool rehearsal = false;
  } kept_;  ///< while arguments are kept
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

  void free_replaced();

  Staging* staging_;
  std::unordered_map<const void*, Table> tables_;
  std::vector<void*> replaced_;  ///< too small now; calls that are kept may still name them
};

}  // namespace deepinfer::cuda
