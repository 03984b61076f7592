#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer::cli {

/// What one answer took.
struct AnswerTimes {
  int64_t prefill_tokens = 0;  ///< fewer than the prompt's only if interrupted
  double prefill_seconds = 0;  ///< up to the first token
  int64_t tokens = 0;          ///< of the answer
  int64_t decode_steps = 0;    ///< tokens after the first
  double decode_seconds = 0;   ///< from then on
  int64_t cache_bytes = 0;     ///< pages and windows of the sequence at the end
  std::string_view finish;     ///< "stop", "length", "interrupted"
};

/// What a run took, for the lines after the text and for JSON.
struct Performance {
  LoadTimes load;
  AnswerTimes run;
  std::string backend;
  std::vector<std::pair<std::string, std::string>> kernels;  ///< operators, and the kernel that they got
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
Performance measure_performance(const ModelInfo& model, const AnswerTimes& run);

/// For people; lines end with a newline.
std::string format_performance(const Performance& p);

/// The backend, then each operator with the kernel it got, so that a slow one does not go unnoticed; lines after the first are
/// indented as the words before the first are.
std::string format_kernels(const std::string& backend, const std::vector<std::pair<std::string, std::string>>& kernels);

/// Largest resident memory of this process so far (VmHWM), 0 if unknown.
int64_t peak_resident_bytes();

}  // namespace deepinfer::cli
