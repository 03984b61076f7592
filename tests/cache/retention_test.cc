// What stays in the cache when nobody uses it, and for how long.

#include <gtest/gtest.h>

#include <string>

#include "cache/cache_fixture.h"

namespace deepinfer::testing {
namespace {

// Takes `pages` from the cache for a moment.
void squeeze(KvCache& cache, int64_t pages, double now) {
  PageTable table = cache.new_table(CacheClass::kChat);
  EXPECT_TRUE(table.grow(pages, now));
  cache.check_invariants();
}

int64_t stays(const KvCache& cache, const std::string& salt) { return cached(cache, keys_of(salt, 8)); }

TEST(Retention, LeastRecentlyUsedGoesFirst) {
  const auto cache = make_cache(8);
  for (const char* salt : {"a", "b", "c"}) remember(*cache, keys_of(salt, 2), CacheClass::kChat, 0);
  PageTable user = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(user.adopt(keys_of("a", 2), 2).ok());
  user.release(1);
  squeeze(*cache, 4, 2);
  EXPECT_EQ(stays(*cache, "b"), 0);
  EXPECT_EQ(stays(*cache, "c"), 2);
  EXPECT_EQ(stays(*cache, "a"), 2);
  squeeze(*cache, 6, 3);
  EXPECT_EQ(stays(*cache, "c"), 0);
  EXPECT_EQ(stays(*cache, "a"), 2);
}

TEST(Retention, LastPagesGoFirst) {
  const auto cache = make_cache(6);
  remember(*cache, keys_of("a", 6), CacheClass::kChat, 0);
  for (int64_t left = 5; left >= 0; --left) {
    squeeze(*cache, 6 - left, 1);
    EXPECT_EQ(stays(*cache, "a"), left);
  }
}

// Two prompts with a common start: the branches go before the trunk, whichever was used last.
TEST(Retention, BranchesGoBeforeTheTrunk) {
  const PrefixHasher hasher = test_hasher();
  const PrefixKey root = hasher.root("", "");
  const std::vector<int32_t> left = {1, 2, 3, 4};
  const std::vector<int32_t> right = {1, 2, 8, 9};
  const auto a = page_keys(hasher, root, left, 1);
  const auto b = page_keys(hasher, root, right, 1);
  const auto cache = make_cache(6);
  remember(*cache, a, CacheClass::kChat, 0);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.adopt(b, 2).ok());
  ASSERT_TRUE(table.grow(2, 1));
  table.publish(b, true, 1);
  table.release(1);
  cache->check_invariants();
  squeeze(*cache, 2, 2);
  EXPECT_EQ(cached(*cache, a), 2);
  EXPECT_EQ(cached(*cache, b), 4);
  squeeze(*cache, 4, 2);
  EXPECT_EQ(cached(*cache, b), 2);
  squeeze(*cache, 5, 2);
  EXPECT_EQ(cached(*cache, b), 1);
}

// At one time, with equal times to live: the start of the prompt has the higher class and must outlive the rest.
TEST(Retention, TheLowerClassGoesFirstOfEqualEnds) {
  const auto cache = make_cache(4, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 10});
  const auto keys = keys_of("a", 4);
  remember(*cache, keys, CacheClass::kChat, 0);
  PageTable agent = cache->new_table(CacheClass::kAgent);
  ASSERT_TRUE(agent.adopt(keys, 2).ok());
  agent.release(0);
  squeeze(*cache, 1, 0);
  EXPECT_EQ(cached(*cache, keys), 3);
  EXPECT_EQ(cache->expire(10), 3);
}

TEST(Retention, ChatGoesBeforeAgent) {
  const auto cache = make_cache(4);
  remember(*cache, keys_of("agent", 2), CacheClass::kAgent, 0);
  remember(*cache, keys_of("chat", 2), CacheClass::kChat, 100);
  squeeze(*cache, 2, 101);
  EXPECT_EQ(stays(*cache, "chat"), 0);
  EXPECT_EQ(stays(*cache, "agent"), 2);
  EXPECT_EQ(cache->stats().evicted, (KvCacheStats::PerClass{2, 0, 0}));
}

// Not for ever: an agent page that expires sooner than a chat page goes first.
TEST(Retention, TheEarlierEndGoesFirst) {
  const auto cache = make_cache(4, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 100});
  remember(*cache, keys_of("agent", 2), CacheClass::kAgent, 0);  // until 100
  remember(*cache, keys_of("chat", 2), CacheClass::kChat, 95);   // until 105
  squeeze(*cache, 2, 96);
  EXPECT_EQ(stays(*cache, "agent"), 0);
  EXPECT_EQ(stays(*cache, "chat"), 2);
}

TEST(Retention, ExpiredPagesGoFirst) {
  const auto cache = make_cache(4, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 100});
  remember(*cache, keys_of("agent", 2), CacheClass::kAgent, 0);
  remember(*cache, keys_of("chat", 2), CacheClass::kChat, 5);
  squeeze(*cache, 1, 20);
  EXPECT_EQ(stays(*cache, "chat"), 1);
  EXPECT_EQ(cache->stats().expired, (KvCacheStats::PerClass{1, 0, 0}));
  EXPECT_EQ(cache->stats().evicted, (KvCacheStats::PerClass{0, 0, 0}));
}

