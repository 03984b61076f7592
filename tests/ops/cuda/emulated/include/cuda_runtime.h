#pragma once

// What the kernels use of CUDA's language and runtime, on ops/cuda/emulated/device.h. Launches run at once.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cuda/emulated/device.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

namespace deepinfer::emulated {
template <auto kWhat, auto kAxis>
struct Coordinate {
  operator unsigned() const { return place().*kWhat.*kAxis; }
};
template <auto kWhat>
struct Coordinates {
  Coordinate<kWhat, &Place::x> x;
  Coordinate<kWhat, &Place::y> y;
  Coordinate<kWhat, &Place::z> z;
};
}  // namespace deepinfer::emulated
inline constexpr deepinfer::emulated::Coordinates<&deepinfer::emulated::ThreadPlace::thread> threadIdx;
inline constexpr deepinfer::emulated::Coordinates<&deepinfer::emulated::ThreadPlace::block> blockIdx;
inline constexpr deepinfer::emulated::Coordinates<&deepinfer::emulated::ThreadPlace::block_size> blockDim;
inline constexpr deepinfer::emulated::Coordinates<&deepinfer::emulated::ThreadPlace::grid_size> gridDim;

using std::max;
using std::min;

// Of no alignment: the compiler must not take a vector load for what a kernel loads word by word where it is not aligned.
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
struct dim3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};

inline float __uint_as_float(uint32_t u) { return std::bit_cast<float>(u); }
inline uint32_t __float_as_uint(float f) { return std::bit_cast<uint32_t>(f); }
inline int __popc(uint32_t v) { return std::popcount(v); }
template <typename T>
T __ldg(const T* p) {
  return *p;
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
template <typename T>
T atomicAdd(T* p, T v) {
  const T before = *p;
  *p += v;
  return before;
}
template <typename T>
T atomicOr(T* p, T v) {
  const T before = *p;
  *p |= v;
  return before;
}

inline void __trap() { std::abort(); }
inline void __syncthreads() { deepinfer::emulated::block_barrier(0, static_cast<int>(unsigned{blockDim.x})); }
inline void __syncwarp() {
  deepinfer::emulated::with_warp(nullptr, [](void* const*) {});
}
template <typename T>
T __shfl_xor_sync(uint32_t /*mask*/, T v, int other) {
  struct Lane {
    T given, got;
  } own{v, v};
  deepinfer::emulated::with_warp(&own, [&](void* const* lanes) {
    for (int l = 0; l < 32; ++l) static_cast<Lane*>(lanes[l])->got = static_cast<Lane*>(lanes[l ^ other])->given;
  });
  return own.got;
}
template <typename T>
T __shfl_up_sync(uint32_t /*mask*/, T v, int other) {
  struct Lane {
    T given, got;
  } own{v, v};
  deepinfer::emulated::with_warp(&own, [&](void* const* lanes) {
    for (int l = other; l < 32; ++l) static_cast<Lane*>(lanes[l])->got = static_cast<Lane*>(lanes[l - other])->given;
  });
  return own.got;
}
inline uint32_t __ballot_sync(uint32_t /*mask*/, bool v) {
  struct Lane {
    bool given;
    uint32_t got;
  } own{v, 0};
  deepinfer::emulated::with_warp(&own, [](void* const* lanes) {
    uint32_t all = 0;
    for (int l = 0; l < 32; ++l) all |= static_cast<uint32_t>(static_cast<Lane*>(lanes[l])->given) << l;
    for (int l = 0; l < 32; ++l) static_cast<Lane*>(lanes[l])->got = all;
  });
  return own.got;
}
inline bool __any_sync(uint32_t mask, bool v) { return __ballot_sync(mask, v) != 0; }

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyDefault };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
inline const char* cudaGetErrorString(cudaError_t) { return ""; }
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) {
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  deepinfer::emulated::run({config->gridDim.x, config->gridDim.y, config->gridDim.z}, config->blockDim.x,
                           config->dynamicSmemBytes, [&] { kernel(arguments...); });
  return cudaSuccess;
}
