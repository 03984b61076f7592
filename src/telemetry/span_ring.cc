#include "telemetry/span_ring.h"

#include <algorithm>
#include <bit>

namespace deepinfer::telemetry {
namespace {

uint64_t slots_of(int64_t capacity) { return std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(capacity, 64))); }

uint64_t word_of(const char* text) { return reinterpret_cast<uintptr_t>(text); }
const char* text_of(uint64_t word) { return reinterpret_cast<const char*>(static_cast<uintptr_t>(word)); }

}  // namespace

SpanRing::SpanRing(int64_t capacity) : mask_(slots_of(capacity) - 1), slots_(std::make_unique<Slot[]>(mask_ + 1)) {}

// Step and category share a word: steps are far below 2^55.
void SpanRing::push(const Span& span) noexcept {
  const uint64_t number = next_.fetch_add(1, std::memory_order_acq_rel);
  Slot& slot = slots_[number & mask_];
  uint64_t before = slot.sequence.load(std::memory_order_relaxed);
  // Odd: somebody has slept in it for a whole round. Later than ours: we have.
  if ((before & 1) != 0 || before > 2 * number) return;
  if (!slot.sequence.compare_exchange_strong(before, 2 * number + 1, std::memory_order_acq_rel)) return;
  size_t at = 0;
  const auto put = [&](uint64_t word) { slot.words[at++].store(word, std::memory_order_release); };
  put(word_of(span.name));
  put(span.request);
  put((static_cast<uint64_t>(span.step) << 8) | static_cast<uint64_t>(span.category));
  put(static_cast<uint64_t>(span.begin));
  put(static_cast<uint64_t>(span.end));
  for (const SpanArg& arg : span.args) {
    put(word_of(arg.name));
    put(static_cast<uint64_t>(arg.value));
  }
  slot.sequence.store(2 * number + 2, std::memory_order_release);
}

int64_t SpanRing::read(int64_t& from, std::vector<Span>& out, bool skip) const {
  const int64_t end = pushed();
  int64_t lost = 0;
  if (end - from > capacity()) {
    lost = end - capacity() - from;
    from = end - capacity();
  }
  for (; from < end; ++from) {
    const Slot& slot = slots_[static_cast<uint64_t>(from) & mask_];
    const auto there = static_cast<uint64_t>(2 * from + 2);
    const uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
    if (sequence < there && !skip && (sequence == there - 1 || end - from < capacity() / 2)) return lost;  // soon
    Span span;
    size_t at = 0;
    const auto get = [&] { return slot.words[at++].load(std::memory_order_acquire); };
    span.name = text_of(get());
    span.request = get();
    const uint64_t step = get();
    span.step = static_cast<int64_t>(step) >> 8;
    span.category = static_cast<Category>(step & 0xFF);
    span.begin = static_cast<int64_t>(get());
    span.end = static_cast<int64_t>(get());
    for (SpanArg& arg : span.args) {
      arg.name = text_of(get());
      arg.value = static_cast<int64_t>(get());
    }
    if (sequence != there || slot.sequence.load(std::memory_order_acquire) != there) {
      ++lost;  // overwritten while it was read, or never written
      continue;
    }
    out.push_back(span);
  }
  return lost;
}

}  // namespace deepinfer::telemetry
