// Tiers for the pages of a device, over copies that are made late: nothing is read before it is there, and nothing is given away
// before it has been read.

#include "cache/tiers/device_tiers.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "cache/tiers/async_tiers.h"
#include "cache/tiers/device_pull.h"
#include "cache/tiers/host_pool.h"
#include "cache/tiers/staging_pages.h"
#include "cache/tiers/tier_workers.h"
#include "testing/guarded_copies.h"

namespace deepinfer {
namespace {

const KvPageShape kShape{.group_bytes = {1600, 800, 64}};
constexpr int64_t kStride = 2560;  ///< of a page in pinned memory

PrefixKey key(uint64_t n) { return {n * 0x9E3779B97F4A7C15u, ~n}; }
std::vector<PrefixKey> keys(int64_t count) {
  std::vector<PrefixKey> all;
  for (int64_t n = 1; n <= count; ++n) all.push_back(key(static_cast<uint64_t>(n)));
  return all;
}
std::vector<uint8_t> page_of(uint64_t n) {
  std::vector<uint8_t> page(static_cast<size_t>(kShape.page_bytes()));
  std::mt19937_64 random(n);
  for (uint8_t& byte : page) byte = static_cast<uint8_t>(random());
  return page;
}

/// A tier of which each group has to be let through, and may be lost from a page on.
class GroupGate final : public KvTiers {
 public:
  explicit GroupGate(int64_t open) : open_(open) {}
  void open(int64_t groups) {
    const std::lock_guard lock(mutex_);
    open_ = groups;
    changed_.notify_all();
  }
  int64_t lost_group = -1, lost_page = 0;
  std::vector<int64_t> parts;  ///< pages of each pull

  std::vector<std::string_view> tier_names() const override { return {"local"}; }
  const KvPageShape& shape() const override { return kShape; }
  void match(std::vector<PrefixKey> k, bool, std::function<void(KvTierMatch)> done) override {
    done({.runs = {{0, static_cast<int64_t>(k.size())}}, .pages = static_cast<int64_t>(k.size())});
  }
  std::unique_ptr<KvPull> pull(const KvTierMatch& match, std::vector<PrefixKey> k, std::vector<uint8_t*> pages,
                               const KvPullTerms&) override {
    {
      const std::lock_guard lock(mutex_);
      parts.push_back(match.pages);
    }
    return std::make_unique<Pull>(*this, std::move(k), std::move(pages));
  }
  int64_t write_back(const KvStoreWrite& page) override {
    const std::lock_guard lock(mutex_);
    written[page.key.high].assign(page.page.begin(), page.page.end());
    return 0;
  }
  bool writes(CacheClass c) const override { return c != CacheClass::kAgent; }
  void flush() override {}
  std::map<uint64_t, std::vector<uint8_t>> written;

 private:
  class Pull final : public KvPull {
   public:
    Pull(GroupGate& gate, std::vector<PrefixKey> k, std::vector<uint8_t*> pages)
        : gate_(gate), keys_(std::move(k)), pages_(std::move(pages)) {
      result_.good_pages = static_cast<int64_t>(pages_.size());
      result_.pages_by_tier = result_.bytes_by_tier = {0};
    }
    bool wait(int64_t group) override {
      std::unique_lock lock(gate_.mutex_);
      gate_.changed_.wait(lock, [&] { return cancelled_ || gate_.open_ > group; });
      if (cancelled_ || group == gate_.lost_group) {
        result_.miss = cancelled_ ? KvStoreMiss::kCancelled : KvStoreMiss::kCorrupt;
        result_.good_pages = cancelled_ ? 0 : gate_.lost_page;
        // What has come of pages before the lost one is whole.
        for (int64_t g = group; g < 3; ++g) bring(g, result_.good_pages);
        return count(), false;
      }
      bring(group, static_cast<int64_t>(pages_.size()));
      return count(), true;
    }
    bool done() const override { return true; }
    void cancel() override {
      const std::lock_guard lock(gate_.mutex_);
      cancelled_ = true;
      gate_.changed_.notify_all();
    }
    const Result& result() const override { return result_; }

