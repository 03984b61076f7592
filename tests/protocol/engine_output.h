#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/output.h"

namespace deepinfer::testing {

/// News of a choice as the engine tells it, of a prompt of ten tokens, four of them cached.
inline Output output_of(int64_t index, const std::string& text, std::vector<int32_t> tokens,
                        std::optional<FinishReason> finish = {}) {
  Output out;
  out.index = index;
  out.text = text;
  out.tokens = std::move(tokens);
  out.finish = finish;
  out.usage.prompt_tokens = 10;
  out.usage.cached_tokens = 4;
  return out;
}

}  // namespace deepinfer::testing
