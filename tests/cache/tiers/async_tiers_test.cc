#include "cache/tiers/async_tiers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <random>

#include "cache/tiers/host_pool.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer {
namespace {

const KvPageShape kShape{.group_bytes = {1600, 800}};

PrefixKey key(uint64_t n) { return {n * 0x9E3779B97F4A7C15u, ~n}; }
std::vector<uint8_t> page_of(uint64_t n) {
  std::vector<uint8_t> page(static_cast<size_t>(kShape.page_bytes()));
  std::mt19937_64 random(n);
  for (uint8_t& byte : page) byte = static_cast<uint8_t>(random());
  return page;
}
std::vector<PrefixKey> keys(uint64_t count) {
  std::vector<PrefixKey> all;
  for (uint64_t n = 1; n <= count; ++n) all.push_back(key(n));
  return all;
}

/// A store of which reads and lookups hang until `open` is called; for what no file system can be made to do in a test.
class Gate : public KvStore {
 public:
  explicit Gate(std::unique_ptr<KvStore> store) : store_(std::move(store)) {}
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  std::string_view tier() const override { return "shared"; }
  KvStoreMatch match(std::span<const PrefixKey> k, bool exact_only, double now, std::stop_token stop) override {
    pass();
    return store_->match(k, exact_only, now, stop);
  }
  void read(std::span<KvStoreRead> reads, double now, std::stop_token stop) override {
    pass();
    store_->read(reads, now, stop);
  }
  Status write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) override {
    return store_->write(pages, now, stop);
  }
  Status touch(std::span<const PrefixKey> k, CacheClass c, double now, std::stop_token stop) override {
    return store_->touch(k, c, now, stop);
  }
  Status erase(std::span<const PrefixKey> k, std::stop_token stop) override { return store_->erase(k, stop); }

 private:
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  std::unique_ptr<KvStore> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

class AsyncTiers : public ::testing::Test {
 protected:
  void make(double limit = 30) {
    auto host = std::move(*HostPool::Create(kShape, {.capacity_bytes = 4 * 2432, .retention = {}}));
    gate_ = std::make_shared<Gate>(std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}})));
    AsyncTiersOptions options;
    options.match_seconds = options.pull_seconds = limit;
    tiers_ = std::move(*make_async_tiers(kShape, {std::shared_ptr<KvStore>(std::move(host)), gate_}, options));
    for (uint64_t n = 1; n <= 40; ++n) {
      const std::vector<uint8_t> page = page_of(n);
      tiers_->write_back({.key = key(n), .parent = key(n - 1), .page = page});
    }
    tiers_->flush();
  }
  KvTierMatch match(uint64_t count) {
    std::promise<KvTierMatch> promise;
    tiers_->match(keys(count), true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
    return promise.get_future().get();
  }
  std::unique_ptr<KvPull> pull(const KvTierMatch& found) {
    buffers_.assign(40, std::vector<uint8_t>(static_cast<size_t>(kShape.page_bytes())));
    std::vector<uint8_t*> pages;
    for (auto& buffer : buffers_) pages.push_back(buffer.data());
    return tiers_->pull(found, keys(40), pages);
  }
  ~AsyncTiers() override {
    if (gate_) gate_->open();
  }

  std::shared_ptr<Gate> gate_;
  std::unique_ptr<KvTiers> tiers_;
  std::vector<std::vector<uint8_t>> buffers_;
};

TEST_F(AsyncTiers, EachPageComesFromTheFastestTierThatHasIt) {
  make();
  const KvTierMatch found = match(41);
  EXPECT_EQ(found.pages, 40);
  EXPECT_EQ(found.reason, KvStoreMiss::kNotStored);
  EXPECT_GT(found.runs.size(), 1U) << "the host's memory has the last few";
  const auto pulling = pull(found);
  EXPECT_TRUE(pulling->wait(0));
  EXPECT_TRUE(pulling->wait(1));
  while (!pulling->done()) std::this_thread::yield();
  EXPECT_EQ(pulling->result().good_pages, 40);
  EXPECT_GT(pulling->result().pages_by_tier[0], 0);
  for (uint64_t n = 1; n <= 40; ++n) EXPECT_EQ(buffers_[n - 1], page_of(n));
}

TEST_F(AsyncTiers, AStoreThatHangsCostsAMatchItsLimitAndIsSetAside) {
  make(0.05);
  gate_->close();
  const KvTierMatch found = match(40);
  EXPECT_EQ(found.pages, 0);
  EXPECT_EQ(found.reason, KvStoreMiss::kSlow);
  EXPECT_EQ(tiers_->stats().tiers[1].outages, 1);
  gate_->open();
}

TEST_F(AsyncTiers, AStoreThatHangsEndsAPullAndNeverWritesToThePagesLater) {
  make(0.2);
  const KvTierMatch found = match(40);
  ASSERT_EQ(found.pages, 40);
  gate_->close();
  auto pulling = pull(found);
  EXPECT_FALSE(pulling->wait(1));
  EXPECT_TRUE(pulling->done());
  EXPECT_EQ(pulling->result().good_pages, 0);
  EXPECT_EQ(pulling->result().miss, KvStoreMiss::kSlow);
  pulling.reset();
  for (auto& buffer : buffers_) std::fill(buffer.begin(), buffer.end(), uint8_t{7});
  gate_->open();
  tiers_.reset();  // its threads come to an end first
  for (const auto& buffer : buffers_) EXPECT_EQ(buffer, std::vector<uint8_t>(buffer.size(), 7));
}