   private:
    void bring(int64_t group, int64_t pages) {
      const auto offset = static_cast<size_t>(kShape.group_offset(group));
      for (int64_t i = 0; i < pages; ++i) {
        const std::vector<uint8_t> page = page_of(keys_[static_cast<size_t>(i)].high);
        std::copy_n(page.begin() + static_cast<std::ptrdiff_t>(offset), kShape.group_bytes[static_cast<size_t>(group)],
                    pages_[static_cast<size_t>(i)] + offset);
      }
    }
    void count() {
      result_.pages_by_tier[0] = result_.good_pages;
      result_.bytes_by_tier[0] = result_.good_pages * kShape.page_bytes();
    }
    GroupGate& gate_;
    std::vector<PrefixKey> keys_;
    std::vector<uint8_t*> pages_;
    bool cancelled_ = false;
    Result result_;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t open_;
};

/// A host pool as a tier of another name.
class Named final : public KvStore {
 public:
  explicit Named(std::unique_ptr<HostPool> pool) : pool_(std::move(pool)) {}
  std::string_view tier() const override { return "shared"; }
  KvStoreMatch match(std::span<const PrefixKey> k, bool exact, double now, std::stop_token stop) override {
    return pool_->match(k, exact, now, stop);
  }
  void read(std::span<KvStoreRead> reads, double now, std::stop_token stop) override { pool_->read(reads, now, stop); }
  Status write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) override {
    return pool_->write(pages, now, stop);
  }
  Status touch(std::span<const PrefixKey> k, CacheClass c, double now, std::stop_token stop) override {
    return pool_->touch(k, c, now, stop);
  }
  Status erase(std::span<const PrefixKey> k, std::stop_token stop) override { return pool_->erase(k, stop); }

 private:
  std::unique_ptr<HostPool> pool_;
};

class DeviceTiersTest : public ::testing::Test {
 protected:
  DeviceTiersTest() : memory_(static_cast<size_t>(64 * kShape.page_bytes())) {
    for (int64_t i = 0; i < 64; ++i) pages_.push_back(memory_.data() + i * kShape.page_bytes());
  }
  std::unique_ptr<KvTiers> make(std::shared_ptr<KvTiers> below, int64_t pull_pages = 8, int64_t write_pages = 8,
                                std::shared_ptr<HostPool> host = nullptr) {
    auto made = make_device_tiers(std::move(below), &copies_,
                                  {.pull_bytes = pull_pages * kStride, .write_bytes = write_pages * kStride}, std::move(host));
    if (!made) throw std::runtime_error(made.error().message());
    EXPECT_EQ(made->pinned_bytes, (pull_pages + write_pages) * kStride);
    return std::move(made->tiers);
  }
  static KvTierMatch match_of(int64_t count) { return {.runs = {{0, count}}, .pages = count}; }
  std::vector<uint8_t*> first(int64_t count) { return {pages_.begin(), pages_.begin() + count}; }
  bool holds(int64_t page, int64_t group) const {
    const std::vector<uint8_t> want = page_of(key(static_cast<uint64_t>(page) + 1).high);
    const int64_t offset = kShape.group_offset(group);
    return std::equal(want.begin() + offset, want.begin() + offset + kShape.group_bytes[static_cast<size_t>(group)],
                      pages_[static_cast<size_t>(page)] + offset);
  }

  void to_host_pool_and_back(bool pinned);

