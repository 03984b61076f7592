#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include "base/status.h"

namespace deepinfer {

/// A move-only array of trivially copyable elements, aligned to a cache line (or a SIMD register). Contents are not kept by
/// `reserve_discard`, which is what step buffers want.
template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr size_t kAlignment = 64;

  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t count) { reserve_discard(count); }
  AlignedBuffer(AlignedBuffer&&) noexcept = default;
  AlignedBuffer& operator=(AlignedBuffer&&) noexcept = default;

  /// Room for `count` elements, zeroed when memory is (re)allocated; old contents are lost then.
  void reserve_discard(int64_t count) {
    if (count <= size_) return;
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    void* p = std::aligned_alloc(kAlignment, bytes);
    DI_CHECK(p != nullptr, "out of memory: {} bytes", bytes);
    std::memset(p, 0, bytes);
    data_.reset(static_cast<T*>(p));
    size_ = count;
  }

  /// An explicit copy.
  AlignedBuffer Clone() const {
    AlignedBuffer copy(size_);
    if (size_ > 0) std::memcpy(copy.data(), data(), static_cast<size_t>(size_) * sizeof(T));
    return copy;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }
  std::span<T> span() { return {data(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data(), static_cast<size_t>(size_)}; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace deepinfer