/// Takes its time for each read, like a disk or a network of which there is no slow one to be had in a test.
class Slow : public Gate {
 public:
  using Gate::Gate;
  void read(std::span<KvStoreRead> reads, double now, std::stop_token stop) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_.load()));
    Gate::read(reads, now, stop);
  }
  std::atomic<int> pause_ms_{0};
};

class SlowTier : public ::testing::Test {
 protected:
  SlowTier() {
    slow_ = std::make_shared<Slow>(std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}})));
    for (uint64_t n = 1; n <= 40; ++n) {
      const std::vector<uint8_t> page = page_of(n);
      const KvStoreWrite write{.key = key(n), .parent = key(n - 1), .page = page};
      EXPECT_TRUE(slow_->write({&write, 1}, wall_seconds(), {}).ok());
    }
  }
  void make(std::vector<std::shared_ptr<KvStore>> stores, double write_queue = 1 << 20) {
    AsyncTiersOptions options;
    options.match_seconds = options.pull_seconds = 60;
    options.write_queue_bytes = static_cast<int64_t>(write_queue);
    tiers_ = std::move(*make_async_tiers(kShape, std::move(stores), options));
  }
  KvTierMatch match(uint64_t count = 40) {
    std::promise<KvTierMatch> promise;
    tiers_->match(keys(count), true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
    return promise.get_future().get();
  }
  void pull(const KvTierMatch& found) {
    std::vector<std::vector<uint8_t>> buffers(40, std::vector<uint8_t>(static_cast<size_t>(kShape.page_bytes())));
    std::vector<uint8_t*> pages;
    for (auto& buffer : buffers) pages.push_back(buffer.data());
    const auto pulling = tiers_->pull(found, keys(40), pages);
    EXPECT_TRUE(pulling->wait(0) && pulling->wait(1));
    while (!pulling->done()) std::this_thread::yield();
    for (int64_t n = 0; n < found.pages; ++n) EXPECT_EQ(buffers[static_cast<size_t>(n)], page_of(static_cast<uint64_t>(n) + 1));
  }

  std::shared_ptr<Slow> slow_;
  std::unique_ptr<KvTiers> tiers_;
};

TEST_F(SlowTier, AHitThatWasMeasuredToBeSlowerThanComputingIsLeftOut) {
  make({slow_});
  slow_->pause_ms_ = 20;
  tiers_->set_prefill_rate(1);
  EXPECT_EQ(match().pages, 40) << "nothing is known of the tier yet";
  pull(match());
  EXPECT_GT(tiers_->stats().tiers[0].bytes_per_second, 0);
  EXPECT_GE(tiers_->stats().tiers[0].latency_seconds, 0.02);
  EXPECT_EQ(match().pages, 40) << "computing takes more than an hour";
  tiers_->set_prefill_rate(1e-9);
  const KvTierMatch refused = match();
  EXPECT_EQ(refused.pages, 0);
  EXPECT_TRUE(refused.runs.empty());
  EXPECT_EQ(refused.reason, KvStoreMiss::kSlow);
  tiers_->set_prefill_rate(0);
  EXPECT_EQ(match().pages, 40) << "it is not known what computing takes";
}

TEST_F(SlowTier, OnlyTheSlowPartOfAHitIsLeftOut) {
  auto host = std::shared_ptr<KvStore>(std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}})));
  for (uint64_t n = 1; n <= 10; ++n) {
    const std::vector<uint8_t> page = page_of(n);
    const KvStoreWrite write{.key = key(n), .parent = key(n - 1), .page = page};
    ASSERT_TRUE(host->write({&write, 1}, wall_seconds(), {}).ok());
  }
  make({host, slow_}, 0);
  slow_->pause_ms_ = 50;
  const KvTierMatch found = match();
  ASSERT_EQ(found.runs.size(), 2U);
  pull(found);
  // 10 pages in memory are worth it, 30 that take 50 ms are not: computing all of them takes 10 ms.
  tiers_->set_prefill_rate(0.01 / (40 * 128));
  const KvTierMatch cut = match();
  if (tiers_->stats().tiers[0].latency_seconds > 0.002)
    GTEST_SKIP() << "the machine is too busy to tell memory from a slow store";
  EXPECT_EQ(cut.pages, 10);
  EXPECT_EQ(cut.reason, KvStoreMiss::kSlow);
}

TEST_F(SlowTier, PagesThatASlowerTierGaveAreInMemoryTheNextTime) {
  auto host = std::shared_ptr<KvStore>(std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}})));
  make({host, slow_});
  pull(match());
  // The promotion goes on by itself; each of its pages is counted once it has been queued.
  while (tiers_->stats().pages_promoted < 40) std::this_thread::yield();
  tiers_->flush();
  const KvTierMatch found = match();
  EXPECT_EQ(found.pages, 40);
  ASSERT_EQ(found.runs.size(), 1U);
  EXPECT_EQ(found.runs[0].tier, 0U);
  pull(found);
  EXPECT_EQ(tiers_->stats().pages_promoted, 40) << "memory's own pages are not promoted";
}

TEST_F(SlowTier, UsesAreToldToEveryTier) {
  auto host = std::shared_ptr<KvStore>(std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}})));
  make({host, slow_});
  const std::vector<PrefixKey> one = keys(1);
  EXPECT_LE(slow_->match(one, true, wall_seconds(), {}).ttl_seconds, 86400);
  tiers_->touch(one, CacheClass::kAgent);
  tiers_->flush();
  EXPECT_GT(slow_->match(one, true, wall_seconds(), {}).ttl_seconds, 2 * 86400) << "an agent's page lives for three days";
  EXPECT_EQ(tiers_->stats().tiers[1].pages_touched, 1);
}

}  // namespace
}  // namespace deepinfer
