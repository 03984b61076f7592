#include "protocol/reasoning_effort.h"

#include <fmt/format.h>

#include <charconv>

namespace deepinfer {

int ReasoningEffort::value() const {
  switch (level) {
    case Level::kLow:
      return 50;
    case Level::kHigh:
    case Level::kXhigh:
      return 75;
    case Level::kMax:
      return 100;
    case Level::kNumber:
      return number;
  }
  return 75;
}

std::string ReasoningEffort::name() const {
  switch (level) {
    case Level::kLow:
      return "low";
    case Level::kHigh:
      return "high";
    case Level::kXhigh:
      return "xhigh";
    case Level::kMax:
      return "max";
    case Level::kNumber:
      return fmt::format("{}", number);
  }
  return "high";
}

Result<ReasoningEffort> parse_reasoning_effort(int64_t number) {
  if (number < 1 || number > 100) return Err(Status::InvalidArgument("must be a whole number from 1 to 100 or a name"));
  return ReasoningEffort{ReasoningEffort::Level::kNumber, static_cast<int>(number)};
}

Result<ReasoningEffort> parse_reasoning_effort(std::string_view text) {
  using Level = ReasoningEffort::Level;
  if (text == "minimal" || text == "low") return ReasoningEffort{Level::kLow, 0};
  if (text == "medium" || text == "high") return ReasoningEffort{Level::kHigh, 0};
  if (text == "xhigh") return ReasoningEffort{Level::kXhigh, 0};
  if (text == "max" || text == "ultra") return ReasoningEffort{Level::kMax, 0};
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= 100)
    return ReasoningEffort{Level::kNumber, value};
  return Err(Status::InvalidArgument("must be minimal, low, medium, high, xhigh, max, ultra or a whole number from 1 to 100"));
}

}  // namespace deepinfer
