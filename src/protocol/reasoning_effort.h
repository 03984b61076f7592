#pragma once

// How hard the model shall think: names and numbers of the request formats, and the text they put into the prompt (§4.4).

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

struct ReasoningEffort {
  enum class Level : uint8_t { kLow, kHigh, kXhigh, kMax, kNumber } level = Level::kHigh;
  int number = 0;  ///< 1..100 for Level::kNumber

  /// What V4.1 writes: 50, 75, 75, 100, or the number.
  int value() const;
  /// "low", "high", "xhigh", "max", or the number in digits.
  std::string name() const;
  friend bool operator==(const ReasoningEffort&, const ReasoningEffort&) = default;
};

/// minimal and low; medium and high; xhigh; max and ultra; or a whole number from 1 to 100. "none" is not an effort here: callers
/// switch thinking off. Errors list what is allowed.
Result<ReasoningEffort> parse_reasoning_effort(std::string_view text);
Result<ReasoningEffort> parse_reasoning_effort(int64_t number);

}  // namespace deepinfer
