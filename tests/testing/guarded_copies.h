#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "ops/page_copies.h"

namespace deepinfer::testing {

/// Page copies of a device made of host memory, for finding where somebody does not wait. A thread makes the copies late, the
/// last one first now and then, and until then what they write to holds rubbish. It ends the program, saying why, if
///  - what a copy reads, or writes to, has changed between the call and the copy;
///  - a copy runs behind a fence that does not stand behind the operator that wrote to its memory;
///  - memory is freed under a copy.
class GuardedCopies final : public PageCopies {
 public:
  /// `reach`: where the bytes at an address of the device can be read and written; it refuses addresses of others.
  explicit GuardedCopies(std::function<uint8_t*(const void*)> reach);
  ~GuardedCopies() override;

  PinnedMemory allocate_pinned(int64_t bytes) override { return page_copies(host_memory()).allocate_pinned(bytes); }
  void fence() override;
  void operators_wait(Ticket copy) override;
  Fence last_fence() const override;
  Ticket to_device(std::span<const CopyPiece> pieces, Fence after) override { return start(pieces, after, true); }
  Ticket to_host(std::span<const CopyPiece> pieces, Fence after) override { return start(pieces, after, false); }
  bool done(Ticket copy) override;
  void wait(Ticket copy) override;

  /// An operator has written bytes of the device.
  void written(const void* address, int64_t bytes);
  /// Memory of the device is given back.
  void freed(const void* address, int64_t bytes);

  /// Copies that operators had to wait for because they were not over.
  int64_t waits() const;

 private:
  struct Copy {
    Ticket ticket = 0;
    bool up = false;
    std::vector<CopyPiece> pieces;
    std::vector<uint8_t> source;  ///< the bytes when it was called for
  };
  struct Write {
    Fence fence = 0;  ///< the last one before it
    const uint8_t* begin = nullptr;
    const uint8_t* end = nullptr;
  };
  using Copies = std::list<Copy>;

  Ticket start(std::span<const CopyPiece> pieces, Fence after, bool up);
  void make(Copies::iterator copy);
  void work();

  const std::function<uint8_t*(const void*)> reach_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Copies open_;  ///< not made yet, the oldest first
  Ticket last_ = 0;
  Fence fence_ = 0;
  std::deque<Write> writes_;  ///< behind one of the last fences
  std::minstd_rand random_{1};
  int64_t waits_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer::testing
