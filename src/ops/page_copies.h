#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ops/device_memory.h"

namespace deepinfer {

/// Bytes of the host's memory and of the device's, of which one is copied to the other.
struct CopyPiece {
  uint8_t* device = nullptr;
  uint8_t* host = nullptr;
  int64_t bytes = 0;
};

/// Host memory that a device reaches at its full rate. May outlive everything else of the backend.
using PinnedMemory = std::unique_ptr<uint8_t, void (*)(uint8_t*)>;

/// Copies between a device and the host that run beside the operators, each way on its own, and in no order among themselves.
/// Nothing here waits for the device but `wait`, and what gives pinned memory back. Three things keep copies and operators apart:
///  - a *fence* stands behind the operators that the backend's caller has called so far; a copy runs behind a fence;
///  - `operators_wait` puts the operators that come behind a copy;
///  - until a copy is over nobody writes to what it reads or touches what it writes, but operators that wait for it.
/// On host memory a copy is over when the call returns.
class PageCopies {
 public:
  using Fence = int64_t;   ///< 0: nothing has to be over
  using Ticket = int64_t;  ///< of a copy; 0: of one that is over

  virtual ~PageCopies() = default;

  /// nullptr if the system has none. Only while the backend is idle.
  virtual PinnedMemory allocate_pinned(int64_t bytes) = 0;

  // For the caller of the backend alone, and not among calls to replay:
  /// The operators so far are behind `last_fence` from now on.
  virtual void fence() = 0;
  /// Operators called from now on run behind the copy.
  virtual void operators_wait(Ticket copy) = 0;

  // For any thread:
  virtual Fence last_fence() const = 0;
  /// `host` of each piece: pinned memory. No two pieces write to the same byte.
  virtual Ticket to_device(std::span<const CopyPiece> pieces, Fence after) = 0;
  virtual Ticket to_host(std::span<const CopyPiece> pieces, Fence after) = 0;
  virtual bool done(Ticket copy) = 0;
  /// Blocks until the copy is over.
  virtual void wait(Ticket copy) = 0;

  PageCopies(const PageCopies&) = delete;
  PageCopies& operator=(const PageCopies&) = delete;

 protected:
  PageCopies() = default;
};

/// A device's memory that has them.
class PageCopySource {
 public:
  virtual ~PageCopySource() = default;
  virtual PageCopies& page_copies() = 0;
};

/// Those of a backend's memory, which lives longer. The first call comes before any other thread uses the backend.
PageCopies& page_copies(DeviceMemory& memory);

}  // namespace deepinfer
