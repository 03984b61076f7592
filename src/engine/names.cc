// Names of the public enums.

#include "deepinfer/engine.h"

namespace deepinfer {

std::string_view replay_mode_name(ReplayMode mode) { return mode == ReplayMode::kBounded ? "bounded" : "exact"; }
std::string_view decoder_replay_name(DecoderReplay mode) { return mode == DecoderReplay::kCompact ? "compact" : "off"; }

Result<ReplayMode> parse_replay_mode(std::string_view text) {
  if (text == "bounded") return ReplayMode::kBounded;
  if (text == "exact") return ReplayMode::kExact;
  return Err(Status::InvalidArgument("replay mode is \"{}\", must be bounded or exact", text));
}

Result<DecoderReplay> parse_decoder_replay(std::string_view text) {
  if (text == "compact") return DecoderReplay::kCompact;
  if (text == "off") return DecoderReplay::kOff;
  return Err(Status::InvalidArgument("decoder replay is \"{}\", must be compact or off", text));
}

std::string_view speculation_mode_name(SpeculationMode mode) {
  return mode == SpeculationMode::kOff ? "off" : mode == SpeculationMode::kFixed ? "fixed" : "variable";
}

Result<SpeculationMode> parse_speculation_mode(std::string_view text) {
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kFixed, SpeculationMode::kVariable}) {
    if (text == speculation_mode_name(mode)) return mode;
  }
  return Err(Status::InvalidArgument("speculation mode is \"{}\", must be off, fixed or variable", text));
}

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

std::string_view cache_miss_name(CacheMiss miss) {
  switch (miss) {
    case CacheMiss::kNone:
      return "none";
    case CacheMiss::kTooShort:
      return "too_short";
    case CacheMiss::kNotCached:
      return "not_cached";
    case CacheMiss::kInexact:
      return "inexact";
    case CacheMiss::kDisabled:
      return "disabled";
  }
  return "";
}

}  // namespace deepinfer
