#include "cache/tiers/async_tiers.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <random>

#include "cache/tiers/host_pool.h"

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

/// A store of which reads and lookups, or writes, hang until `open` is called; for what no file system can be made to do in a
/// test. It notes what is touched.
class Gate : public KvStore {
 public:
  explicit Gate(std::unique_ptr<KvStore> store) : store_(std::move(store)) {}
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = writable_ = true;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void close_writes() {
    const std::lock_guard lock(mutex_);
    writable_ = false;
  }
  std::vector<std::pair<PrefixKey, CacheClass>> touched() {
    const std::lock_guard lock(mutex_);
    return touched_;
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
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return writable_; });
    }
    return store_->write(pages, now, stop);
  }
  Status touch(std::span<const PrefixKey> k, CacheClass c, double now, std::stop_token stop) override {
    {
      const std::lock_guard lock(mutex_);
      for (const PrefixKey& one : k) touched_.emplace_back(one, c);
    }
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
  bool open_ = true, writable_ = true;
  std::vector<std::pair<PrefixKey, CacheClass>> touched_;
};

class AsyncTiers : public ::testing::Test {
 protected:
  void make(double limit = 30, int64_t host_pages = 4, double write_limit = 30) {
    auto host = std::move(*HostPool::Create(kShape, {.capacity_bytes = host_pages * 2432, .retention = {}}));
    gate_ = std::make_shared<Gate>(std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}})));
    AsyncTiersOptions options;
    options.match_seconds = options.pull_seconds = limit;
    options.write_seconds = write_limit;
    options.write_queue_bytes = 100 * kShape.page_bytes();
    tiers_ = std::move(*make_async_tiers(kShape, {std::shared_ptr<KvStore>(std::move(host)), gate_}, options));
    write(1, 40);
    tiers_->flush();
  }
  void write(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) {
      const std::vector<uint8_t> page = page_of(n);
      tiers_->write_back({.key = key(n), .parent = key(n - 1), .page = page});
    }
  }
  KvTierMatch match(uint64_t count) {
    std::promise<KvTierMatch> promise;
    tiers_->match(keys(count), true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
    return promise.get_future().get();
  }
  std::unique_ptr<KvPull> pull(const KvTierMatch& found, const KvPullTerms& terms = {}) {
    buffers_.assign(40, std::vector<uint8_t>(static_cast<size_t>(kShape.page_bytes())));
    std::vector<uint8_t*> pages;
    for (auto& buffer : buffers_) pages.push_back(buffer.data());
    return tiers_->pull(found, keys(40), pages, terms);
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

TEST_F(AsyncTiers, WhatIsReadGoesUpIntoTheHostsMemoryAndIsTouchedWhereItLay) {
  make(30, /*host_pages=*/64);
  // The next process: its memory is empty, the other tier has everything.
  AsyncTiersOptions options;
  options.match_seconds = options.pull_seconds = 30;
  auto host = std::move(*HostPool::Create(kShape, {.capacity_bytes = 64 * 2432, .retention = {}}));
  tiers_ = std::move(*make_async_tiers(kShape, {std::shared_ptr<KvStore>(std::move(host)), gate_}, options));
  const KvTierMatch found = match(40);
  ASSERT_EQ(found.runs.size(), 1U);
  ASSERT_EQ(found.runs[0].tier, 1U);
  const auto pulling = pull(found, {.cache_class = CacheClass::kAgent});
  ASSERT_TRUE(pulling->wait(0) && pulling->wait(1));
  while (!pulling->done()) std::this_thread::yield();
  EXPECT_EQ(pulling->result().pages_by_tier[1], 40);
  tiers_->flush();
  EXPECT_EQ(tiers_->stats().pages_promoted, 40);
  EXPECT_EQ(tiers_->stats().tiers[0].pages, 40);
  EXPECT_EQ(tiers_->stats().tiers[1].pages_touched, 40);
  const auto touched = gate_->touched();
  ASSERT_EQ(touched.size(), 40U);
  for (uint64_t n = 1; n <= 40; ++n) {
    EXPECT_EQ(touched[n - 1].first, key(n));
    EXPECT_EQ(touched[n - 1].second, CacheClass::kAgent);
  }
  const KvTierMatch after = match(40);
  ASSERT_EQ(after.runs.size(), 1U);
  EXPECT_EQ(after.runs[0].tier, 0U);
  const auto again = pull(after);
  ASSERT_TRUE(again->wait(0) && again->wait(1));
  for (uint64_t n = 1; n <= 40; ++n) EXPECT_EQ(buffers_[n - 1], page_of(n));
  while (!again->done()) std::this_thread::yield();
  tiers_->flush();
  EXPECT_EQ(tiers_->stats().tiers[0].pages_touched, 40);
  EXPECT_EQ(gate_->touched().size(), 80U)
      << "what came from memory is used in the store below as well, where it stays for longer";
}

TEST_F(AsyncTiers, WhatTheDeviceHasIsTouchedInEveryTierAndNotAllTheTime) {
  make(30, 64);
  const std::vector<PrefixKey> used = keys(7);
  for (int i = 0; i < 50; ++i) tiers_->touch(used, CacheClass::kAgent);
  tiers_->touch(std::span(used).first(3), CacheClass::kAgent);
  tiers_->touch({}, CacheClass::kAgent);
  tiers_->flush();
  EXPECT_EQ(tiers_->stats().tiers[0].pages_touched, 10);
  EXPECT_EQ(gate_->touched().size(), 10U);
  // Touches that a store is too slow for are dropped, as pages are.
  gate_->close_writes();
  write(41, 41);
  const std::vector<PrefixKey> many = keys(60000);
  for (size_t i = 0; i < 5; ++i) tiers_->touch(std::span(many).subspan(i), CacheClass::kChat);
  gate_->open();
  tiers_->flush();
  EXPECT_LE(gate_->touched().size(), 10U + 2 * 65536U);
}

TEST_F(AsyncTiers, APullThatComputingOvertakesIsGivenUpAndTheNextOneIsForeseen) {
  make();
  const KvTierMatch found = match(40);
  const double worth = 0.4;
  gate_->close();
  auto pulling = pull(found, {.worth_seconds = worth});
  EXPECT_FALSE(pulling->wait(1));
  EXPECT_EQ(pulling->result().miss, KvStoreMiss::kSlow);
  EXPECT_LT(pulling->result().end - pulling->result().begin, 30) << "not its own limit";
  EXPECT_EQ(tiers_->stats().tiers[1].outages, 0) << "it is slow, and no more is known";
  EXPECT_EQ(tiers_->stats().pulls_late, 1);
  EXPECT_GE(tiers_->pull_seconds(found), worth) << "who wants it for as much computes";
  // A probe sees that it has become fast.
  tiers_->probe(found, keys(40));
  gate_->open();
  for (int i = 0; i < 2000 && tiers_->pull_seconds(found) >= worth; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    tiers_->probe(found, keys(40));
  }
  EXPECT_LT(tiers_->pull_seconds(found), worth);
  EXPECT_EQ(tiers_->stats().pages_promoted, 0) << "nobody asked for what a probe read";
  EXPECT_EQ(tiers_->stats().pulls, 1);
}

TEST_F(AsyncTiers, AWriteThatHangsSetsTheTierAsideAndHoldsUpNothing) {
  make(30, 64, /*write_limit=*/0.05);
  gate_->close_writes();
  write(41, 60);
  const auto tier = [this] { return tiers_->stats().tiers[1]; };
  for (int i = 0; i < 2000 && tier().available; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(tier().available);
  EXPECT_EQ(tier().outages, 1) << "one outage, however often one looks";
  EXPECT_NE(tier().last_error.find("a write has taken more than 0.05 s"), std::string::npos) << tier().last_error;
  // Nothing is kept for it, and nobody waits for it; the other tier goes on.
  write(61, 500);
  EXPECT_GE(tier().pages_dropped, 400);
  EXPECT_LE(tiers_->stats().pages_queued, 100 + 64);
  tiers_->flush();
  EXPECT_EQ(tiers_->stats().tiers[0].pages, 64);
  EXPECT_EQ(match(40).reason, KvStoreMiss::kUnavailable) << "the host has later ones by now, and the tier is not asked";
  // When the write is over, the tier is back.
  gate_->open();
  for (int i = 0; i < 2000 && !tier().available; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(tier().available);
  EXPECT_EQ(match(40).pages, 40);
  write(501, 510);
  tiers_->flush();
  EXPECT_EQ(tier().outages, 1);
  // Nor does one that hangs for good hold up the end.
  gate_->close_writes();
  write(511, 520);
  tiers_.reset();
}

}  // namespace
}  // namespace deepinfer
