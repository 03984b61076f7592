#include "cache/page_table.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "cache/cache_fixture.h"

namespace deepinfer::testing {
namespace {

static_assert(!std::is_copy_constructible_v<PageTable> && !std::is_copy_assignable_v<PageTable>);

std::vector<uint8_t*> pages_of(const PageTable& table) { return {table.data().begin(), table.data().end()}; }

TEST(PageTable, GrowIsAllOrNothing) {
  const auto cache = make_cache(5);
  PageTable table = cache->new_table(CacheClass::kChat);
  EXPECT_TRUE(table.grow(0, 0));
  EXPECT_TRUE(table.grow(3, 0));
  const auto before = pages_of(table);
  EXPECT_FALSE(table.grow(3, 0));
  EXPECT_FALSE(table.grow(std::numeric_limits<int64_t>::max(), 0));
  EXPECT_EQ(pages_of(table), before);
  EXPECT_EQ(cache->free_pages(), 2);
  EXPECT_TRUE(table.grow(2, 0));
  EXPECT_EQ(table.size(), 5);
  EXPECT_EQ(cache->available(), 0);
  cache->check_invariants();
}

TEST(PageTable, FailedGrowEvictsNothing) {
  const auto cache = make_cache(5);
  const auto keys = keys_of("a", 3);
  remember(*cache, keys, CacheClass::kChat, 0);
  PageTable table = cache->new_table(CacheClass::kChat);
  EXPECT_FALSE(table.grow(6, 0));
  EXPECT_EQ(cached(*cache, keys), 3);
  EXPECT_TRUE(table.grow(5, 0));
  EXPECT_EQ(cached(*cache, keys), 0);
}

TEST(PageTable, AdoptedPagesAreTheSamePages) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 4);
  PageTable writer = computed(*cache, keys, CacheClass::kChat, 0);
  PageTable reader = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(reader.adopt(keys, 3).ok());
  EXPECT_EQ(reader.size(), 3);
  EXPECT_EQ(reader.published(), 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(reader.data()[i], writer.data()[i]);
  EXPECT_EQ(cache->free_pages(), 6);  // no copy
  writer.release(1);
  EXPECT_EQ(cache->available(), 7);
  cache->check_invariants();
  ASSERT_TRUE(reader.grow(2, 1));
  EXPECT_NE(reader.data()[3], nullptr);
  cache->check_invariants();
}

TEST(PageTable, AdoptRefusesWhatIsNotThere) {
  const auto cache = make_cache(10);
  const auto a = keys_of("a", 4);
  const auto b = keys_of("b", 4);
  remember(*cache, first(a, 3), CacheClass::kChat, 0);
  remember(*cache, first(b, 3), CacheClass::kChat, 0);
  PageTable table = cache->new_table(CacheClass::kChat);
  EXPECT_EQ(table.adopt(a, -1).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(table.adopt(a, 5).code(), StatusCode::kOutOfRange);
  const Status missing = table.adopt(a, 4);
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("page 3 of 4"), std::string::npos) << missing.message();
  EXPECT_EQ(table.adopt(std::span(a).subspan(1), 1).code(), StatusCode::kInvalidArgument);
  const std::vector<PrefixKey> mixed = {a[0], b[1]};
  EXPECT_EQ(table.adopt(mixed, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(table.published(), 0);
  EXPECT_EQ(cache->stats().queries, 0);
  cache->check_invariants();
  ASSERT_TRUE(table.adopt(a, 3).ok());
  EXPECT_EQ(table.adopt(a, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.size(), 3);
}

TEST(PageTable, PublishGoesOnWhereItStopped) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 5);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.grow(5, 0));
  table.publish(first(keys, 2), true, 0);
  EXPECT_EQ(table.published(), 2);
  table.publish(first(keys, 1), true, 0);  // nothing new
  table.publish(first(keys, 2), true, 0);
  EXPECT_EQ(cache->stats().inserted, 2);
  table.publish(keys, true, 0);
  EXPECT_EQ(table.published(), 5);
  EXPECT_EQ(cache->stats().inserted, 5);
  cache->check_invariants();

  PageTable next = cache->new_table(CacheClass::kChat);
  const auto longer = keys_of("a", 7);
  ASSERT_TRUE(next.adopt(longer, 5).ok());
  ASSERT_TRUE(next.grow(2, 0));
  next.publish(longer, true, 0);
  EXPECT_EQ(cache->stats().inserted, 7);
  EXPECT_EQ(cache->stats().duplicates, 0);
  cache->check_invariants();
}

// Two sequences compute one prompt at the same time. Both keep their pages, one copy stays in the index, and the chain stays
// as long as either lives.
TEST(PageTable, DuplicatesOfConcurrentSequences) {
  const auto cache = make_cache(12);
  const auto keys = keys_of("a", 5);
  PageTable one = cache->new_table(CacheClass::kChat);
  PageTable two = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(one.grow(4, 0));
  ASSERT_TRUE(two.grow(5, 0));
  const auto pages = pages_of(two);
  one.publish(first(keys, 4), true, 0);
  two.publish(first(keys, 4), true, 0);
  EXPECT_EQ(cache->stats().duplicates, 4);
  EXPECT_EQ(pages_of(two), pages);
  cache->check_invariants();

  one.release(1);
  EXPECT_EQ(cache->available(), 3);  // its pages are cached, and their entries in use by the other
  EXPECT_EQ(cache->stats().referenced_pages[0], 4);
  two.publish(keys, true, 2);  // behind entries whose pages are not its own
  cache->check_invariants();
  PageTable filler = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(filler.grow(3, 3));
  EXPECT_EQ(cached(*cache, keys), 5);
  filler.release(3);
  two.release(4);
  EXPECT_EQ(cache->available(), 12);
  EXPECT_EQ(cache->free_pages(), 7);
  cache->check_invariants();
}

TEST(PageTable, ExactReplacesInexact) {
  const auto cache = make_cache(12);
  const auto keys = keys_of("a", 3);
  PageTable inexact = computed(*cache, keys, CacheClass::kChat, 0, false);
  PageTable adopter = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(adopter.adopt(keys, 2).ok());
  EXPECT_FALSE(adopter.exact());
  const auto old_pages = pages_of(adopter);
  PageTable exact = computed(*cache, first(keys, 2), CacheClass::kChat, 1, true);
  cache->check_invariants();
  EXPECT_EQ(cache->stats().replaced, 2);
  EXPECT_EQ(cache->match(keys, true).pages, 2);
  EXPECT_EQ(cache->match(keys, true).inexact_refused, 1);
  EXPECT_EQ(pages_of(adopter), old_pages);  // in use, so they stay where they are

  PageTable reader = cache->new_table(CacheClass::kChat, true);
  ASSERT_TRUE(reader.adopt(keys, 2).ok());
  EXPECT_EQ(pages_of(reader), pages_of(exact));
  // The old pages go with the last sequence that uses them; page 2 stays in the index.
  const int64_t before = cache->free_pages();
  adopter.release(2);
  EXPECT_EQ(cache->free_pages(), before);
  inexact.release(2);
  EXPECT_EQ(cache->free_pages(), before + 2);
  cache->check_invariants();
}

TEST(PageTable, InexactNeverReplacesExact) {
  const auto cache = make_cache(12);
  const auto keys = keys_of("a", 3);
  PageTable exact = computed(*cache, first(keys, 2), CacheClass::kChat, 0, true);
  PageTable inexact = computed(*cache, first(keys, 2), CacheClass::kChat, 0, false);
  EXPECT_EQ(cache->match(keys, true).pages, 2);
  EXPECT_EQ(cache->stats().duplicates, 2);
  // Its own pages are inexact all the same, and so is what follows, whatever the caller says.
  ASSERT_TRUE(inexact.grow(1, 0));
  inexact.publish(keys, true, 0);
  EXPECT_EQ(cache->match(keys, true).pages, 2);
  EXPECT_EQ(cache->match(keys, false).pages, 3);
  cache->check_invariants();
}

TEST(PageTable, PagesAfterAdoptedInexactOnesAreInexact) {
  const auto cache = make_cache(12);
  const auto keys = keys_of("a", 3);
  remember(*cache, first(keys, 1), CacheClass::kChat, 0, false);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.adopt(keys, 1).ok());
  // Even when another sequence has made the entry exact meanwhile.
  remember(*cache, first(keys, 1), CacheClass::kChat, 0, true);
  ASSERT_TRUE(table.grow(2, 0));
  table.publish(keys, true, 0);
  EXPECT_EQ(cache->match(keys, true).pages, 1);
  EXPECT_EQ(cache->match(keys, false).pages, 3);
  cache->check_invariants();
}

