// What every store owes, and what the local one owes after crashes and damage.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "cache/tiers/host_pool.h"
#include "cache/tiers/local_store.h"

namespace deepinfer {
namespace {

const KvPageShape kShape{.group_bytes = {1600, 2400, 800}};

PrefixKey key(uint64_t n) { return {n * 0x9E3779B97F4A7C15u, ~n}; }

std::vector<uint8_t> page_of(uint64_t n, bool exact = true) {
  std::vector<uint8_t> page(static_cast<size_t>(kShape.page_bytes()));
  std::mt19937_64 random(n * 2 + static_cast<uint64_t>(exact));
  for (uint8_t& byte : page) byte = static_cast<uint8_t>(random());
  return page;
}

Status put(KvStore& store, uint64_t n, double now = 1000, bool exact = true, CacheClass cache_class = CacheClass::kChat) {
  const std::vector<uint8_t> page = page_of(n, exact);
  const KvStoreWrite write{.key = key(n), .parent = key(n - 1), .cache_class = cache_class, .exact = exact, .page = page};
  return store.write({&write, 1}, now, {});
}

/// kNone only if every group came and is right; bytes that are wrong fail the test.
KvStoreMiss get(KvStore& store, uint64_t n, double now = 1000, bool exact = true) {
  const std::vector<uint8_t> page = page_of(n, exact);
  KvStoreMiss miss = KvStoreMiss::kNone;
  for (size_t group = 0; group < kShape.group_bytes.size(); ++group) {
    std::vector<uint8_t> into(static_cast<size_t>(kShape.group_bytes[group]));
    KvStoreRead read{.key = key(n), .group = static_cast<int64_t>(group), .into = into, .exact_only = exact};
    store.read({&read, 1}, now, {});
    if (read.miss != KvStoreMiss::kNone) {
      miss = read.miss;
      continue;
    }
    const auto begin = page.begin() + kShape.group_offset(static_cast<int64_t>(group));
    EXPECT_TRUE(std::equal(into.begin(), into.end(), begin)) << "wrong bytes of page " << n;
  }
  return miss;
}

class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "deepinfer-kv-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::unique_ptr<LocalStore> open_local(const std::string& path, const std::string& model = "model") {
  auto store = LocalStore::Open(kShape, kv_fingerprint(model, kShape), {.directory = path});
  EXPECT_TRUE(store.has_value()) << store.error().message();
  return store ? *std::move(store) : nullptr;
}

class Stores : public ::testing::TestWithParam<std::string> {
 protected:
  Stores() {
    if (GetParam() == "host") {
      store_ = std::move(*HostPool::Create(kShape, {.capacity_bytes = 1 << 20, .retention = {}}));
    } else {
      store_ = open_local(directory_.path());
    }
  }
  Directory directory_;
  std::unique_ptr<KvStore> store_;
};
INSTANTIATE_TEST_SUITE_P(All, Stores, ::testing::Values("host", "local"), [](const auto& param) { return param.param; });

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
  ASSERT_TRUE(store_->erase({&keys[3], 1}, {}).ok());
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
  EXPECT_EQ(store_->match(keys, true, 1000 + 86400, {}).pages, 1);
  // A clock that ran ahead by a century; the next use under the right one takes the time back to what the classes allow.
  ASSERT_TRUE(store_->touch(keys, CacheClass::kChat, 4e9, {}).ok());
  ASSERT_TRUE(store_->touch(keys, CacheClass::kChat, 60000, {}).ok());
  EXPECT_LE(store_->match(keys, true, 60000, {}).ttl_seconds, KvRetention{}.longest_ttl());
  EXPECT_EQ(get(*store_, 1, 60000), KvStoreMiss::kNone);
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

TEST(LocalStore, ASecondProcessSeesWhatAFirstWroteAndModelsDoNotMix) {
  const Directory directory;
  { ASSERT_TRUE(put(*open_local(directory.path()), 1).ok()); }
  EXPECT_EQ(get(*open_local(directory.path()), 1), KvStoreMiss::kNone);
  const auto other = open_local(directory.path(), "another model");
  EXPECT_EQ(get(*other, 1), KvStoreMiss::kFingerprint);
  const std::vector<PrefixKey> keys = {key(1)};
  EXPECT_EQ(other->match(keys, false, 1000, {}).reason, KvStoreMiss::kFingerprint);
  EXPECT_FALSE(LocalStore::Open(kShape, {}, {.directory = directory.path()}).has_value()) << "opened twice at once";
}

TEST(LocalStore, KilledWritersLeaveWholePages) {
  const Directory directory;
  std::mt19937 random(7);
  for (int round = 0; round < 4; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t writer = ::fork();
    if (writer == 0) {
      const auto store = open_local(directory.path());
      for (uint64_t n = 1; store != nullptr; ++n) {
        if (!put(*store, n % 500 + 1).ok() || ::write(ends[1], "x", 1) != 1) ::_exit(1);
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    // At a random number of pages rather than a time: a busy machine changes nothing.
    int64_t written = 0;
    const int64_t wanted = 1 + static_cast<int64_t>(random() % 300);
    char byte = 0;
    while (written < wanted && ::read(ends[0], &byte, 1) == 1) ++written;
    ::kill(writer, SIGKILL);
    int status = 0;
    ::waitpid(writer, &status, 0);
    ::close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto store = open_local(directory.path());
    ASSERT_NE(store, nullptr);
    for (int64_t n = 1; n <= written; ++n) EXPECT_EQ(get(*store, static_cast<uint64_t>(n % 500 + 1)), KvStoreMiss::kNone);
    ASSERT_TRUE(store
                    ->visit([](const PrefixKey&, std::span<const uint8_t> record, double) {
                      KvStoreMiss why = KvStoreMiss::kNone;
                      const auto parsed = parse_record(record, why);
                      return parsed ? Status::Ok() : parsed.error();
                    })
                    .ok());
  }
}

TEST(LocalStore, DamagedFilesAreMissesOrAreReplacedNeverWrongBytes) {
  std::mt19937 random(11);
  for (int round = 0; round < 12; ++round) {
    const Directory directory;
    {
      const auto store = open_local(directory.path());
      for (uint64_t n = 1; n <= 40; ++n) ASSERT_TRUE(put(*store, n).ok());
    }
    { open_local(directory.path()); }  // moves the log's pages into files of their own
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(directory.path() + "/db")) {
      if (file.file_size() > 0) files.push_back(file.path());
    }
    std::sort(files.begin(), files.end());
    const auto& victim = files[random() % files.size()];
    const auto size = std::filesystem::file_size(victim);
    if (round % 3 == 0) {
      std::filesystem::resize_file(victim, size / 2);
    } else {
      std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(random() % size);
      file.seekg(at);
      const char flipped = static_cast<char>(file.get() ^ (1 << random() % 8));
      file.seekp(at);
      file.put(flipped);
    }
    const auto store = open_local(directory.path());
    ASSERT_NE(store, nullptr) << victim;
    for (uint64_t n = 1; n <= 40; ++n) get(*store, n);
  }
}

TEST(LocalStore, ChurnStaysWithinTheSize) {
  const Directory directory;
  LocalStoreOptions options{.directory = directory.path(), .capacity_bytes = 4 << 20};
  auto store = std::move(*LocalStore::Open(kShape, kv_fingerprint("model", kShape), options));
  for (uint64_t n = 1; n <= 10000; ++n) ASSERT_TRUE(put(*store, n, static_cast<double>(n)).ok());
  const LocalStoreStats stats = store->stats();
  EXPECT_LE(stats.bytes, options.capacity_bytes);
  EXPECT_GT(stats.evicted, 0);
  int64_t records = 0;
  ASSERT_TRUE(store
                  ->visit([&](const PrefixKey&, std::span<const uint8_t> record, double) {
                    ++records;
                    KvStoreMiss why = KvStoreMiss::kNone;
                    const auto parsed = parse_record(record, why);
                    return parsed ? Status::Ok() : parsed.error();
                  })
                  .ok());
  EXPECT_EQ(records, stats.pages);
  EXPECT_EQ(get(*store, 10000, 10000), KvStoreMiss::kNone);
}

}  // namespace
}  // namespace deepinfer
