#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/status.h"

namespace deepinfer {
namespace {

// Long enough to bridge the gap between two loops of a decode step, short enough not to burn a shared core for nothing.
constexpr int kSpins = 4000;

constexpr uint32_t kClosed = 0xffffffffu;  // a chunk that no loop has

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  DI_CHECK(threads >= 1, "threads = {}", threads);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::drain(uint32_t epoch, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    if (static_cast<uint32_t>(ticket >> 32) != epoch) return;
    const auto chunk = static_cast<int64_t>(ticket & 0xffffffffu);
    if (chunk >= chunks_.load(std::memory_order_acquire)) return;
    const Body* body = body_.load(std::memory_order_acquire);
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    (*body)(chunk, thread);
    done_.fetch_add(1, std::memory_order_acq_rel);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    uint32_t epoch = epoch_.load(std::memory_order_acquire);
    while (epoch == seen) {
      if (++spins < kSpins) {
        pause();
      } else {
        epoch_.wait(seen, std::memory_order_acquire);
      }
      epoch = epoch_.load(std::memory_order_acquire);
    }
    seen = epoch;
    if (stop_.load(std::memory_order_acquire)) return;
    drain(epoch, thread);
  }
}

void ThreadPool::run(int64_t chunks, FunctionRef<void(int64_t, int)> fn) {
  DI_CHECK(chunks < (int64_t{1} << 31), "chunks = {}", chunks);
  if (chunks <= 0) return;
  if (chunks == 1 || workers_.empty()) {
    for (int64_t i = 0; i < chunks; ++i) fn(i, 0);
    return;
  }
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  // The old ticket goes first. A thread that is still in `drain` of the loop before holds it: if that thread sees the new number
  // of chunks (larger than the old one, so that chunks seem to be left) or the new body, its exchange must fail.
  ticket_.store(static_cast<uint64_t>(epoch) << 32 | kClosed, std::memory_order_release);
  body_.store(&fn, std::memory_order_release);
  chunks_.store(chunks, std::memory_order_release);
  done_.store(0, std::memory_order_release);
  ticket_.store(static_cast<uint64_t>(epoch) << 32, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_release);
  epoch_.notify_all();
  drain(epoch, 0);
  int spins = 0;
  while (done_.load(std::memory_order_acquire) != chunks) {
    // A worker may have been descheduled in its last chunk: give the core away rather than spin against it.
    if (++spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::run_ranges(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> fn) {
  DI_CHECK(grain >= 1, "grain = {}", grain);
  run((n + grain - 1) / grain, [&](int64_t chunk, int thread) { fn(chunk * grain, std::min(n, (chunk + 1) * grain), thread); });
}

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace deepinfer