TEST(PageTable, ShrinkGivesPrivatePagesBack) {
  const auto cache = make_cache(8);
  const auto keys = keys_of("a", 2);
  PageTable table = computed(*cache, keys, CacheClass::kChat, 0);
  ASSERT_TRUE(table.grow(4, 0));
  table.shrink(0);
  table.shrink(3);
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(table.data().size(), 3u);
  EXPECT_EQ(cache->free_pages(), 5);
  table.shrink(1);
  cache->check_invariants();
  EXPECT_DEATH(table.shrink(1), "shrink by 1 of 2 pages, 2 published");
  EXPECT_DEATH(table.shrink(-1), "shrink by -1");
}

TEST(PageTable, ForkSharesPages) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 4);
  PageTable table = cache->new_table(CacheClass::kAgent, true);
  ASSERT_TRUE(table.grow(5, 0));
  table.publish(first(keys, 2), true, 0);
  PageTable fork = table.fork(4);
  EXPECT_EQ(fork.size(), 4);
  EXPECT_EQ(fork.published(), 2);
  EXPECT_EQ(fork.cache_class(), CacheClass::kAgent);
  EXPECT_EQ(cache->free_pages(), 5);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(fork.data()[i], table.data()[i]);
  cache->check_invariants();
  // Both publish the pages they share.
  fork.publish(keys, true, 0);
  table.publish(keys, true, 0);
  EXPECT_EQ(cache->stats().inserted, 4);
  EXPECT_EQ(cache->stats().duplicates, 0);
  cache->check_invariants();
  table.release(1);
  EXPECT_EQ(cache->free_pages(), 6);
  EXPECT_EQ(cache->available(), 6);
  PageTable nothing = fork.fork(0);
  EXPECT_EQ(nothing.size(), 0);
  EXPECT_DEATH(fork.fork(5), "fork 5 of 4 pages");
  fork.release(1);
  EXPECT_EQ(cache->available(), 10);
  cache->check_invariants();
}

