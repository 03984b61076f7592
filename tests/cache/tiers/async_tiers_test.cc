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

}  // namespace
}  // namespace deepinfer
