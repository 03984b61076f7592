#include "cache/window_snapshots.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "testing/random.h"

namespace deepinfer {
namespace {

using Pool = WindowSnapshotPool<std::string>;

PrefixKey key(uint64_t n) { return {n, ~n}; }
std::shared_ptr<const std::string> snapshot(const std::string& text) { return std::make_shared<const std::string>(text); }

TEST(WindowSnapshots, FindsWhatWasPut) {
  Pool pool(100, 10);
  EXPECT_TRUE(pool.put(key(1), snapshot("one"), 40, 0));
  EXPECT_TRUE(pool.put(key(2), snapshot("two"), 60, 0));
  pool.check_invariants();
  ASSERT_NE(pool.find(key(1), 1), nullptr);
  EXPECT_EQ(*pool.find(key(1), 1), "one");
  EXPECT_EQ(*pool.find(key(2), 1), "two");
  EXPECT_EQ(pool.find(key(3), 1), nullptr);
  const WindowSnapshotStats stats = pool.stats();
  EXPECT_EQ(stats.entries, 2);
  EXPECT_EQ(stats.bytes, 100);
  EXPECT_EQ(stats.hits, 3);
  EXPECT_EQ(stats.misses, 1);
}

TEST(WindowSnapshots, LeastRecentlyUsedMakesRoom) {
  Pool pool(100, 1000);
  EXPECT_TRUE(pool.put(key(1), snapshot("one"), 40, 0));
  EXPECT_TRUE(pool.put(key(2), snapshot("two"), 40, 1));
  EXPECT_NE(pool.find(key(1), 2), nullptr);
  EXPECT_TRUE(pool.contains(key(2), 2));  // looking is not a use
  EXPECT_TRUE(pool.put(key(3), snapshot("three"), 60, 3));
  pool.check_invariants();
  EXPECT_TRUE(pool.contains(key(1), 3));
  EXPECT_FALSE(pool.contains(key(2), 3));
  EXPECT_TRUE(pool.contains(key(3), 3));
  EXPECT_EQ(pool.stats().evicted, 1);
  EXPECT_TRUE(pool.put(key(4), snapshot("four"), 100, 4));  // everything else goes
  EXPECT_EQ(pool.stats().evicted, 3);
  EXPECT_EQ(pool.stats().entries, 1);
}

TEST(WindowSnapshots, TooLargeChangesNothing) {
  Pool pool(100, 10);
  EXPECT_TRUE(pool.put(key(1), snapshot("one"), 100, 0));
  EXPECT_FALSE(pool.put(key(1), snapshot("larger"), 101, 0));
  EXPECT_FALSE(pool.put(key(2), snapshot("largest"), std::numeric_limits<int64_t>::max(), 0));
  EXPECT_EQ(*pool.find(key(1), 0), "one");
  EXPECT_EQ(pool.stats().entries, 1);
  Pool none(0, 10);
  EXPECT_FALSE(none.put(key(1), snapshot("one"), 1, 0));
  Pool huge(std::numeric_limits<int64_t>::max(), 10);
  EXPECT_TRUE(huge.put(key(1), snapshot("one"), std::numeric_limits<int64_t>::max() - 1, 0));
  EXPECT_TRUE(huge.put(key(2), snapshot("two"), std::numeric_limits<int64_t>::max() - 1, 0));
  huge.check_invariants();
  EXPECT_EQ(huge.stats().entries, 1);
}

TEST(WindowSnapshots, SameKeyIsReplaced) {
  Pool pool(100, 10);
  EXPECT_TRUE(pool.put(key(1), snapshot("old"), 60, 0));
  EXPECT_TRUE(pool.put(key(2), snapshot("two"), 40, 1));
  EXPECT_TRUE(pool.put(key(1), snapshot("new"), 50, 2));  // fits once the old one is gone: nobody else need go
  pool.check_invariants();
  EXPECT_EQ(*pool.find(key(1), 2), "new");
  EXPECT_EQ(pool.stats().bytes, 90);
  EXPECT_EQ(pool.stats().evicted, 0);
}

TEST(WindowSnapshots, TimeToLiveCountsFromTheLastUse) {
  Pool pool(100, 10);
  EXPECT_TRUE(pool.put(key(1), snapshot("one"), 10, 0));
  EXPECT_TRUE(pool.put(key(2), snapshot("two"), 10, 0));
  EXPECT_NE(pool.find(key(1), 9), nullptr);
  EXPECT_FALSE(pool.contains(key(2), 10));
  EXPECT_EQ(pool.find(key(2), 10), nullptr);  // drops it
  EXPECT_EQ(pool.stats().entries, 1);
  EXPECT_TRUE(pool.contains(key(1), 18));
  EXPECT_EQ(pool.expire(18), 0);
  EXPECT_EQ(pool.expire(19), 1);
  pool.check_invariants();
  const WindowSnapshotStats stats = pool.stats();
  EXPECT_EQ(stats.expired, 2);
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(stats.bytes, 0);
  EXPECT_EQ(pool.find(key(1), 0), nullptr);  // a time before is the latest time
}

TEST(WindowSnapshots, RequestsKeepWhatThePoolDrops) {
  Pool pool(10, 10);
  EXPECT_TRUE(pool.put(key(1), snapshot("one"), 10, 0));
  const auto held = pool.find(key(1), 0);
  EXPECT_TRUE(pool.put(key(2), snapshot("two"), 10, 0));
  EXPECT_EQ(*held, "one");
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(pool.stats().bytes, 10);
}

TEST(WindowSnapshots, ClearForgetsAll) {
  Pool pool(10, 10);
  EXPECT_TRUE(pool.put(key(1), snapshot("one"), 10, 0));
  const auto held = pool.find(key(1), 0);
  pool.clear();
  pool.check_invariants();
  EXPECT_EQ(pool.stats().entries, 0);
  EXPECT_EQ(pool.stats().bytes, 0);
  EXPECT_EQ(pool.find(key(1), 0), nullptr);
  EXPECT_EQ(*held, "one");
  EXPECT_TRUE(pool.put(key(1), snapshot("new"), 10, 0));
  EXPECT_EQ(*pool.find(key(1), 0), "new");
}

TEST(WindowSnapshots, AgreesWithANaiveModel) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    testing::Random random(seed * 1'000'003);  // neighbouring seeds give one stream, a draw apart
    constexpr int64_t kBudget = 100;
    constexpr double kTtl = 20;
    Pool pool(kBudget, kTtl);
    struct Held {
      std::string text;
      int64_t bytes;
      double last_use;
      int64_t order;
    };
    std::map<uint64_t, Held> model;
    double now = 0;
    for (int64_t step = 0; step < 2000; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      now += random.below(3) == 0 ? random.uniform() * 5 : 0;
      const auto n = static_cast<uint64_t>(random.below(12));
      switch (random.below(4)) {
        case 0: {
          const int64_t bytes = random.between(0, 110);
          const std::string text = std::to_string(step);
          EXPECT_EQ(pool.put(key(n), snapshot(text), bytes, now), bytes <= kBudget);
          if (bytes > kBudget) break;
          model.erase(n);
          for (;;) {
            int64_t sum = bytes;
            auto oldest = model.end();
            for (auto it = model.begin(); it != model.end(); ++it) {
              sum += it->second.bytes;
              if (oldest == model.end() || it->second.order < oldest->second.order) oldest = it;
            }
            if (sum <= kBudget) break;
            model.erase(oldest);
          }
          model[n] = {text, bytes, now, step};
          break;
        }
        case 1: {
          const auto found = pool.find(key(n), now);
          const auto it = model.find(n);
          const bool alive = it != model.end() && it->second.last_use + kTtl > now;
          ASSERT_EQ(found != nullptr, alive);
          if (!alive) {
            if (it != model.end()) model.erase(it);
            break;
          }
          EXPECT_EQ(*found, it->second.text);
          it->second.last_use = now;
          it->second.order = step;
          break;
        }
        case 2: {
          const auto it = model.find(n);
          EXPECT_EQ(pool.contains(key(n), now), it != model.end() && it->second.last_use + kTtl > now);
          break;
        }
        default: {
          if (random.below(10) != 0) break;
          const auto gone = std::erase_if(model, [now](const auto& e) { return e.second.last_use + kTtl <= now; });
          EXPECT_EQ(pool.expire(now), static_cast<int64_t>(gone));
        }
      }
      pool.check_invariants();
      ASSERT_EQ(pool.stats().entries, static_cast<int64_t>(model.size()));
    }
  }
}

}  // namespace
}  // namespace deepinfer
