#pragma once

// What the backend uses of CUDA's language and runtime, on ops/cuda/emulated/device.h and runtime.h.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
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
struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};

inline float __uint_as_float(uint32_t u) { return std::bit_cast<float>(u); }
inline uint32_t __float_as_uint(float f) { return std::bit_cast<uint32_t>(f); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __popc(uint32_t v) { return std::popcount(v); }
inline int __ffs(int v) { return v == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(v)) + 1; }
inline int __clz(int v) { return std::countl_zero(static_cast<uint32_t>(v)); }
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
T atomicMax(T* p, std::type_identity_t<T> v) {
  const T before = *p;
  if (v > before) *p = v;
  return before;
}
template <typename T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  const T before = *p;
  *p += v;
  return before;
}
template <typename T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  const T before = *p;
  *p |= v;
  return before;
}

inline void __trap() { std::abort(); }
inline void __syncthreads() { deepinfer::emulated::block_barrier(0, static_cast<int>(unsigned{blockDim.x})); }
inline void __syncwarp() {
  deepinfer::emulated::with_warp(nullptr, [](void* const*) {});
}
namespace deepinfer::emulated {
/// Every lane gets what the lane `from(lane)` gave.
template <typename T, typename From>
T shuffle(T v, const From& from) {
  struct Lane {
    T given, got;
    int from;
  } own{v, v, from(lane())};
  with_warp(&own, [](void* const* lanes) {
    for (int l = 0; l < 32; ++l) {
      auto* to = static_cast<Lane*>(lanes[l]);
      to->got = static_cast<Lane*>(lanes[to->from])->given;
    }
  });
  return own.got;
}
}  // namespace deepinfer::emulated
template <typename T>
T __shfl_xor_sync(uint32_t /*mask*/, T v, int other) {
  return deepinfer::emulated::shuffle(v, [&](int l) { return l ^ other; });
}
template <typename T>
T __shfl_sync(uint32_t /*mask*/, T v, int source) {
  return deepinfer::emulated::shuffle(v, [&](int) { return source & 31; });
}
template <typename T>
T __shfl_up_sync(uint32_t /*mask*/, T v, int step) {
  return deepinfer::emulated::shuffle(v, [&](int l) { return l >= step ? l - step : l; });
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t v) {
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(mask, v, step);
  return v;
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t v) {
  for (int step = 16; step > 0; step >>= 1) v = std::min(v, __shfl_xor_sync(mask, v, step));
  return v;
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

// The runtime: runtime.cc.
#define CUDART_VERSION 13000
namespace deepinfer::emulated {
struct Stream;
struct Event;
struct Graph;
struct Executable;
}  // namespace deepinfer::emulated
using cudaStream_t = deepinfer::emulated::Stream*;
using cudaEvent_t = deepinfer::emulated::Event*;
using cudaGraph_t = deepinfer::emulated::Graph*;
using cudaGraphExec_t = deepinfer::emulated::Executable*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorNotReady = 600 };
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeRequiredClusterWidth,
  cudaFuncAttributeRequiredClusterHeight,
  cudaFuncAttributeRequiredClusterDepth,
  cudaLaunchAttributeProgrammaticStreamSerialization
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventBlockingSync = 1, cudaHostAllocPortable = 1 };
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  size_t totalGlobalMem;
};
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

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t bytes);
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream);
enum cudaMemcpySrcAccessOrder { cudaMemcpySrcAccessOrderStream = 1 };
struct cudaMemcpyAttributes {
  cudaMemcpySrcAccessOrder srcAccessOrder;
};
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* firsts, size_t attribute_count, cudaStream_t stream);

namespace deepinfer::emulated {
void set_attribute(const void* kernel, int attribute, int value);
void launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread);
}  // namespace deepinfer::emulated
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel kernel, int attribute, int value) {
  deepinfer::emulated::set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
  return cudaSuccess;
}
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  // Parameters are what they are at the launch.
  auto values = std::make_shared<std::tuple<Parameters...>>(std::forward<Arguments>(arguments)...);
  deepinfer::emulated::launch(*config, reinterpret_cast<const void*>(kernel), [kernel, values] { std::apply(kernel, *values); });
  return cudaSuccess;
}
