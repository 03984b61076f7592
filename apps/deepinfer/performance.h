#pragma once

#include <cstdint>
#include <string>

#include "generation.h"
#include "model_options.h"

namespace deepinfer::cli {

/// What a run took, for the lines after the text and for JSON.
struct Performance {
  LoadTimes load;
  Generation run;  ///< without use for its tokens
  std::string backend;
  int threads = 0;
  double prefill_rate = 0;          ///< tokens a second
  double decode_rate = 0;           ///< tokens a second
  int64_t active_weight_bytes = 0;  ///< that one decode step reads
  double weight_rate = 0;           ///< bytes a second while decoding
  double memory_rate = 0;           ///< bytes a second that the machine reads, measured now; 0: not measured
  bool weights_fit_in_cache = false;
  int64_t peak_resident_bytes = 0;  ///< before the memory was measured, which takes a large buffer
  int64_t weight_bytes = 0;
};

/// Measures the memory, which takes a moment, unless nothing was decoded.
Performance measure_performance(const LoadedModel& loaded, const Generation& run);

/// For people; lines end with a newline.
std::string format_performance(const Performance& p);

/// Largest resident memory of this process so far (VmHWM), 0 if unknown.
int64_t peak_resident_bytes();

}  // namespace deepinfer::cli
