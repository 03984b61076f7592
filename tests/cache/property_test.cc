// Thousands of random operations on a small cache, against a naive model of it. Every run is named by its seed alone.

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <string>

#include "cache/cache_fixture.h"
#include "cache/naive_cache.h"
#include "testing/random.h"

namespace deepinfer {
namespace {

using testing::NaiveCache;
using testing::Random;

constexpr int64_t kPositions = 2;
// Random's streams of neighbouring seeds are one stream, a draw apart. A schedule draws fewer numbers than this.
constexpr uint64_t kStreamDistance = 1'000'003;
constexpr KvCacheOptions kOptions = {.chat_ttl_seconds = 10, .agent_ttl_seconds = 30, .max_pinned_fraction = 0.3};

/// A cache, its model and the sequences that use both. Prompts are drawn from a few tenants and a few continuations of each page,
/// so that sequences often meet.
class Schedule {
 public:
  Schedule(uint64_t seed, int64_t pages)
      : random_(seed * kStreamDistance), model_(pages, kOptions), cache_(testing::make_cache(pages, kOptions)) {
    for (const char* salt : {"one", "two", "three"}) roots_.push_back(hasher_.root(salt, "model"));
  }

  void step() {
    if (random_.below(2) == 0) now_ += random_.uniform() * 3;
    const int64_t dice = random_.below(100);
    if (sequences_.empty() || (dice < 16 && sequences_.size() < 8)) {
      start();
    } else if (dice < 40) {
      grow(any());
    } else if (dice < 66) {
      publish(any());
    } else if (dice < 72) {
      fork(any());
    } else if (dice < 78) {
      shrink(any());
    } else if (dice < 82) {
      restart(any());
    } else if (dice < 92) {
      finish(any());
    } else if (dice < 97) {
      ASSERT_EQ(cache_->expire(now_), model_.expire(now_));
    } else {
      administer();
    }
  }

  void compare() {
    cache_->check_invariants();
    ASSERT_EQ(cache_->free_pages(), model_.free());
    ASSERT_EQ(cache_->available(), model_.available());
    const KvCacheStats stats = cache_->stats();
    int64_t cached = 0;
    for (size_t c = 0; c < kCacheClassCount; ++c) {
      const auto cache_class = static_cast<CacheClass>(c);
      ASSERT_EQ(stats.cached_pages[c], model_.cached(cache_class));
      ASSERT_EQ(stats.referenced_pages[c], model_.referenced(cache_class));
      cached += stats.cached_pages[c];
    }
    ASSERT_EQ(stats.free_pages + stats.sequence_pages + cached, stats.total_pages);
    for (const Sequence& s : sequences_) {
      ASSERT_EQ(s.table.size(), static_cast<int64_t>(s.model->pages.size()));
      ASSERT_EQ(s.table.published(), static_cast<int64_t>(s.model->published.size()));
      for (size_t i = 0; i < s.model->pages.size(); ++i) {
        int64_t content = 0;
        std::memcpy(&content, s.table.data()[i], sizeof(content));
        ASSERT_EQ(content, s.model->pages[i]) << "page " << i;  // shared where it should be, and written by nobody else
      }
    }
    for (const auto& [key, entry] : model_.index()) {
      ASSERT_EQ(cache_->match(std::vector<PrefixKey>{{key.first, key.second}}, true).pages, entry.exact ? 1 : 0);
    }
  }

  /// Ends all sequences; nothing may be left behind.
  void end() {
    while (!sequences_.empty()) {
      finish(sequences_.front());
      compare();
    }
    cache_->unpin_all(now_);
    EXPECT_EQ(cache_->available(), cache_->total_pages());
    cache_->clear();
    cache_->check_invariants();
    EXPECT_EQ(cache_->free_pages(), cache_->total_pages());
  }

  KvCache& cache() { return *cache_; }
  double now() const { return now_; }

 private:
  struct Sequence {
    PageTable table;
    NaiveCache::Table* model = nullptr;
    PrefixKey root;
    std::vector<int32_t> tokens;  ///< at least as many as the table has room for
  };

