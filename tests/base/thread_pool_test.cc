#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace deepinfer {
namespace {

TEST(ThreadPool, EveryChunkRunsOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 3, 17, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      pool.run(n, [&](int64_t chunk, int thread) {
        EXPECT_LT(thread, threads);
        seen[static_cast<size_t>(chunk)].fetch_add(1);
      });
      for (const auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
  }
}

// Many short loops in a row: a worker that wakes late must not touch the next loop's data.
TEST(ThreadPool, ManyShortLoops) {
  ThreadPool pool(4);
  for (int i = 0; i < 20000; ++i) {
    int64_t data[3] = {0, 0, 0};
    pool.run(3, [&](int64_t chunk, int) { data[chunk] = i + chunk; });
    for (int64_t c = 0; c < 3; ++c) ASSERT_EQ(data[c], i + c);
  }
}

// A small loop whose last chunk a worker finishes, then a larger one at once: the worker still holds the ticket of the small loop
// and must not take a chunk by the size of the large one (it would be run twice, and counted). More threads than cores, so that a
// worker is descheduled at the wrong moment now and then.
TEST(ThreadPool, LoopsOfChangingSize) {
  ThreadPool pool(4);
  std::atomic<int64_t> ran{0};
  int64_t expected = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (std::chrono::steady_clock::now() < until) {
    for (int i = 0; i < 100; ++i) {
      const auto body = [&](int64_t, int) {
        for (volatile int spin = 0; spin < 30;) spin = spin + 1;
        ran.fetch_add(1, std::memory_order_relaxed);
      };
      pool.run(4, body);
      pool.run(9, body);
      expected += 13;
    }
    ASSERT_EQ(ran.load(), expected);
  }
}

TEST(ThreadPool, RangesCoverTheLoop) {
  ThreadPool pool(3);
  std::vector<int> hit(1001, 0);
  pool.run_ranges(1001, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) ++hit[static_cast<size_t>(i)];
  });
  for (int h : hit) EXPECT_EQ(h, 1);
}

}  // namespace
}  // namespace deepinfer
