#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "deepinfer/revisit_intervals.h"

namespace deepinfer {

/// What an engine measured while it recorded; 0 or empty: it does not know.
struct RecordedCosts {
  int64_t page_bytes = 0;
  int64_t page_positions = 0;                           ///< tokens of a page
  double prefill_tokens_per_second = 0;                 ///< that it computes of prompts
  std::map<std::string, double> pull_bytes_per_second;  ///< by tier
};

/// A recording, as it is kept in a file between runs, and read by `deepinfer cache plan`.
struct RevisitRecording {
  IntervalsByClass by_class;
  RecordedCosts costs;
};

/// One JSON object, and back. Errors name field, value and limit.
std::string recording_json(const RevisitRecording& recording);
Result<RevisitRecording> parse_recording(std::string_view text);
/// No recording is larger.
inline constexpr int64_t kMaxRecordingBytes = int64_t{1} << 20;

}  // namespace deepinfer
