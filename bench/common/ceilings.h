#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace deepinfer::bench {

/// Multiply-adds per call and the loop itself.
struct PeakLoop {
  const char* kind;
  double flops_per_iteration;
  void (*run)(int64_t iterations);
};
/// kernels: the name of a table of the CPU backend, which the processor runs.
PeakLoop peak_loop(std::string_view kernels);

/// What this machine allows, measured beside the thing that is judged: cores here may be shared, so a ceiling of an hour ago says
/// nothing. Each call takes a few tens of milliseconds.
class Ceilings {
 public:
  /// backend: the name of the one that is judged, "cpu/avx2": arithmetic is that of its kernels.
  Ceilings(ThreadPool* pool, const std::string& backend);

  /// Bytes a second that all threads together read from memory: 64-byte loads over a buffer larger than any cache.
  double read_bandwidth();
  /// Operations (2 a multiply-add) a second of all threads together from registers only, with the multiply-add of the backend's
  /// kernels.
  double peak_flops();
  /// "bf16", "fp32 in 256 bits", ...
  const char* peak_kind() const { return loop_.kind; }

 private:
  ThreadPool* pool_;
  PeakLoop loop_;
  AlignedBuffer<uint8_t> buffer_;
};

/// Seconds since an arbitrary moment.
double now();

}  // namespace deepinfer::bench
