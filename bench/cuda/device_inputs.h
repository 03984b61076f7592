#pragma once

// Inputs that lie on a GPU: random bytes drawn once and repeated, which is random enough for a clock.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "ops/ops.h"

namespace deepinfer::bench {

class DeviceInputs {
 public:
  explicit DeviceInputs(DeviceMemory* memory) : memory_(memory), rng_(1) {}
  ~DeviceInputs() {
    for (void* data : data_) memory_->free(data);
  }
  DeviceInputs(const DeviceInputs&) = delete;
  DeviceInputs& operator=(const DeviceInputs&) = delete;

  template <typename T>
  T* room(int64_t count) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    if (used_ + bytes > size_) {
      size_ = std::max<int64_t>(bytes, int64_t{1} << 30);
      used_ = 0;
      data_.push_back(memory_->allocate(size_));
    }
    used_ += bytes;
    return reinterpret_cast<T*>(static_cast<uint8_t*>(data_.back()) + used_ - bytes);
  }
  template <typename T>
  T* upload(const std::vector<T>& host) {
    T* device = room<T>(static_cast<int64_t>(host.size()));
    memory_->upload(device, host.data(), static_cast<int64_t>(host.size() * sizeof(T)));
    return device;
  }

  /// Bytes & mask.
  uint8_t* bytes(int64_t count, uint8_t mask = 0xff) {
    return repeat(block(mask, [&] { return static_cast<uint8_t>(rng_() & mask); }), count);
  }
  /// E8M0 around 2^centre.
  uint8_t* scales(int64_t count, int centre) {
    return repeat(block(1000 + centre, [&] { return static_cast<uint8_t>(126 + centre + static_cast<int>(rng_() % 3)); }), count);
  }
  bf16* normal(int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal;
    std::vector<bf16> block(static_cast<size_t>(std::min<int64_t>(count, (1 << 20) + 24)));
    for (bf16& v : block) v = to_bf16(normal(rng_) * scale);
    return repeat(upload(block), static_cast<int64_t>(block.size()), count);
  }
  float* floats(int64_t count, float scale) {
    std::normal_distribution<float> normal;
    std::vector<float> block(static_cast<size_t>(std::min<int64_t>(count, (1 << 20) + 20)));
    for (float& v : block) v = normal(rng_) * scale;
    return repeat(upload(block), static_cast<int64_t>(block.size()), count);
  }

  Fp8Weight fp8(int64_t out, int64_t in) {
    return {bytes(out * in, 0xbf), scales((out + 31) / 32 * (in / 32), -6), out, in};  // no NaN
  }
  Fp4Weight fp4(int64_t out, int64_t in) { return {bytes(out * in / 2), scales(out * (in / 32), -7), out, in}; }

  std::mt19937_64& rng() { return rng_; }

 private:
  static constexpr int64_t kBlock = (4 << 20) + 4096 + 16;

  template <typename Draw>
  const uint8_t* block(int kind, Draw draw) {
    const uint8_t*& device = blocks_[kind];
    if (device == nullptr) {
      std::vector<uint8_t> host(static_cast<size_t>(kBlock));
      for (uint8_t& b : host) b = draw();
      device = upload(host);
    }
    return device;
  }
  uint8_t* repeat(const uint8_t* block, int64_t count) { return repeat(block, kBlock, count); }
  template <typename T>
  T* repeat(const T* block, int64_t size, int64_t count) {
    T* device = room<T>(count);
    for (int64_t done = 0; done < count;) {
      const int64_t piece = std::min(count - done, done == 0 ? size : done);
      memory_->copy(device + done, done == 0 ? block : device, piece * static_cast<int64_t>(sizeof(T)));
      done += piece;
    }
    return device;
  }

  DeviceMemory* memory_;
  std::mt19937_64 rng_;
  std::vector<void*> data_;
  int64_t size_ = 0;
  int64_t used_ = 0;
  std::map<int, const uint8_t*> blocks_;
};

}  // namespace deepinfer::bench
