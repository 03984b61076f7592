#pragma once

// As src/ops/cuda/instructions.cuh, emulated.

#include <cuda_runtime.h>

#include "base/scalar_types.h"

namespace deepinfer::cuda {

template <typename T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulated::shared_memory());
}

template <typename T>
T* dynamic_shared_behind() {
  return reinterpret_cast<T*>(emulated::shared_memory());
}

inline uint32_t shared_address(const void* p) { return emulated::shared_address(p); }

inline const void* place_behind(const void* from, uint32_t units) {
  return static_cast<const uint8_t*>(from) + uint64_t{units} * 16;
}

inline void copy_async(uint32_t shared, const void* from, int bytes) {
  if (shared % 16 != 0 || (bytes != 0 && bytes != 16)) std::abort();
  if (bytes != 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
  emulated::issue_copy({const_cast<uint8_t*>(emulated::shared_at(shared, 16)), bytes == 0 ? nullptr : from, 16});
}
inline void copy_weights_async(uint32_t shared, const void* from, int bytes) { copy_async(shared, from, bytes); }
inline void copy_async_if(bool there, uint32_t shared, const void* from) {
  if (there) copy_async(shared, from, 16);
}
inline void copy_word_async(uint32_t shared, const void* from) {
  if (shared % 4 != 0 || reinterpret_cast<uintptr_t>(from) % 4 != 0) std::abort();
  emulated::issue_copy({const_cast<uint8_t*>(emulated::shared_at(shared, 4)), from, 4});
}
inline void copy_two_words_async(uint32_t shared, const void* from) {
  if (shared % 8 != 0 || reinterpret_cast<uintptr_t>(from) % 8 != 0) std::abort();
  emulated::issue_copy({const_cast<uint8_t*>(emulated::shared_at(shared, 8)), from, 8});
}
inline void commit_copies() { emulated::commit_copies(); }
template <int kPending>
void wait_copies() {
  emulated::finish_copies(kPending);
}

inline int thread_read_anew() { return static_cast<int>(emulated::place().thread.x); }

inline void forget_uses(uint32_t& /*v*/) {}

inline uint4 load_once(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }
inline uint32_t load_byte(const uint8_t* p) { return *p; }

inline uint4 load_inputs(const bf16* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) std::abort();
  return *reinterpret_cast<const uint4*>(p);
}

inline uint4 load_shared(uint32_t address) {
  if (address % 16 != 0) std::abort();
  uint4 v;
  std::memcpy(&v, emulated::shared_at(address, 16), 16);
  return v;
}
inline void store_shared(uint32_t address, uint32_t word) {
  if (address % 4 != 0) std::abort();
  std::memcpy(const_cast<uint8_t*>(emulated::shared_at(address, 4)), &word, 4);
}
inline uint32_t load_shared_word(uint32_t address) {
  if (address % 4 != 0) std::abort();
  uint32_t v;
  std::memcpy(&v, emulated::shared_at(address, 4), 4);
  return v;
}
inline uint32_t load_shared_byte(uint32_t address) { return *emulated::shared_at(address, 1); }

inline float half_of(uint32_t pair, int i) { return to_float(bf16{static_cast<uint16_t>(pair >> 16 * i)}); }
inline uint32_t pair_of(float low, float high) { return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16; }

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Lane {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } own{c, a, {b0, b1}};
  emulated::with_warp(&own, [](void* const* lanes) {
    float* sums[32];
    uint32_t rows[32][4];
    for (int l = 0; l < 32; ++l) {
      const auto* lane = static_cast<const Lane*>(lanes[l]);
      sums[l] = lane->c;
      std::memcpy(rows[l], lane->a, sizeof rows[l]);
    }
    const auto column = [&](int k, int n) {
      return half_of(static_cast<const Lane*>(lanes[n * 4 + k % 8 / 2])->b[k / 8], k % 2);
    };
    emulated::multiply(sums, rows, 8, column, true);
  });
}

template <typename Pick>
void load_blocks(uint32_t (&r)[4], const bf16* p, const Pick& pick) {
  struct Lane {
    const bf16* row;
    uint32_t* r;
  } own{p, r};
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) std::abort();
  emulated::with_warp(&own, [&](void* const* lanes) {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        const auto value = [&](int row, int column) { return static_cast<const Lane*>(lanes[m * 8 + row])->row[column].bits; };
        static_cast<Lane*>(lanes[l])->r[m] = pick(value, l, 0) | static_cast<uint32_t>(pick(value, l, 1)) << 16;
      }
    }
  });
}
inline void load_matrices(uint32_t (&r)[4], const bf16* p) {
  load_blocks(r, p, [](const auto& value, int l, int i) { return value(l / 4, l % 4 * 2 + i); });
}
inline void load_matrices_transposed(uint32_t (&r)[4], const bf16* p) {
  load_blocks(r, p, [](const auto& value, int l, int i) { return value(l % 4 * 2 + i, l / 4); });
}

inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  struct Lane {
    uint32_t address;
    const uint32_t* r;
  } own{address, r};
  if (address % 16 != 0) std::abort();
  emulated::with_warp(&own, [](void* const* lanes) {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        for (int i = 0; i < 2; ++i) {
          const Lane& to = *static_cast<const Lane*>(lanes[m * 8 + l % 4 * 2 + i]);
          const auto half = static_cast<uint16_t>(static_cast<const Lane*>(lanes[l])->r[m] >> 16 * i);
          std::memcpy(const_cast<uint8_t*>(emulated::shared_at(to.address, 16)) + l / 4 * 2, &half, 2);
        }
      }
    }
  });
}
inline uint32_t narrow_two(float low, float high) { return pair_of(low, high); }

/// One unit of the last place beside the nearest, as it may be.
inline float reciprocal_approx(float x) { return std::nextafter(1.0f / x, 0.0f); }
inline uint32_t permute_signed(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = selector >> i * 4 & 15;
    const auto byte = static_cast<uint8_t>(bytes >> (digit & 7) * 8);
    r |= static_cast<uint32_t>((digit & 8) == 0 ? byte : byte >= 0x80 ? 0xff : 0) << i * 8;
  }
  return r;
}
inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  return pair_of(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}
inline uint32_t positive_pair(uint32_t pair) {
  const auto positive = [](float v) { return v > 0 || v != v ? v : 0.0f; };
  return pair_of(positive(half_of(pair, 0)), positive(half_of(pair, 1)));
}

}  // namespace deepinfer::cuda