  std::vector<uint8_t> memory_;  ///< the device's; the copies alone touch it
  std::vector<uint8_t*> pages_;
  testing::GuardedCopies copies_{[this](const void* p) {
    DI_CHECK(p >= memory_.data() && p < memory_.data() + memory_.size(), "not the device's");
    return const_cast<uint8_t*>(static_cast<const uint8_t*>(p));
  }};
};

TEST_F(DeviceTiersTest, AGroupIsThereBeforeTheNextOneHasBeenRead) {
  const auto gate = std::make_shared<GroupGate>(0);
  const auto tiers = make(gate);
  const auto pull = tiers->pull(match_of(4), keys(4), first(4), {});
  for (int64_t group = 0; group < 3; ++group) {
    EXPECT_FALSE(pull->done());
    gate->open(group + 1);
    ASSERT_TRUE(pull->wait(group));
    for (int64_t page = 0; page < 4; ++page) EXPECT_TRUE(holds(page, group)) << page << " " << group;
  }
  while (!pull->done()) std::this_thread::yield();
  EXPECT_EQ(pull->result().good_pages, 4);
  EXPECT_EQ(pull->result().bytes_by_tier, std::vector<int64_t>{4 * kShape.page_bytes()});
  EXPECT_EQ(pull->result().miss, KvStoreMiss::kNone);
  EXPECT_GE(pull->result().end, pull->result().begin);
  EXPECT_EQ(gate->parts, std::vector<int64_t>{4});
}

TEST_F(DeviceTiersTest, LongPullsComeInParts) {
  const auto gate = std::make_shared<GroupGate>(3);
  const auto tiers = make(gate, 6);
  const auto pull = tiers->pull(match_of(20), keys(20), first(20), {});
  for (int64_t group = 2; group >= 0; --group) {
    ASSERT_TRUE(pull->wait(group));
    for (int64_t page = 0; page < 20; ++page) EXPECT_TRUE(holds(page, group)) << page << " " << group;
  }
  while (!pull->done()) std::this_thread::yield();
  EXPECT_EQ(pull->result().good_pages, 20);
  EXPECT_EQ(gate->parts, (std::vector<int64_t>{3, 3, 3, 3, 3, 3, 2})) << "half of the pinned memory at a time";
}

TEST_F(DeviceTiersTest, OfAPullThatFailsTheFirstPagesAreWhole) {
  for (int64_t group = 0; group < 3; ++group) {
    for (const int64_t page : {0, 2}) {
      const auto gate = std::make_shared<GroupGate>(3);
      gate->lost_group = group;
      gate->lost_page = page;
      const auto tiers = make(gate);
      const auto pull = tiers->pull(match_of(4), keys(4), first(4), {});
      for (int64_t g = 0; g < 3; ++g) {
        const bool there = pull->wait(g);
        if (g == group) {
          EXPECT_FALSE(there);
        }
      }
      while (!pull->done()) std::this_thread::yield();
      EXPECT_EQ(pull->result().good_pages, page);
      EXPECT_EQ(pull->result().miss, KvStoreMiss::kCorrupt);
      for (int64_t p = 0; p < page; ++p) {
        for (int64_t g = 0; g < 3; ++g) EXPECT_TRUE(holds(p, g)) << p << " " << g;
      }
    }
  }
}

TEST_F(DeviceTiersTest, CancelledPullsLeaveThePagesAlone) {
  const auto gate = std::make_shared<GroupGate>(1);
  const auto tiers = make(gate, 2);  // one at a time has pinned memory, with a page each
  std::vector<std::unique_ptr<KvPull>> pulls;
  for (int i = 0; i < 8; ++i) {  // more than there are threads
    pulls.push_back(tiers->pull(match_of(4), keys(4), std::vector(pages_.begin() + 4 * i, pages_.begin() + 4 * i + 4), {}));
  }
  pulls[6]->cancel();
  EXPECT_FALSE(pulls[6]->wait(0));
  for (int i = 7; i >= 0; --i) {
    pulls[static_cast<size_t>(i)]->cancel();
    while (!pulls[static_cast<size_t>(i)]->done()) std::this_thread::yield();
    EXPECT_EQ(pulls[static_cast<size_t>(i)]->result().miss, KvStoreMiss::kCancelled) << i;
    // Nobody writes to them any more: the copies would complain.
    for (int page = 4 * i; page < 4 * i + 4; ++page) copies_.freed(pages_[static_cast<size_t>(page)], kShape.page_bytes());
  }
  pulls.clear();
  // Destroying it is cancelling it, and the pinned memory is there for others.
  { const auto gone = tiers->pull(match_of(4), keys(4), first(4), {}); }
  gate->open(3);
  const auto pull = tiers->pull(match_of(4), keys(4), first(4), {});
  EXPECT_TRUE(pull->wait(2));
}

TEST_F(DeviceTiersTest, WhatIsWrittenBackIsReadBeforeItsNumberComes) {
  const auto gate = std::make_shared<GroupGate>(3);
  const auto tiers = make(gate);
  int64_t given = 0;
  for (uint64_t round = 0; round < 50; ++round) {
    const std::vector<uint8_t> page = page_of(round);
    std::copy(page.begin(), page.end(), pages_[0]);
    const int64_t number = tiers->write_back({.key = key(round), .parent = {}, .page = {pages_[0], page.size()}});
    ASSERT_GT(number, 0);
    EXPECT_EQ(number, ++given) << "one after the other";
    while (tiers->copied() < number) std::this_thread::yield();
    std::fill_n(pages_[0], page.size(), 0);
  }
  tiers->flush();
  ASSERT_EQ(gate->written.size(), 50u);
  for (uint64_t round = 0; round < 50; ++round) EXPECT_EQ(gate->written[key(round).high], page_of(round)) << round;
  EXPECT_EQ(tiers->write_back({.key = key(1), .parent = {}, .cache_class = CacheClass::kAgent, .page = {pages_[0], 0}}), 0)
      << "of a class that is not written nothing is copied";
}

KvTierMatch find(KvTiers& tiers, int64_t count) {
  std::promise<KvTierMatch> found;
  tiers.match(keys(count), true, [&](KvTierMatch match) { found.set_value(std::move(match)); });
  return found.get_future().get();
}

// Through the real tiers, counted as they count; from a pinned pool directly, and from one that is not.
TEST_F(DeviceTiersTest, HostPoolAndBack) {
  for (const bool pinned : {true, false}) {
    SCOPED_TRACE(pinned);
    to_host_pool_and_back(pinned);
  }
}

void DeviceTiersTest::to_host_pool_and_back(bool pinned) {
  auto made = HostPool::Create(kShape, {.capacity_bytes = int64_t{1} << 20});
  ASSERT_TRUE(made.has_value());
  const std::shared_ptr<HostPool> pool = *std::move(made);
  auto below = make_async_tiers(kShape, {pool}, {});
  ASSERT_TRUE(below.has_value());
  const auto tiers = make(*std::move(below), 8, 2, pinned ? pool : nullptr);
  int64_t given = 0;
  for (int64_t i = 0; i < 32; ++i) {
    const std::vector<uint8_t> page = page_of(key(static_cast<uint64_t>(i) + 1).high);
    std::copy(page.begin(), page.end(), pages_[static_cast<size_t>(i)]);
    const KvStoreWrite write{
        .key = keys(32)[static_cast<size_t>(i)], .parent = {}, .page = {pages_[static_cast<size_t>(i)], page.size()}};
    while (tiers->write_back(write) == 0) {
      ++given;  // dropped
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ++given;
  }
  tiers->flush();
  KvTiersStats stats = tiers->stats();
  EXPECT_EQ(stats.pages_retained, given);
  EXPECT_EQ(stats.tiers[0].pages_dropped, given - 32);
  EXPECT_GT(stats.tiers[0].pages_dropped, 0) << "for want of pinned memory";
  EXPECT_EQ(stats.tiers[0].pages_written, 32);
  EXPECT_EQ(stats.pages_queued, 0);
  const KvTierMatch found = find(*tiers, 32);
  ASSERT_EQ(found.pages, 32);
  auto pull = tiers->pull(found, keys(32), {pages_.begin() + 32, pages_.end()}, {});
  for (int64_t group = 0; group < 3; ++group) ASSERT_TRUE(pull->wait(group));
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_TRUE(std::equal(pages_[static_cast<size_t>(i)], pages_[static_cast<size_t>(i)] + kShape.page_bytes(),
                           pages_[static_cast<size_t>(i) + 32]))
        << i;
  }
  while (!pull->done()) std::this_thread::yield();
  EXPECT_EQ(pull->result().pages_by_tier, std::vector<int64_t>{32});
  EXPECT_EQ(pull->result().bytes_by_tier, std::vector<int64_t>{32 * kShape.page_bytes()});
  stats = tiers->stats();
  EXPECT_EQ(stats.pulls, 1);
  EXPECT_EQ(stats.tiers[0].pages_read, 32);
  EXPECT_EQ(stats.tiers[0].bytes_read, 32 * kShape.page_bytes());
  // What has gone since is a miss, and what is before it comes.
  ASSERT_TRUE(pool->erase(std::vector{key(11)}, {}).ok());
  pull = tiers->pull(found, keys(32), {pages_.begin() + 32, pages_.end()}, {});
  EXPECT_FALSE(pull->wait(2));
  while (!pull->done()) std::this_thread::yield();
  // Of the part with the gap the tiers below may have been stopped before everything else of it was there.
  EXPECT_LE(pull->result().good_pages, 10);
  EXPECT_GE(pull->result().good_pages, pinned ? 10 : 8);
  EXPECT_EQ(pull->result().miss, KvStoreMiss::kNotStored);
  EXPECT_EQ(tiers->stats().pulls_failed, 1);
  EXPECT_GE(tiers->stats().tiers[0].read_misses[static_cast<size_t>(KvStoreMiss::kNotStored)], 1);
  pull.reset();
  pool->check_invariants();
}

// The first pages lie in the pinned pool, the next ones below, then the pool has some again.
TEST_F(DeviceTiersTest, PagesOfSeveralTiers) {
  auto made = HostPool::Create(kShape, {.capacity_bytes = int64_t{1} << 20});
  auto under = HostPool::Create(kShape, {.capacity_bytes = int64_t{1} << 20});
  ASSERT_TRUE(made.has_value() && under.has_value());
  const std::shared_ptr<HostPool> pool = *std::move(made);
  const auto gate = std::make_shared<Named>(*std::move(under));
  const std::vector<PrefixKey> all = keys(20);
  for (int64_t i = 0; i < 20; ++i) {
    const std::vector<uint8_t> page = page_of(all[static_cast<size_t>(i)].high);
    const KvStoreWrite write{.key = all[static_cast<size_t>(i)], .parent = {}, .page = page};
    KvStore& store = i < 5 || i >= 15 ? static_cast<KvStore&>(*pool) : *gate;
    ASSERT_TRUE(store.write({&write, 1}, wall_seconds(), {}).ok());
  }
  auto below = make_async_tiers(kShape, {pool, gate}, {});
  ASSERT_TRUE(below.has_value());
  const auto tiers = make(*std::move(below), 6, 2, pool);
  const KvTierMatch found = find(*tiers, 20);
  ASSERT_EQ(found.pages, 20);
  ASSERT_EQ(found.runs.size(), 3u);
  const auto pull = tiers->pull(found, keys(20), first(20), {});
  for (int64_t group = 0; group < 3; ++group) {
    ASSERT_TRUE(pull->wait(group));
    for (int64_t page = 0; page < 20; ++page) EXPECT_TRUE(holds(page, group)) << page << " " << group;
  }
  while (!pull->done()) std::this_thread::yield();
  EXPECT_EQ(pull->result().pages_by_tier, (std::vector<int64_t>{10, 10}));
  EXPECT_EQ(pull->result().good_pages, 20);
  const KvTiersStats stats = tiers->stats();
  EXPECT_EQ(stats.pulls, 1) << "of several parts";
  EXPECT_EQ(stats.tiers[0].pages_read, 10);
  EXPECT_EQ(stats.tiers[1].pages_read, 10);
}

TEST_F(DeviceTiersTest, ErrorsNameFieldValueAndLimit) {
  const auto error = [&](DeviceTiersOptions options) {
    const auto made = make_device_tiers(std::make_shared<GroupGate>(0), &copies_, options);
    return made ? std::string("none") : made.error().message();
  };
  EXPECT_EQ(error({}), "none");
  EXPECT_EQ(error({.pull_bytes = 2463}), "pull_bytes: 2463, must hold a page of 2464 bytes");
  EXPECT_EQ(error({.write_bytes = -1}), "write_bytes: -1, must hold a page of 2464 bytes");
  EXPECT_EQ(error({.most_pages = 0}), "most_pages: 0, must be at least 1");
  EXPECT_EQ(error({.pull_threads = 0}), "pull_threads: 0, must be from 1 to 256");
  EXPECT_EQ(error({.pull_threads = 257}), "pull_threads: 257, must be from 1 to 256");
}

/// A system without pinned memory.
class NoPinnedMemory final : public PageCopies {
  PinnedMemory allocate_pinned(int64_t) override {
    return {nullptr, [](uint8_t*) {}};
  }
  void fence() override {}
  void operators_wait(Ticket) override {}
  Fence last_fence() const override { return 0; }
  Ticket to_device(std::span<const CopyPiece>, Fence) override { return 0; }
  Ticket to_host(std::span<const CopyPiece>, Fence) override { return 0; }
  bool done(Ticket) override { return true; }
  void wait(Ticket) override {}
};

TEST_F(DeviceTiersTest, WithoutPinnedMemoryThereAreNone) {
  NoPinnedMemory none;
  const auto made = make_device_tiers(std::make_shared<GroupGate>(0), &none, {.pull_bytes = 3 * kStride});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().message(), "staging: the system has no 7680 bytes of pinned memory for 3 pages of 2464 bytes");
}

TEST(StagingPages, AreGivenOutOnceFromTheLowestOn) {
  auto pages = StagingPages::Create(&page_copies(host_memory()), 1000, 10 * 1024, 5);
  ASSERT_TRUE(pages.has_value());
  EXPECT_EQ((*pages)->total(), 5);
  EXPECT_EQ((*pages)->bytes(), 5 * 1024);
  std::vector<uint8_t*> all = (*pages)->try_acquire(100);
  ASSERT_EQ(all.size(), 5u);
  for (size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i] - all[i - 1], 1024);
  EXPECT_TRUE((*pages)->try_acquire(1).empty());
  std::stop_source stop;
  std::thread waits([&] { EXPECT_EQ((*pages)->acquire(2, {}), (std::vector{all[1], all[3]})); });
  (*pages)->release(std::vector{all[3], all[1]});
  waits.join();
  std::thread stopped([&] { EXPECT_TRUE((*pages)->acquire(1, stop.get_token()).empty()); });
  stop.request_stop();
  stopped.join();
  EXPECT_EQ((*pages)->free_count(), 0);
  (*pages)->release(all);
  EXPECT_EQ((*pages)->free_count(), 5);
}

}  // namespace
}  // namespace deepinfer