  Sequence& any() {
    auto it = sequences_.begin();
    std::advance(it, random_.below(static_cast<int64_t>(sequences_.size())));
    return *it;
  }
  std::vector<PrefixKey> keys(const Sequence& s, int64_t pages) const {
    return page_keys(hasher_, s.root, std::span(s.tokens).first(static_cast<size_t>(pages * kPositions)), kPositions);
  }
  void draw_tokens(Sequence& s, int64_t pages) {
    while (static_cast<int64_t>(s.tokens.size()) < pages * kPositions) {
      s.tokens.push_back(random_.below(4) == 0 ? 1 : 0);
      s.tokens.push_back(7);
    }
  }

  void start() {
    Sequence& s = sequences_.emplace_back();
    s.root = roots_[static_cast<size_t>(random_.below(static_cast<int64_t>(roots_.size())))];
    const bool exact_only = random_.below(3) == 0;
    const int64_t dice = random_.below(20);
    const CacheClass cache_class = dice < 11 ? CacheClass::kChat : dice < 18 ? CacheClass::kAgent : CacheClass::kPinned;
    s.table = cache_->new_table(cache_class, exact_only);
    s.model = &model_.add_table(cache_class, exact_only);
    adopt(s);
  }

  void adopt(Sequence& s) {
    draw_tokens(s, random_.below(8));
    const auto wanted = keys(s, static_cast<int64_t>(s.tokens.size()) / kPositions);
    const PrefixMatch match = cache_->match(wanted, s.model->exact_only);
    const PrefixMatch expected = model_.match(wanted, s.model->exact_only);
    ASSERT_EQ(match.pages, expected.pages);
    ASSERT_EQ(match.evictable, expected.evictable);
    ASSERT_EQ(match.exact, expected.exact);
    ASSERT_EQ(match.inexact_refused, expected.inexact_refused);
    ASSERT_EQ(match.reason, expected.reason);
    const int64_t count = random_.below(4) == 0 ? random_.between(0, match.pages) : match.pages;
    if (count < static_cast<int64_t>(wanted.size()) && count == match.pages) {
      ASSERT_FALSE(s.table.adopt(wanted, count + 1).ok());
    }
    const int64_t available = cache_->available();
    ASSERT_TRUE(s.table.adopt(wanted, count).ok());
    if (count == match.pages) {
      ASSERT_EQ(cache_->available(), available - match.evictable);
    }
    model_.adopt(*s.model, wanted, count);
  }

  void grow(Sequence& s) {
    const int64_t pages = random_.below(20) == 0 ? random_.between(0, cache_->total_pages()) : random_.between(0, 4);
    const auto before = static_cast<size_t>(s.table.size());
    const bool grown = s.table.grow(pages, now_);
    ASSERT_EQ(grown, model_.grow(*s.model, pages, now_));
    if (!grown) return;
    draw_tokens(s, s.table.size());
    for (size_t i = before; i < s.model->pages.size(); ++i) std::memcpy(s.table.data()[i], &s.model->pages[i], sizeof(int64_t));
  }

  void publish(Sequence& s) {
    const auto published = keys(s, random_.between(0, s.table.size()));
    const bool exact = random_.below(4) != 0;
    s.table.publish(published, exact, now_);
    model_.publish(*s.model, published, exact, now_);
  }

  void fork(const Sequence& s) {
    if (sequences_.size() >= 8) return;
    const int64_t pages = random_.between(0, s.table.size());
    Sequence& copy = sequences_.emplace_back();
    copy.table = s.table.fork(pages);
    copy.model = &model_.fork(*s.model, pages);
    copy.root = s.root;
    copy.tokens.assign(s.tokens.begin(), s.tokens.begin() + pages * kPositions);
  }

  void shrink(Sequence& s) {
    const int64_t count = random_.between(0, s.table.size() - s.table.published());
    s.table.shrink(count);
    model_.shrink(*s.model, count);
    s.tokens.resize(static_cast<size_t>(s.table.size() * kPositions));
  }

  void restart(Sequence& s) {
    s.table.release(now_);
    model_.release(*s.model, now_);
    adopt(s);
  }

  void finish(Sequence& s) {
    // The destructor takes the time of the last operation, so there must be one.
    const bool destroy = random_.below(2) == 0;
    if (destroy) {
      (void)s.table.grow(0, now_);
    } else {
      s.table.release(now_);
    }
    model_.remove_table(*s.model, now_);
    sequences_.remove_if([&s](const Sequence& other) { return &other == &s; });
  }

