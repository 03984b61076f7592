#include "telemetry/span.h"

namespace deepinfer::telemetry {

std::string_view category_name(Category category) {
  static constexpr std::array<std::string_view, kCategories> kNames = {"request", "engine", "device", "op", "cache", "network"};
  return kNames[static_cast<size_t>(category)];
}

std::string_view track_name(Category category) { return category == Category::kOp ? "ops" : category_name(category); }

const char* phase_name(Phase phase) {
  static constexpr std::array<const char*, kPhases> kNames = {"receive",      "compile", "lookup",  "queue",
                                                              "match",        "load",    "handoff", "prefill",
                                                              "first_decode", "publish", "deliver", "decode"};
  return kNames[static_cast<size_t>(phase)];
}

}  // namespace deepinfer::telemetry
