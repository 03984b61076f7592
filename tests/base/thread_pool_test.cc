#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
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
