#include <gtest/gtest.h>

#include <string>

#include "cache/cache_fixture.h"
#include "testing/allocation_counter.h"

namespace deepinfer {
namespace {

// Requests come and go in a cache that is full, each one hitting a part, evicting and publishing. After the first ones have made
// room for their tables, none allocates.
TEST(Cache, SteadyStateDoesNotAllocate) {
  if (!testing::kCountsAllocations) GTEST_SKIP() << "sanitizers have their own operator new";
  constexpr int64_t kPages = 8;
  const auto cache = testing::make_cache(40);
  std::vector<std::vector<PrefixKey>> prompts;
  for (int i = 0; i < 12; ++i) prompts.push_back(testing::keys_of(std::to_string(i), kPages));
  int64_t warm = 0;
  for (int round = 0; round < 3000; ++round) {
    if (round == 50) warm = testing::allocations_made();
    const double now = round;
    const auto& keys = prompts[static_cast<size_t>(round * 7 % 12)];
    PageTable table = cache->new_table(round % 3 == 0 ? CacheClass::kAgent : CacheClass::kChat);
    const PrefixMatch match = cache->match(keys, false);
    ASSERT_TRUE(table.adopt(keys, match.pages).ok());
    ASSERT_TRUE(table.grow(kPages - match.pages, now));
    table.publish(keys, true, now);
    const PageTable fork = table.fork(kPages / 2);
    if (round % 2 == 0) table.release(now);
    cache->expire(now);
  }
  EXPECT_EQ(testing::allocations_made() - warm, 0);
  EXPECT_GT(cache->stats().evicted[0], 1000);
}

}  // namespace
}  // namespace deepinfer
