#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "protocol/converted_request.h"

namespace deepinfer::fuzz {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

/// How an output is parsed, from one byte of the input.
inline ParsingOptions parsing_options(uint8_t bits) {
  ParsingOptions options;
  options.parse_tool_calls = (bits & 1) != 0;
  options.tool_call_initial_stage = (bits & 2) != 0 && options.parse_tool_calls;
  options.reasoning_initial_stage = static_cast<ReasoningStage>(bits >> 2 & 3);
  options.hardened = (bits & 16) != 0;
  if ((bits & 32) != 0) options.stop_sequences = {"END", "ab", "\n\n", "<"};
  options.parse_json_output = (bits & 64) != 0;
  return options;
}

}  // namespace deepinfer::fuzz