TEST(Retention, TimeToLiveCountsFromTheLastUse) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30});
  remember(*cache, keys_of("chat", 2), CacheClass::kChat, 0);
  remember(*cache, keys_of("agent", 2), CacheClass::kAgent, 0);
  EXPECT_EQ(cache->expire(9.5), 0);
  PageTable user = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(user.adopt(keys_of("chat", 2), 1).ok());
  EXPECT_EQ(cache->expire(10), 1);  // the second page
  cache->check_invariants();
  EXPECT_EQ(cache->expire(25), 0);  // in use, however long
  user.release(25);
  EXPECT_EQ(cache->expire(30), 2);
  EXPECT_EQ(stays(*cache, "chat"), 1);
  EXPECT_EQ(cache->expire(34), 0);
  EXPECT_EQ(cache->expire(35), 1);
  EXPECT_EQ(cache->free_pages(), 10);
  EXPECT_EQ(cache->stats().expired, (KvCacheStats::PerClass{2, 2, 0}));
}

TEST(Retention, DestructionIsAUseAtTheLatestTime) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30});
  {
    PageTable table = computed(*cache, keys_of("a", 2), CacheClass::kChat, 0);
    cache->expire(7);
  }
  EXPECT_EQ(cache->expire(16), 0);
  EXPECT_EQ(cache->expire(17), 2);
}

TEST(Retention, TimeDoesNotRunBackwards) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30});
  remember(*cache, keys_of("a", 2), CacheClass::kChat, 100);
  remember(*cache, keys_of("b", 2), CacheClass::kChat, 50);  // at 100
  cache->check_invariants();
  EXPECT_EQ(cache->expire(109), 0);
  EXPECT_EQ(cache->expire(std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(cache->expire(110), 4);
}

TEST(Retention, TheHighestClassOfAllUsersCounts) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30});
  const auto keys = keys_of("a", 3);
  remember(*cache, keys, CacheClass::kChat, 0);
  PageTable agent = cache->new_table(CacheClass::kAgent);
  ASSERT_TRUE(agent.adopt(keys, 2).ok());
  agent.release(0);
  PageTable chat = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(chat.adopt(keys, 2).ok());
  chat.release(0);
  cache->check_invariants();
  EXPECT_EQ(cache->stats().cached_pages, (KvCacheStats::PerClass{1, 2, 0}));
  EXPECT_EQ(cache->expire(10), 1);
  EXPECT_EQ(cache->expire(30), 2);
}

TEST(Retention, PinnedPagesStay) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30});
  const auto keys = keys_of("a", 4);
  remember(*cache, keys, CacheClass::kPinned, 0);
  EXPECT_EQ(cache->available(), 6);
  EXPECT_EQ(cache->match(keys, false).evictable, 0);
  EXPECT_EQ(cache->expire(1e9), 0);
  PageTable table = cache->new_table(CacheClass::kChat);
  EXPECT_FALSE(table.grow(7, 1e9));
  EXPECT_TRUE(table.grow(6, 1e9));
  EXPECT_EQ(cached(*cache, keys), 4);
  EXPECT_EQ(cache->stats().pins_refused, 0);
  cache->check_invariants();
  cache->clear();
  EXPECT_EQ(cached(*cache, keys), 0);
  cache->check_invariants();
}

TEST(Retention, PinsBeyondTheLimitAreAgentPages) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30, .max_pinned_fraction = 0.35});
  const auto a = keys_of("a", 5);
  remember(*cache, a, CacheClass::kPinned, 0);
  cache->check_invariants();
  KvCacheStats stats = cache->stats();
  EXPECT_EQ(stats.cached_pages, (KvCacheStats::PerClass{0, 2, 3}));
  EXPECT_EQ(stats.pins_refused, 2);
  EXPECT_EQ(cache->available(), 7);
  EXPECT_EQ(cache->expire(30), 2);
  EXPECT_EQ(cached(*cache, a), 3);
  // Another prompt finds no room.
  remember(*cache, keys_of("b", 2), CacheClass::kPinned, 40);
  EXPECT_EQ(cache->stats().pins_refused, 4);
  EXPECT_EQ(cache->expire(70), 2);
}

// A place that becomes free while a sequence runs must not pin a page behind one that is not pinned.
TEST(Retention, NoPinBehindARefusedOne) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30, .max_pinned_fraction = 0.2});
  const auto a = keys_of("a", 2);
  const auto b = keys_of("b", 3);
  remember(*cache, a, CacheClass::kPinned, 0);
  PageTable table = cache->new_table(CacheClass::kPinned);
  ASSERT_TRUE(table.grow(3, 0));
  table.publish(first(b, 2), true, 0);
  EXPECT_EQ(cache->unpin(a, 0), 2);
  table.publish(b, true, 0);
  cache->check_invariants();
  EXPECT_EQ(cache->stats().pins_refused, 3);
  EXPECT_EQ(cache->stats().referenced_pages, (KvCacheStats::PerClass{0, 3, 0}));
  table.release(0);
  // The next one to use the prompt pins it from the start.
  remember(*cache, b, CacheClass::kPinned, 0);
  EXPECT_EQ(cache->stats().cached_pages, (KvCacheStats::PerClass{0, 3, 2}));
  cache->check_invariants();
}

