#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace deepinfer {

/// Runs loops over a fixed number of threads. The caller is one of them.
///
/// The split of a loop into chunks is the caller's and must not depend on the number of threads; which thread runs which chunk
/// is decided as threads come free. A chunk therefore has to be independent of the others, and then results don't depend on the
/// number of threads. One caller at a time.
class ThreadPool {
 public:
  /// `threads` >= 1, the caller included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(chunk, thread) for every chunk in [0, chunks), thread in [0, size()); returns when all are done. chunks < 2^31.
  void run(int64_t chunks, FunctionRef<void(int64_t chunk, int thread)> fn);

  /// Calls fn(begin, end, thread) over [0, n) in pieces of `grain`.
  void run_ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int thread)> fn);

 private:
  using Body = FunctionRef<void(int64_t, int)>;

  void work(int thread);
  /// Takes chunks of loop `epoch` until none is left.
  void drain(uint32_t epoch, int thread);

  // A ticket is (epoch << 32 | next chunk). A thread that wakes late finds another epoch, or no chunk left, and takes nothing;
  // so a loop never waits for a sleeping thread. body_ and chunks_ belong to the epoch in ticket_: they change only while the
  // ticket is closed (next chunk = 2^32 - 1), which is when every chunk of the epoch before is done.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<const Body*> body_{nullptr};
  std::atomic<int64_t> chunks_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

/// Threads this process may use: the affinity mask, not the machine.
int available_threads();

}  // namespace deepinfer
