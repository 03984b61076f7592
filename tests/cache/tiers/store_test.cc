// What every store owes.

#include <atomic>
#include <numeric>
#include <thread>

#include "cache/tiers/host_pool.h"
#include "cache/tiers/local_store.h"
#include "cache/tiers/redis_server.h"
#include "cache/tiers/shared_store.h"
#include "cache/tiers/store_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;

class Stores : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "host") {
      store_ = std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}}));
    } else if (GetParam() == "local") {
      store_ = std::move(*LocalStore::Open(kShape, kv_fingerprint("model", kShape), {.directory = directory_.path()}));
    } else {
      SharedStoreOptions options{.directory = directory_.path()};
      if (GetParam() == "redis") {
        server_ = RedisServer::Start(redis_.path());
        if (server_ == nullptr) GTEST_SKIP() << "redis-server is not installed";
        options.directory_url = server_->url();
        options.directory_lookup_seconds = 10;  // a busy machine is no fault
      }
      auto shared = std::move(*SharedStore::Open(kShape, kv_fingerprint("model", kShape), options));
      page_directory_ = shared->page_directory();
      store_ = std::move(shared);
      settle();
    }
  }
  /// Until a directory, which is told of changes asynchronously, knows of them.
  void settle() {
    if (page_directory_ == nullptr) return;
    EXPECT_TRUE(page_directory_->flush(60)) << page_directory_->stats().last_error;
  }
  Directory redis_;
  std::unique_ptr<RedisServer> server_;
  RedisDirectory* page_directory_ = nullptr;
  Directory directory_;
  std::unique_ptr<KvStore> store_;
};
INSTANTIATE_TEST_SUITE_P(All, Stores, ::testing::Values("host", "local", "shared", "redis"),
                         [](const auto& param) { return param.param; });

TEST_P(Stores, GivesBackWhatWasWritten) {
  std::vector<PrefixKey> keys;
  for (uint64_t n = 1; n <= 20; ++n) {
    ASSERT_TRUE(put(*store_, n).ok());
    keys.push_back(key(n));
  }
  keys.push_back(key(99));
  const KvStoreMatch match = store_->match(keys, true, 1000, {});
  EXPECT_EQ(match.pages, 20);
  EXPECT_TRUE(match.exact);
  EXPECT_EQ(match.reason, KvStoreMiss::kNotStored);
  EXPECT_EQ(match.ttl_seconds, 86400);
  for (uint64_t n = 1; n <= 20; ++n) EXPECT_EQ(get(*store_, n), KvStoreMiss::kNone);
  settle();
  ASSERT_TRUE(store_->erase({&keys[3], 1}, {}).ok());
  settle();
  EXPECT_EQ(store_->match(keys, true, 1000, {}).pages, 3);
  EXPECT_EQ(get(*store_, 4), KvStoreMiss::kNotStored);
}

TEST_P(Stores, ExactPagesTakeThePlaceOfInexactOnesAndNeverTheReverse) {
  const std::vector<PrefixKey> keys = {key(1)};
  ASSERT_TRUE(put(*store_, 1, 1000, false).ok());
  EXPECT_EQ(store_->match(keys, true, 1000, {}).reason, KvStoreMiss::kInexact);
  EXPECT_FALSE(store_->match(keys, false, 1000, {}).exact);
  EXPECT_EQ(get(*store_, 1, 1000, true), KvStoreMiss::kInexact);
  EXPECT_EQ(get(*store_, 1, 1000, false), KvStoreMiss::kNone);
  ASSERT_TRUE(put(*store_, 1, 1000, true).ok());
  ASSERT_TRUE(put(*store_, 1, 1000, false).ok());
  EXPECT_EQ(get(*store_, 1, 1000, true), KvStoreMiss::kNone);
}

TEST_P(Stores, TimeToLiveStartsAnewWithUseAndSurvivesClockJumps) {
  const std::vector<PrefixKey> keys = {key(1)};
  ASSERT_TRUE(put(*store_, 1, 1000).ok());
  EXPECT_EQ(store_->match(keys, true, 1000 + 86400, {}).reason, KvStoreMiss::kExpired);
  ASSERT_TRUE(store_->touch(keys, CacheClass::kChat, 50000, {}).ok());
  settle();
  EXPECT_EQ(store_->match(keys, true, 1000 + 86400, {}).pages, 1);
  // A clock that ran ahead by a century; the next use under the right one takes the time back to what the classes allow.
  ASSERT_TRUE(store_->touch(keys, CacheClass::kChat, 4e9, {}).ok());
  settle();
  ASSERT_TRUE(store_->touch(keys, CacheClass::kChat, 60000, {}).ok());
  settle();
  EXPECT_LE(store_->match(keys, true, 60000, {}).ttl_seconds, KvRetention{}.longest_ttl());
  EXPECT_EQ(get(*store_, 1, 60000), KvStoreMiss::kNone);
}

TEST_P(Stores, MatchFindsWhereverTheStoredPagesEnd) {
  constexpr uint64_t kKeys = 70;
  std::vector<PrefixKey> keys;
  for (uint64_t n = 1; n <= kKeys; ++n) keys.push_back(key(n));
  for (uint64_t stored = 0; stored <= kKeys; ++stored) {
    ASSERT_TRUE(stored == 0 || put(*store_, stored).ok());
    const KvStoreMatch match = store_->match(keys, true, 1000, {});
    EXPECT_EQ(match.pages, static_cast<int64_t>(stored));
    EXPECT_EQ(match.reason, stored == kKeys ? KvStoreMiss::kNone : KvStoreMiss::kNotStored);
  }
  EXPECT_EQ(store_->match({}, true, 1000, {}).pages, 0);
  ASSERT_TRUE(put(*store_, 0).ok());
  settle();
  ASSERT_TRUE(store_->erase({&keys[40], 1}, {}).ok());
  settle();
  EXPECT_EQ(store_->match(keys, true, 1000, {}).pages, 40) << "a page in the middle has gone";
}