TEST(Retention, UnpinnedPagesAreAgentPagesUsedNow) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30});
  const auto keys = keys_of("a", 4);
  remember(*cache, keys, CacheClass::kPinned, 0);
  EXPECT_EQ(cache->unpin(first(keys, 2), 50), 0);  // pages behind them are pinned
  EXPECT_EQ(cache->unpin(keys_of("b", 4), 50), 0);
  EXPECT_EQ(cache->unpin(keys_of("a", 8), 50), 4);  // keys that are not cached do not matter
  cache->check_invariants();
  EXPECT_EQ(cache->available(), 10);
  EXPECT_EQ(cache->expire(79), 0);
  EXPECT_EQ(cache->expire(80), 4);
}

TEST(Retention, UnpinKeepsWhatOtherPinsNeed) {
  const PrefixHasher hasher = test_hasher();
  const PrefixKey root = hasher.root("", "");
  const std::vector<int32_t> left = {1, 2, 3, 4};
  const std::vector<int32_t> right = {1, 2, 8};
  const auto a = page_keys(hasher, root, left, 1);
  const auto b = page_keys(hasher, root, right, 1);
  const auto cache = make_cache(20);
  remember(*cache, a, CacheClass::kPinned, 0);
  PageTable user = computed(*cache, b, CacheClass::kPinned, 0);
  EXPECT_EQ(cache->unpin(a, 1), 2);
  cache->check_invariants();
  EXPECT_EQ(cache->unpin(b, 1), 3);  // in use
  cache->check_invariants();
  user.release(2);
  cache->check_invariants();
  EXPECT_EQ(cache->available(), 20);
}

TEST(Retention, UnpinAll) {
  const auto cache = make_cache(20);
  remember(*cache, keys_of("a", 3), CacheClass::kPinned, 0);
  remember(*cache, keys_of("b", 2), CacheClass::kAgent, 0);
  PageTable user = computed(*cache, keys_of("c", 4), CacheClass::kPinned, 0);
  PageTable part = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(part.adopt(keys_of("a", 3), 1).ok());
  EXPECT_EQ(cache->unpin_all(1), 7);
  cache->check_invariants();
  user.release(2);
  part.release(2);
  cache->check_invariants();
  EXPECT_EQ(cache->stats().cached_pages, (KvCacheStats::PerClass{0, 9, 0}));
  EXPECT_EQ(cache->unpin_all(3), 0);
}

TEST(Retention, ClearKeepsWhatIsInUse) {
  const auto cache = make_cache(20);
  const auto keys = keys_of("a", 5);
  remember(*cache, keys, CacheClass::kAgent, 0);
  remember(*cache, keys_of("b", 3), CacheClass::kPinned, 0);
  PageTable user = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(user.adopt(keys, 2).ok());
  cache->clear();
  cache->check_invariants();
  EXPECT_EQ(cached(*cache, keys), 2);
  EXPECT_EQ(cached(*cache, keys_of("b", 3)), 0);
  EXPECT_EQ(cache->free_pages(), 18);
  user.release(0);
  cache->clear();
  EXPECT_EQ(cache->free_pages(), 20);
}

// The work of an eviction is counted, not timed: entries looked at for each page that grow takes.
TEST(Retention, EvictionDoesNotDependOnTheNumberOfEntries) {
  std::vector<int64_t> steps;
  for (const int64_t prompts : {4, 64, 4096}) {
    const auto cache = make_cache(prompts * 4);
    for (int64_t i = 0; i < prompts; ++i) {
      const CacheClass c = i % 2 == 0 ? CacheClass::kAgent : CacheClass::kChat;
      remember(*cache, keys_of(std::to_string(i), 4), c, static_cast<double>(i));
    }
    EXPECT_EQ(cache->free_pages(), 0);
    const int64_t before = cache->stats().eviction_steps;
    PageTable table = cache->new_table(CacheClass::kChat);
    EXPECT_TRUE(table.grow(7, static_cast<double>(prompts)));
    steps.push_back(cache->stats().eviction_steps - before);
  }
  EXPECT_EQ(steps, std::vector<int64_t>(3, 14));
}

TEST(Retention, ExpireCostsWhatItDrops) {
  const auto cache = make_cache(4096, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30});
  remember(*cache, keys_of("old", 16), CacheClass::kChat, 0);
  remember(*cache, keys_of("new", 2000), CacheClass::kChat, 5);
  remember(*cache, keys_of("agent", 2000), CacheClass::kAgent, 5);
  const int64_t before = cache->stats().eviction_steps;
  EXPECT_EQ(cache->expire(10), 16);
  EXPECT_EQ(cache->stats().eviction_steps - before, 2 * 17);
}

}  // namespace
}  // namespace deepinfer::testing