TEST(PageTable, ForkOfInexactPagesIsInexact) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 4);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.grow(3, 0));
  table.publish(first(keys, 1), true, 0);
  table.publish(first(keys, 3), false, 0);
  EXPECT_TRUE(table.fork(1).exact());
  PageTable fork = table.fork(2);
  EXPECT_FALSE(fork.exact());
  ASSERT_TRUE(fork.grow(1, 0));
  fork.publish(first(keys, 3), true, 0);  // must not replace page 2
  EXPECT_EQ(cache->match(keys, true).pages, 1);
  EXPECT_EQ(cache->stats().replaced, 0);
  cache->check_invariants();
}

// A page that one of two forks published is held by the other without a reference on the entry: evicting it frees nothing.
TEST(PageTable, PagesThatAForkHoldsUnpublishedAreNotAvailable) {
  const auto cache = make_cache(4);
  const auto keys = keys_of("a", 2);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.grow(2, 0));
  PageTable fork = table.fork(2);
  table.publish(keys, true, 0);
  table.release(0);
  EXPECT_EQ(cache->available(), 2);
  EXPECT_EQ(cache->match(keys, false).evictable, 0);
  cache->check_invariants();
  fork.shrink(1);
  EXPECT_EQ(cache->available(), 3);
  cache->check_invariants();
  PageTable other = cache->new_table(CacheClass::kChat);
  EXPECT_FALSE(other.grow(4, 0));
  EXPECT_TRUE(other.grow(3, 0));
  cache->check_invariants();
  fork.publish(first(keys, 1), true, 0);
  fork.release(0);
  EXPECT_EQ(cache->available(), 1);
  EXPECT_EQ(cached(*cache, keys), 1);
  cache->check_invariants();
}

// One page under two claims: what was published as inexact stays so, and nothing exact can stand behind it.
TEST(PageTable, ForksThatDisagreeOnExactness) {
  const auto cache = make_cache(6);
  const auto keys = keys_of("a", 3);
  PageTable table = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(table.grow(2, 0));
  PageTable fork = table.fork(2);
  table.publish(first(keys, 2), false, 0);
  ASSERT_TRUE(fork.grow(1, 0));
  fork.publish(keys, true, 0);
  EXPECT_FALSE(fork.exact());
  EXPECT_EQ(cache->match(keys, true).pages, 0);
  EXPECT_EQ(cache->match(keys, false).pages, 3);
  cache->check_invariants();
}

TEST(PageTable, ReleaseAndDestructionGiveEverythingBack) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 2);
  {
    PageTable table = computed(*cache, keys, CacheClass::kChat, 0);
    ASSERT_TRUE(table.grow(3, 0));
    table.release(0);
    EXPECT_EQ(table.size(), 0);
    EXPECT_EQ(table.published(), 0);
    EXPECT_TRUE(table.valid());
    EXPECT_EQ(cache->free_pages(), 8);
    ASSERT_TRUE(table.adopt(keys, 2).ok());  // resumed after a preemption
    ASSERT_TRUE(table.grow(1, 0));
  }
  EXPECT_EQ(cache->free_pages(), 8);
  EXPECT_EQ(cache->available(), 10);
  cache->check_invariants();
}

TEST(PageTable, Moves) {
  const auto cache = make_cache(10);
  PageTable a = cache->new_table(CacheClass::kChat);
  ASSERT_TRUE(a.grow(3, 0));
  PageTable b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(b.size(), 3);
  PageTable c = cache->new_table(CacheClass::kAgent);
  ASSERT_TRUE(c.grow(2, 0));
  c = std::move(b);
  EXPECT_EQ(cache->free_pages(), 7);
  PageTable& same = c;
  c = std::move(same);
  EXPECT_EQ(c.size(), 3);
  c = PageTable();
  EXPECT_EQ(cache->free_pages(), 10);
  // A new table has nothing of the one that had its place before.
  PageTable d = cache->new_table(CacheClass::kPinned);
  EXPECT_EQ(d.size(), 0);
  EXPECT_TRUE(d.exact());
  cache->check_invariants();
}

TEST(PageTableDeathTest, BrokenContracts) {
  const auto cache = make_cache(10);
  const auto keys = keys_of("a", 3);
  PageTable table = computed(*cache, first(keys, 2), CacheClass::kChat, 0);
  EXPECT_DEATH(table.publish(keys, true, 0), "3 keys of 2 pages");
  ASSERT_TRUE(table.grow(2, 0));
  EXPECT_DEATH(table.publish(keys_of("b", 3), true, 0), "have changed");
  EXPECT_DEATH((void)table.grow(-1, 0), "grow by -1");
}

}  // namespace
}  // namespace deepinfer::testing