TEST_P(Stores, PagesBehindABoundedReplayAreInexact) {
  std::vector<PrefixKey> keys;
  for (uint64_t n = 1; n <= 20; ++n) {
    ASSERT_TRUE(put(*store_, n, 1000, n <= 12).ok());
    keys.push_back(key(n));
  }
  const KvStoreMatch exact = store_->match(keys, true, 1000, {});
  EXPECT_EQ(exact.pages, 12);
  EXPECT_TRUE(exact.exact);
  EXPECT_EQ(exact.reason, KvStoreMiss::kInexact);
  const KvStoreMatch any = store_->match(keys, false, 1000, {});
  EXPECT_EQ(any.pages, 20);
  EXPECT_FALSE(any.exact);
  EXPECT_TRUE(store_->match(std::span(keys).first(12), false, 1000, {}).exact);
}

TEST_P(Stores, ACancelledCallReturnsAndSaysSo) {
  ASSERT_TRUE(put(*store_, 1).ok());
  std::stop_source stop;
  stop.request_stop();
  std::vector<uint8_t> into(static_cast<size_t>(kShape.group_bytes[0]));
  KvStoreRead read{.key = key(1), .group = 0, .into = into};
  store_->read({&read, 1}, 1000, stop.get_token());
  EXPECT_EQ(read.miss, KvStoreMiss::kCancelled);
  const std::vector<uint8_t> page = page_of(2);
  const KvStoreWrite write{.key = key(2), .parent = key(1), .page = page};
  EXPECT_EQ(store_->write({&write, 1}, 1000, stop.get_token()).code(), StatusCode::kCancelled);
  EXPECT_EQ(get(*store_, 2), KvStoreMiss::kNotStored);
}

TEST_P(Stores, NeitherSaltNorSecretOfAnotherTenantCanBeGuessed) {
  std::vector<int32_t> tokens(64 * 4);
  std::iota(tokens.begin(), tokens.end(), 0);
  const PrefixHasher hasher({1, 2, 3});
  const std::vector<PrefixKey> mine = page_keys(hasher, hasher.root("tenant", "model"), tokens, 64);
  for (size_t i = 0; i < mine.size(); ++i) {
    const std::vector<uint8_t> page = page_of(i);
    const KvStoreWrite write{.key = mine[i], .parent = i == 0 ? PrefixKey{} : mine[i - 1], .page = page};
    ASSERT_TRUE(store_->write({&write, 1}, 1000, {}).ok());
  }
  EXPECT_EQ(store_->match(mine, true, 1000, {}).pages, 4);
  const auto found_by = [&](const PrefixHasher& by, std::string_view salt, std::string_view model) {
    return store_->match(page_keys(by, by.root(salt, model), tokens, 64), false, 1000, {}).pages;
  };
  for (const std::string_view salt : {"", "tenant2", "Tenant", "tenant "}) EXPECT_EQ(found_by(hasher, salt, "model"), 0) << salt;
  EXPECT_EQ(found_by(hasher, "tenant", "model2"), 0);
  EXPECT_EQ(found_by(PrefixHasher({1, 2, 4}), "tenant", "model"), 0) << "knows the salt and not the secret";
}

TEST_P(Stores, ThreadsThatWriteReadAndEraseTheSamePagesNeverSeeWrongBytes) {
  constexpr int kThreads = 4;
  constexpr uint64_t kPages = 30;
  std::atomic<int64_t> hits{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < 300; ++i) {
        const uint64_t n = 1 + random() % kPages;
        switch (random() % 8) {
          case 0: {
            const PrefixKey gone = key(n);
            EXPECT_TRUE(store_->erase({&gone, 1}, {}).ok());
            break;
          }
          case 1:
          case 2:
          case 3:
            EXPECT_TRUE(put(*store_, n).ok());
            break;
          default: {
            const KvStoreMiss miss = get(*store_, n);
            EXPECT_TRUE(miss == KvStoreMiss::kNone || miss == KvStoreMiss::kNotStored) << kv_store_miss_name(miss);
            if (miss == KvStoreMiss::kNone) ++hits;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 0);
}

TEST(HostPool, StaysWithinItsSizeAndKeepsTheStartOfPrompts) {
  auto pool = std::move(*HostPool::Create(kShape, {.capacity_bytes = 10 * 4800, .retention = {}}));
  std::vector<std::vector<uint8_t>> pages;
  std::vector<KvStoreWrite> writes;
  std::vector<PrefixKey> keys;
  for (uint64_t n = 1; n <= 25; ++n) pages.push_back(page_of(n));
  for (uint64_t n = 1; n <= 25; ++n) {
    keys.push_back(key(n));
    writes.push_back({.key = key(n), .parent = key(n - 1), .page = pages[n - 1]});
  }
  ASSERT_TRUE(pool->write(writes, 1000, {}).ok());
  pool->check_invariants();
  EXPECT_EQ(pool->pages(), pool->capacity_pages());
  EXPECT_EQ(pool->match(keys, true, 1000, {}).pages, pool->capacity_pages());
}

}  // namespace
}  // namespace deepinfer
