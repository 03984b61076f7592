#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deepinfer::telemetry {

/// Nanoseconds on the steady clock: the one clock of all spans.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
/// The same moment from seconds on that clock.
inline int64_t to_ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }
inline int64_t to_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// What a span is about; docs/reference/timeline.md lists the spans of each.
enum class Category : uint8_t { kRequest, kEngine, kDevice, kOp, kCache, kNetwork };
inline constexpr size_t kCategories = 6;
std::string_view category_name(Category category);
/// The row of a viewer: "ops" for kOp, else the category's name.
std::string_view track_name(Category category);

/// A number that goes with a span. Names live for ever: they are literals.
struct SpanArg {
  const char* name = nullptr;
  int64_t value = 0;
};

/// Something that took time. Plain data without ownership: recording one copies 128 bytes.
struct Span {
  static constexpr size_t kMaxArgs = 5;

  const char* name = nullptr;  ///< a literal
  Category category = Category::kEngine;
  uint64_t request = 0;                     ///< the engine's number; 0: no request's own
  int64_t step = -1;                        ///< of the engine; -1: none
  int64_t begin = 0, end = 0;               ///< now_ns
  std::array<SpanArg, kMaxArgs> args = {};  ///< up to the first without a name
};

/// What a request goes through, in this order. Up to kDeliver the phases follow each other without a gap: their lengths add up to
/// the time to the first token.
enum class Phase : uint8_t {
  kReceive,
  kCompile,
  kLookup,
  kQueue,
  kMatch,
  kLoad,
  kHandoff,
  kPrefill,
  kFirstDecode,
  kPublish,
  kDeliver,
  kDecode,
};
inline constexpr size_t kPhases = 12;
/// A literal: "receive", "first_decode", ...
const char* phase_name(Phase phase);

}  // namespace deepinfer::telemetry
