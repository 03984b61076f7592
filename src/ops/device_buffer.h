#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "ops/device_memory.h"

namespace deepinfer {

/// A move-only array of trivially copyable elements in a backend's memory. Nothing but operators and DeviceMemory reads or writes
/// it, so it has no element access. Contents are not kept by `reserve_discard`.
template <typename T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit DeviceBuffer(DeviceMemory* memory) : memory_(memory) {}
  DeviceBuffer(DeviceMemory* memory, int64_t count) : memory_(memory) { reserve_discard(count); }
  ~DeviceBuffer() { release(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  /// Room for `count` elements, zeroed when memory is (re)allocated; old contents are lost then.
  void reserve_discard(int64_t count) {
    if (count <= size_) return;
    release();
    data_ = static_cast<T*>(memory_->allocate(count * static_cast<int64_t>(sizeof(T))));
    size_ = count;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  DeviceMemory& memory() const { return *memory_; }

 private:
  void release() {
    if (data_ != nullptr) memory_->free(data_);
    data_ = nullptr;
    size_ = 0;
  }

  DeviceMemory* memory_;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

/// An array of the host's that downloads reach fastest.
template <typename T>
class HostBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit HostBuffer(DeviceMemory* memory) : memory_(memory) {}
  ~HostBuffer() { release(); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  /// As DeviceBuffer's.
  void reserve_discard(int64_t count) {
    if (count <= size_) return;
    release();
    data_ = static_cast<T*>(memory_->allocate_host(count * static_cast<int64_t>(sizeof(T))));
    size_ = count;
  }
  T* data() { return data_; }

 private:
  void release() {
    if (data_ != nullptr) memory_->free_host(data_);
    data_ = nullptr;
    size_ = 0;
  }

  DeviceMemory* memory_;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

/// An array that the host and operators share in turns: a copy on each side, one and the same on host memory. What one side wrote
/// the other sees after `upload` or `download`.
template <typename T>
class SharedBuffer {
 public:
  explicit SharedBuffer(DeviceMemory* memory) : device_(memory) {}
  ~SharedBuffer() { release(); }
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  /// As DeviceBuffer's, both sides.
  void reserve_discard(int64_t count) {
    if (count <= device_.size()) return;
    release();
    device_.reserve_discard(count);
    host_ =
        memory().is_host() ? device_.data() : static_cast<T*>(memory().allocate_host(count * static_cast<int64_t>(sizeof(T))));
  }

  T* host() { return host_; }
  const T* host() const { return host_; }
  T* device() { return device_.data(); }
  const T* device() const { return device_.data(); }
  int64_t size() const { return device_.size(); }
  DeviceMemory& memory() const { return device_.memory(); }

  /// The first `count` elements; the host may write on at once.
  void upload(int64_t count) {
    if (host_ != device_.data()) memory().upload(device_.data(), host_, count * static_cast<int64_t>(sizeof(T)));
  }
  /// Waits for the operators before it.
  void download(int64_t count) {
    if (host_ != device_.data()) memory().download(host_, device_.data(), count * static_cast<int64_t>(sizeof(T)));
  }

 private:
  void release() {
    if (host_ != nullptr && host_ != device_.data()) memory().free_host(host_);
    host_ = nullptr;
  }

  DeviceBuffer<T> device_;
  T* host_ = nullptr;
};

}  // namespace deepinfer
