#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "cache/cache_fixture.h"

namespace deepinfer::testing {
namespace {

TEST(CacheClass, NamesRoundTrip) {
  for (const CacheClass c : {CacheClass::kChat, CacheClass::kAgent, CacheClass::kPinned}) {
    EXPECT_EQ(*parse_cache_class(cache_class_name(c)), c);
  }
  EXPECT_EQ(cache_class_name(CacheClass::kAgent), "agent");
  EXPECT_EQ(miss_reason_name(MissReason::kInexact), "inexact");
}

TEST(CacheClass, UnknownNamesAreRefused) {
  for (const std::string& name : {std::string(), std::string("Chat"), std::string("chat "), std::string(100000, 'x')}) {
    const auto parsed = parse_cache_class(name);
    ASSERT_FALSE(parsed.has_value()) << name;
    EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message().find("chat, agent or pinned"), std::string::npos);
    EXPECT_LT(parsed.error().message().size(), 100u);
  }
}

TEST(KvCacheOptions, FieldsOutOfRangeAreNamed) {
  const double nan = std::nan("");
  struct Case {
    KvCacheOptions options;
    const char* field;
  };
  for (const Case& c :
       {Case{{.chat_ttl_seconds = -1}, "chat_ttl_seconds: -1"}, Case{{.chat_ttl_seconds = nan}, "chat_ttl_seconds: nan"},
        Case{{.chat_ttl_seconds = 10, .agent_ttl_seconds = 5}, "agent_ttl_seconds: 5, must be at least chat_ttl_seconds, 10"},
        Case{{.agent_ttl_seconds = nan}, "agent_ttl_seconds: nan"},
        Case{{.max_pinned_fraction = 1.5}, "max_pinned_fraction: 1.5"},
        Case{{.max_pinned_fraction = -0.1}, "max_pinned_fraction: -0.1"},
        Case{{.max_pinned_fraction = nan}, "max_pinned_fraction: nan"}}) {
    const Status status = c.options.validate();
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find(c.field), std::string::npos) << status.message();
    EXPECT_FALSE(KvCache::Create(*PagePool::Create(64, 64), c.options).has_value());
  }
  EXPECT_TRUE(KvCacheOptions{}.validate().ok());
  const double forever = std::numeric_limits<double>::infinity();
  EXPECT_TRUE((KvCacheOptions{.chat_ttl_seconds = 0, .agent_ttl_seconds = forever, .max_pinned_fraction = 1}.validate().ok()));
}

TEST(KvCache, EmptyCacheHitsNothing) {
  const auto cache = make_cache(10);
  EXPECT_EQ(cache->total_pages(), 10);
  EXPECT_EQ(cache->free_pages(), 10);
  EXPECT_EQ(cache->available(), 10);
  const PrefixMatch match = cache->match(keys_of("a", 3), false);
  EXPECT_EQ(match.pages, 0);
  EXPECT_EQ(match.evictable, 0);
  EXPECT_TRUE(match.exact);
  EXPECT_EQ(match.reason, MissReason::kNotCached);
  EXPECT_EQ(cache->match({}, false).reason, MissReason::kTooShort);
  cache->check_invariants();
}

TEST(KvCache, MatchIsTheLongestRun) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 6);
  remember(*cache, first(keys, 4), CacheClass::kChat, 1);
  cache->check_invariants();
  EXPECT_EQ(cache->match(first(keys, 3), false).pages, 3);
  EXPECT_EQ(cache->match(first(keys, 3), false).reason, MissReason::kNone);
  EXPECT_EQ(cache->match(keys, false).pages, 4);
  EXPECT_EQ(cache->match(keys, false).reason, MissReason::kNotCached);
  EXPECT_EQ(cached(*cache, keys_of("b", 6)), 0);             // another salt
  EXPECT_EQ(cached(*cache, std::span(keys).subspan(1)), 3);  // keys name their prefix: the caller's run is what is looked for
}

// For prompts of every length around page boundaries: what is published is found, and not a page more.
TEST(KvCache, HitsAtEveryBoundary) {
  constexpr int64_t kPositions = 128;
  const PrefixHasher hasher = test_hasher();
  const PrefixKey root = hasher.root("tenant", "model");
  std::vector<int32_t> tokens(kPositions * 5 + 2);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto keys_at = [&](int64_t count) {
    return page_keys(hasher, root, std::span(tokens).first(static_cast<size_t>(count)), kPositions);
  };
  for (int64_t boundary = 0; boundary <= 5; ++boundary) {
    for (int64_t offset = -1; offset <= 1; ++offset) {
      const int64_t written = boundary * kPositions + offset;
      if (written < 0) continue;
      const auto cache = make_cache(16);
      PageTable table = cache->new_table(CacheClass::kChat);
      ASSERT_TRUE(table.grow((written + kPositions - 1) / kPositions, 0));
      table.publish(keys_at(written), true, 0);
      table.release(0);
      for (int64_t other = 0; other <= 5; ++other) {
        for (int64_t distance = -1; distance <= 1; ++distance) {
          const int64_t asked = other * kPositions + distance;
          if (asked < 0) continue;
          const auto keys = keys_at(asked);
          const PrefixMatch match = cache->match(keys, true);
          EXPECT_EQ(match.pages, std::min(written, asked) / kPositions) << written << " " << asked;
          PageTable second = cache->new_table(CacheClass::kChat, true);
          EXPECT_TRUE(second.adopt(keys, match.pages).ok());
        }
      }
      cache->check_invariants();
    }
  }
}

