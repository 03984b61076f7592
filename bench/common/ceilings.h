#pragma once

#include <cstdint>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace deepinfer::bench {

/// What this machine allows, measured beside the thing that is judged: cores here may be shared, so a ceiling of an hour ago says
/// nothing. Each call takes a few tens of milliseconds.
class Ceilings {
 public:
  explicit Ceilings(ThreadPool* pool);

  /// Bytes a second that all threads together read from memory: 64-byte loads over a buffer larger than any cache.
  double read_bandwidth();
  /// Operations (2 a multiply-add) a second of all threads together from registers only: bf16 dot products where the processor
  /// has them, else fp32.
  double peak_flops();
  /// "bf16" or "fp32".
  const char* peak_kind() const;

 private:
  ThreadPool* pool_;
  AlignedBuffer<uint8_t> buffer_;
};

/// Multiply-adds per call and the loop itself; in files of their own because they are compiled for one instruction set.
struct PeakLoop {
  const char* kind;
  double flops_per_iteration;
  void (*run)(int64_t iterations);
};
PeakLoop peak_loop();

/// Seconds since an arbitrary moment.
double now();

}  // namespace deepinfer::bench
