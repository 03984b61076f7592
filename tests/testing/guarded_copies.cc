#include "testing/guarded_copies.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace deepinfer::testing {
namespace {

constexpr uint8_t kRubbish = 0xa5;
/// Writes are remembered so long; who asks for an older fence is taken to know what he does.
constexpr PageCopies::Fence kFencesRemembered = 8;

bool all_rubbish(const uint8_t* data, int64_t bytes) {
  return std::all_of(data, data + bytes, [](uint8_t byte) { return byte == kRubbish; });
}

}  // namespace

GuardedCopies::GuardedCopies(std::function<uint8_t*(const void*)> reach) : reach_(std::move(reach)) {
  thread_ = std::thread([this] { work(); });
}

GuardedCopies::~GuardedCopies() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GuardedCopies::fence() {
  const std::lock_guard lock(mutex_);
  ++fence_;
  while (!writes_.empty() && writes_.front().fence + kFencesRemembered < fence_) writes_.pop_front();
}

PageCopies::Fence GuardedCopies::last_fence() const {
  const std::lock_guard lock(mutex_);
  return fence_;
}

void GuardedCopies::written(const void* address, int64_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(address);
  const std::lock_guard lock(mutex_);
  writes_.push_back({fence_, begin, begin + bytes});
}

void GuardedCopies::freed(const void* address, int64_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(address);
  const std::lock_guard lock(mutex_);
  for (const Copy& copy : open_) {
    for (const CopyPiece& p : copy.pieces)
      DI_CHECK(p.device + p.bytes <= begin || p.device >= begin + bytes, "memory of the device is freed under a copy");
  }
}

PageCopies::Ticket GuardedCopies::start(std::span<const CopyPiece> pieces, Fence after, bool up) {
  const std::lock_guard lock(mutex_);
  DI_CHECK(after <= fence_, "fence {} of {}", after, fence_);
  Copy copy{.ticket = ++last_, .up = up, .pieces = {pieces.begin(), pieces.end()}, .source = {}};
  for (const CopyPiece& p : pieces) {
    for (const Write& w : writes_) {
      DI_CHECK(w.fence < after || w.end <= p.device || w.begin >= p.device + p.bytes,
               "a copy behind fence {} of memory that an operator wrote to behind fence {}", after, w.fence);
    }
    uint8_t* const device = reach_(p.device);
    const uint8_t* const from = up ? p.host : device;
    copy.source.insert(copy.source.end(), from, from + p.bytes);
  }
  for (const CopyPiece& p : pieces) std::memset(up ? reach_(p.device) : p.host, kRubbish, static_cast<size_t>(p.bytes));
  open_.push_back(std::move(copy));
  changed_.notify_all();
  return last_;
}

void GuardedCopies::make(Copies::iterator copy) {
  const uint8_t* was = copy->source.data();
  for (const CopyPiece& p : copy->pieces) {
    uint8_t* const device = reach_(p.device);
    const uint8_t* const from = copy->up ? p.host : device;
    uint8_t* const to = copy->up ? device : p.host;
    const auto bytes = static_cast<size_t>(p.bytes);
    DI_CHECK(std::memcmp(from, was, bytes) == 0, "{} changed before it was copied", copy->up ? "pinned memory" : "a page");
    DI_CHECK(all_rubbish(to, p.bytes), "somebody wrote to {} that a copy was on its way to",
             copy->up ? "a page" : "pinned memory");
    std::memcpy(to, from, bytes);
    was += p.bytes;
  }
  open_.erase(copy);
  changed_.notify_all();
}

void GuardedCopies::operators_wait(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto copy = std::find_if(open_.begin(), open_.end(), [&](const Copy& c) { return c.ticket == ticket; });
  if (copy == open_.end()) return;
  ++waits_;
  make(copy);
}

bool GuardedCopies::done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return std::none_of(open_.begin(), open_.end(), [&](const Copy& c) { return c.ticket == ticket; });
}

void GuardedCopies::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return std::none_of(open_.begin(), open_.end(), [&](const Copy& c) { return c.ticket == ticket; }); });
}

int64_t GuardedCopies::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

void GuardedCopies::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !open_.empty(); });
    if (open_.empty()) return;
    // Long enough for others to do what they must not do meanwhile; somebody may get another step done with pages written back.
    constexpr std::array<int, 4> kUp = {0, 200, 1000, 3000}, kDown = {0, 1000, 10000, 40000};
    const auto next = random_() % 2 == 0 ? open_.begin() : std::prev(open_.end());
    const Ticket ticket = next->ticket;
    const int pause = (next->up ? kUp : kDown)[random_() % kUp.size()];
    changed_.wait_for(lock, std::chrono::microseconds(pause), [this] { return stop_; });
    const auto copy = std::find_if(open_.begin(), open_.end(), [&](const Copy& c) { return c.ticket == ticket; });
    if (copy != open_.end()) make(copy);
  }
}

}  // namespace deepinfer::testing