TEST(KvCache, EvictablePagesAreThoseOfTheIndexAlone) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 4);
  remember(*cache, keys, CacheClass::kChat, 0);
  EXPECT_EQ(cache->match(keys, false).evictable, 4);
  EXPECT_EQ(cache->available(), 10);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.adopt(keys, 3).ok());
  EXPECT_EQ(cache->match(keys, false).evictable, 1);
  EXPECT_EQ(cache->available(), 7);  // what match().evictable said
}

TEST(KvCache, InexactPagesAreRefusedWhereExactOnesAreAskedFor) {
  const auto cache = make_cache(20);
  const auto keys = keys_of("a", 6);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.grow(5, 0));
  table.publish(first(keys, 2), true, 0);
  EXPECT_TRUE(table.exact());
  table.publish(first(keys, 5), false, 0);
  EXPECT_FALSE(table.exact());

  PrefixMatch match = cache->match(keys, true);
  EXPECT_EQ(match.pages, 2);
  EXPECT_TRUE(match.exact);
  EXPECT_EQ(match.inexact_refused, 3);
  EXPECT_EQ(match.reason, MissReason::kInexact);
  match = cache->match(keys, false);
  EXPECT_EQ(match.pages, 5);
  EXPECT_FALSE(match.exact);
  EXPECT_EQ(match.inexact_refused, 0);
  EXPECT_EQ(match.reason, MissReason::kNotCached);

  PageTable exact = cache->new_table(CacheClass::kChat, true);
  const Status status = exact.adopt(keys, 3);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("page 2 of 3 is inexact"), std::string::npos) << status.message();
  EXPECT_EQ(exact.size(), 0);
  EXPECT_TRUE(exact.adopt(keys, 2).ok());
  cache->check_invariants();
}

TEST(KvCache, WithoutPrefixCachingNothingIsKept) {
  const auto cache = make_cache(5, {.enable_prefix_caching = false});
  const auto keys = keys_of("a", 3);
  PageTable table = computed(*cache, keys, CacheClass::kPinned, 0);
  EXPECT_EQ(table.published(), 0);
  EXPECT_EQ(cache->match(keys, false).reason, MissReason::kDisabled);
  EXPECT_EQ(cache->match(keys, false).pages, 0);
  PageTable other = cache->new_table(CacheClass::kChat);
  EXPECT_TRUE(other.adopt(keys, 0).ok());
  EXPECT_EQ(other.adopt(keys, 1).code(), StatusCode::kNotFound);
  table.release(0);
  EXPECT_EQ(cache->free_pages(), 5);
  EXPECT_EQ(cache->stats().inserted, 0);
  cache->check_invariants();
}

TEST(KvCache, StatsCountPagesAndQueries) {
  const auto cache = make_cache(10, {.chat_ttl_seconds = 10, .agent_ttl_seconds = 20});
  const auto a = keys_of("a", 3);
  const auto b = keys_of("b", 2);
  remember(*cache, a, CacheClass::kChat, 0);
  remember(*cache, b, CacheClass::kAgent, 0);
  PageTable table = cache->new_table(CacheClass::kAgent);
  ASSERT_TRUE(table.adopt(a, 1).ok());
  ASSERT_TRUE(table.grow(2, 0));
  PageTable miss = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(miss.adopt(keys_of("c", 4), 0).ok());

  KvCacheStats stats = cache->stats();
  EXPECT_EQ(stats.total_pages, 10);
  EXPECT_EQ(stats.free_pages, 3);
  EXPECT_EQ(stats.sequence_pages, 3);
  EXPECT_EQ(stats.cached_pages, (KvCacheStats::PerClass{2, 2, 0}));
  EXPECT_EQ(stats.referenced_pages, (KvCacheStats::PerClass{0, 1, 0}));
  EXPECT_EQ(stats.available_pages, 7);
  EXPECT_EQ(stats.queries, 2);
  EXPECT_EQ(stats.queried_pages, 7);
  EXPECT_EQ(stats.hit_pages, 1);
  EXPECT_EQ(stats.hits, (KvCacheStats::PerClass{0, 1, 0}));
  EXPECT_EQ(stats.inserted, 5);

  EXPECT_EQ(cache->expire(10), 2);
  ASSERT_TRUE(table.grow(6, 11));  // takes one of b
  table.release(12);
  cache->clear();
  stats = cache->stats();
  EXPECT_EQ(stats.expired, (KvCacheStats::PerClass{2, 0, 0}));
  EXPECT_EQ(stats.evicted, (KvCacheStats::PerClass{0, 1, 0}));
  EXPECT_EQ(stats.cleared, 2);
  EXPECT_EQ(stats.free_pages, 10);
  EXPECT_EQ(stats.sequence_pages, 0);
}

TEST(KvCacheDeathTest, TablesMustGoFirst) {
  auto cache = make_cache(2);
  PageTable table = cache->new_table(CacheClass::kChat);
  EXPECT_DEATH(cache.reset(), "1 page tables outlive their cache");
}

}  // namespace
}  // namespace deepinfer::testing
