#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "telemetry/span.h"

namespace deepinfer::telemetry {

/// The latest spans, in memory of a fixed size. Any number of threads write, without locks or waiting; any number read.
///
/// Slot i % capacity holds span i. Its sequence number is 2 i + 1 while span i is written and 2 i + 2 once it is there. Who finds
/// a slot still being written (a writer that slept for a whole round) drops its span. All words are atomic, so that a reader may
/// look while a writer writes: it keeps what it read only if the number was the same before and after.
class SpanRing {
 public:
  /// Room for `capacity` spans, rounded down to a power of two, at least 64.
  explicit SpanRing(int64_t capacity);

  void push(const Span& span) noexcept;

  /// Spans that were pushed, dropped ones included.
  int64_t pushed() const { return static_cast<int64_t>(next_.load(std::memory_order_acquire)); }
  int64_t capacity() const { return static_cast<int64_t>(mask_ + 1); }

  /// Appends what was pushed from number `from` on and is still there, oldest first; moves `from` behind it. Stops before a span
  /// that is being written, unless `skip`. Returns how many were lost: overwritten before they were read, or dropped.
  int64_t read(int64_t& from, std::vector<Span>& out, bool skip = false) const;

 private:
  static constexpr size_t kWords = 15;
  struct alignas(64) Slot {
    std::atomic<uint64_t> sequence{0};
    std::atomic<uint64_t> words[kWords] = {};
  };
  static_assert(sizeof(Slot) == 128);

  const uint64_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<uint64_t> next_{0};
};

}  // namespace deepinfer::telemetry