  void administer() {
    switch (random_.below(4)) {
      case 0: {
        const Sequence& s = any();
        const auto pinned = keys(s, random_.between(0, s.table.size()));
        ASSERT_EQ(cache_->unpin(pinned, now_), model_.unpin(pinned, now_));
        break;
      }
      case 1:
        ASSERT_EQ(cache_->unpin_all(now_), model_.unpin_all(now_));
        break;
      case 2:
        if (random_.below(3) == 0) {
          cache_->clear();
          model_.clear();
        }
        break;
      default:
        now_ += 12;
        break;
    }
  }

  Random random_;
  NaiveCache model_;
  std::unique_ptr<KvCache> cache_;
  PrefixHasher hasher_ = testing::test_hasher();
  std::vector<PrefixKey> roots_;
  std::list<Sequence> sequences_;  // after the cache: they go first
  double now_ = 0;
};

TEST(CacheProperty, AgreesWithTheNaiveModel) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    Schedule run(seed, seed % 3 == 0 ? 7 : seed % 3 == 1 ? 24 : 60);
    for (int64_t step = 0; step < 3000; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      run.step();
      if (HasFatalFailure()) return;
      run.compare();
      if (HasFatalFailure()) return;
    }
    SCOPED_TRACE("end of seed " + std::to_string(seed));
    run.end();
    if (HasFatalFailure()) return;
    // The schedule must have met everything it is for.
    const KvCacheStats stats = run.cache().stats();
    EXPECT_GT(stats.hit_pages, 0);
    EXPECT_GT(stats.inserted, 0);
    EXPECT_GT(stats.expired[0], 0);
  }
}

TEST(CacheProperty, SchedulesMeetEveryCase) {
  KvCacheStats sum;
  for (uint64_t seed = 100; seed < 108; ++seed) {
    Schedule run(seed, 24);
    for (int64_t step = 0; step < 3000; ++step) run.step();
    const KvCacheStats stats = run.cache().stats();
    sum.replaced += stats.replaced;
    sum.duplicates += stats.duplicates;
    sum.pins_refused += stats.pins_refused;
    sum.cleared += stats.cleared;
    for (size_t c = 0; c < kCacheClassCount; ++c) {
      sum.evicted[c] += stats.evicted[c];
      sum.expired[c] += stats.expired[c];
      sum.hits[c] += stats.hits[c];
    }
    run.end();
  }
  for (const int64_t count : {sum.replaced, sum.duplicates, sum.pins_refused, sum.cleared, sum.evicted[0], sum.evicted[1],
                              sum.expired[0], sum.expired[1], sum.hits[0], sum.hits[1], sum.hits[2]}) {
    EXPECT_GT(count, 20);
  }
  EXPECT_EQ(sum.evicted[2] + sum.expired[2], 0);
}

// What available() says, one can get: at many moments of a schedule, which is played again up to there each time.
TEST(CacheProperty, AvailableIsWhatGrowGets) {
  Random random(7);
  for (int64_t trial = 0; trial < 150; ++trial) {
    const auto seed = static_cast<uint64_t>(1000 + trial);
    const int64_t steps = random.between(10, 400);
    const auto at_that_moment = [&] {
      auto run = std::make_unique<Schedule>(seed, 24);
      for (int64_t step = 0; step < steps; ++step) run->step();
      return run;
    };
    SCOPED_TRACE("seed " + std::to_string(seed) + " steps " + std::to_string(steps));
    const auto one_by_one = at_that_moment();
    const int64_t available = one_by_one->cache().available();
    {
      PageTable table = one_by_one->cache().new_table(CacheClass::kChat);
      int64_t got = 0;
      while (table.grow(1, one_by_one->now())) ++got;
      EXPECT_EQ(got, available);
      one_by_one->cache().check_invariants();
    }
    const auto at_once = at_that_moment();
    {
      PageTable table = at_once->cache().new_table(CacheClass::kChat);
      EXPECT_EQ(at_once->cache().available(), available);
      EXPECT_FALSE(table.grow(available + 1, at_once->now()));
      EXPECT_TRUE(table.grow(available, at_once->now()));
      EXPECT_EQ(at_once->cache().available(), 0);
      at_once->cache().check_invariants();
    }
  }
}

}  // namespace
}  // namespace deepinfer
