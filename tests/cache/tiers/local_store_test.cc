// What the local store owes after crashes and damage.

#include "cache/tiers/local_store.h"

#include <rocksdb/db.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "cache/tiers/process.h"
#include "cache/tiers/store_admin.h"
#include "cache/tiers/store_fixture.h"
#include "testing/tmpfs.h"

namespace deepinfer {
namespace {

using namespace store_testing;

std::unique_ptr<LocalStore> open_local(const std::string& path, const std::string& model = "model") {
  auto store = LocalStore::Open(kShape, kv_fingerprint(model, kShape), {.directory = path});
  EXPECT_TRUE(store.has_value()) << store.error().message();
  return store ? *std::move(store) : nullptr;
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

const ProcessRole kWriter("local-writer", [](const std::vector<std::string>& arguments) {
  const auto store = open_local(arguments[0]);
  for (uint64_t n = 1; store != nullptr; ++n) {
    if (!put(*store, n % 500 + 1).ok() || ::write(kProcessOutput, "x", 1) != 1) break;
  }
  return 1;
});

TEST(LocalStore, KilledWritersLeaveWholePages) {
  const Directory directory;
  std::mt19937 random(7);
  for (int round = 0; round < 4; ++round) {
    int output = -1;
    const pid_t writer = start_process("local-writer", {directory.path()}, &output);
    const int64_t written = kill_after(writer, output, 1 + static_cast<int64_t>(random() % 300));
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
    for (const auto& file : std::filesystem::recursive_directory_iterator(directory.path() + "/db")) {
      if (file.is_regular_file() && file.file_size() > 0) files.push_back(file.path());
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

TEST(LocalStore, ADatabaseThatNamesFilesItDoesNotHaveIsPutAside) {
  for (const std::string gone : {"CURRENT", "MANIFEST"}) {
    const Directory directory;
    { ASSERT_TRUE(put(*open_local(directory.path()), 1).ok()); }
    for (const auto& file : std::filesystem::directory_iterator(directory.path() + "/db")) {
      if (!file.path().filename().string().starts_with(gone)) continue;
      if (gone == "CURRENT") {
        std::ofstream(file.path()) << "MANIFEST-999999\n";
      } else {
        std::filesystem::remove(file.path());
      }
    }
    const auto store = open_local(directory.path());
    ASSERT_NE(store, nullptr) << gone;
    EXPECT_EQ(get(*store, 1), KvStoreMiss::kNotStored);
    EXPECT_TRUE(put(*store, 1).ok());
    EXPECT_TRUE(std::filesystem::exists(directory.path() + "/db.damaged"));
  }
}

/// Every record that is there is whole.
void expect_whole(const LocalStore& store) {
  EXPECT_TRUE(store
                  .visit([](const PrefixKey&, std::span<const uint8_t> record, double) {
                    KvStoreMiss why = KvStoreMiss::kNone;
                    const auto parsed = parse_record(record, why);
                    return parsed ? Status::Ok() : parsed.error();
                  })
                  .ok());
}

/// RocksDB goes on when there is room for the memtables of all its column families, and looks every few seconds.
constexpr int64_t kRoomy = int64_t{1} << 30;

bool recovers(LocalStore& store) {
  for (int attempt = 0; attempt < 1200; ++attempt) {
    if (put(store, 5000).ok()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

TEST(LocalStore, AFullDiskIsAnErrorUntilThereIsRoom) {
  const Directory directory;
  const testing::Tmpfs disk(directory.path(), 64 << 20);
  if (!disk.why_absent().empty()) GTEST_SKIP() << "may not mount a tmpfs: " << disk.why_absent();
  auto store = std::move(
      *LocalStore::Open(kShape, kv_fingerprint("model", kShape), {.directory = directory.path(), .memtable_bytes = 1 << 16}));
  for (uint64_t n = 1; n <= 40; ++n) ASSERT_TRUE(put(*store, n).ok());
  ASSERT_TRUE(disk.leave_room(int64_t{64} << 10));
  uint64_t n = 41;
  Status status;
  for (; status.ok() && n < 2000; ++n) status = put(*store, n);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(directory.path()), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("No space"), std::string::npos) << status.message();
  for (uint64_t i = 0; i < 20; ++i) EXPECT_FALSE(put(*store, 3000 + i).ok()) << "it neither hangs nor pretends";
  for (uint64_t i = 1; i <= n; ++i) {
    const KvStoreMiss miss = get(*store, i);  // wrong bytes fail by themselves
    EXPECT_TRUE(miss == KvStoreMiss::kNone || i > 40) << i;
  }
  ASSERT_TRUE(disk.leave_room(kRoomy));
  ASSERT_TRUE(recovers(*store));
  for (uint64_t i = 5000; i < 5050; ++i) {
    status = put(*store, i);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (uint64_t i = 5000; i < 5050; ++i) EXPECT_EQ(get(*store, i), KvStoreMiss::kNone);
  expect_whole(*store);
  store.reset();
  store = open_local(directory.path());
  ASSERT_NE(store, nullptr);
  for (uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(get(*store, i), KvStoreMiss::kNone) << i;
  for (uint64_t i = 5000; i < 5050; ++i) EXPECT_EQ(get(*store, i), KvStoreMiss::kNone) << i;
  expect_whole(*store);
}

TEST(LocalStore, ADiskThatWasAwayIsUsedAgain) {
  const Directory directory, other;
  testing::Tmpfs disk(directory.path(), kRoomy);
  if (!disk.why_absent().empty()) GTEST_SKIP() << "may not mount a tmpfs: " << disk.why_absent();
  auto store = std::move(
      *LocalStore::Open(kShape, kv_fingerprint("model", kShape), {.directory = directory.path(), .memtable_bytes = 1 << 16}));
  for (uint64_t n = 1; n <= 40; ++n) ASSERT_TRUE(put(*store, n).ok());
  if (!disk.move(other.path())) GTEST_SKIP() << "may not move a mount: " << std::strerror(errno);
  Status status;
  uint64_t n = 41;
  for (; status.ok() && n < 5000; ++n) status = put(*store, n);  // until a file has to be made
  ASSERT_FALSE(status.ok());
  for (uint64_t i = 0; i < 20; ++i) EXPECT_FALSE(put(*store, 6000 + i).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "nothing is made on the disk below";
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone) << "its open files can be read";
  ASSERT_TRUE(disk.move(directory.path()));
  ASSERT_TRUE(recovers(*store));
  for (uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(get(*store, i), KvStoreMiss::kNone) << i;
  for (uint64_t i = 7000; i < 7100; ++i) ASSERT_TRUE(put(*store, i).ok());
  for (uint64_t i = 7000; i < 7100; ++i) EXPECT_EQ(get(*store, i), KvStoreMiss::kNone) << i;
  EXPECT_GE(store->pages(), 141);
  expect_whole(*store);
}

const ProcessRole kLimited("local-limited-writer", [](const std::vector<std::string>& arguments) {
  const auto store = open_local(arguments[0]);
  if (store == nullptr || !put(*store, 1).ok()) return 1;
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 32 << 10, .rlim_max = RLIM_INFINITY};
  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
  Status status;
  for (uint64_t n = 2; status.ok() && n < 1000; ++n) status = put(*store, n);
  if (status.ok() || status.message().find(arguments[0]) == std::string::npos) return 3;
  for (uint64_t n = 2000; n < 2020; ++n) {
    if (put(*store, n).ok()) return 4;
  }
  return get(*store, 1) == KvStoreMiss::kNone ? 0 : 5;
});

/// Where nothing may be mounted the limit of a file's size stands in for a disk without room.
TEST(LocalStore, AFileThatMayNotGrowIsAnErrorAndTheNextProcessGoesOn) {
  const Directory directory;
  EXPECT_EQ(wait_for_process(start_process("local-limited-writer", {directory.path()})), 0);
  const auto store = open_local(directory.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone);
  EXPECT_TRUE(put(*store, 2000).ok());
  EXPECT_EQ(get(*store, 2000), KvStoreMiss::kNone);
  expect_whole(*store);
}

TEST(LocalStore, AVanishedDiskCostsItsPagesUntilItIsBackAndOpenedAgain) {
  const Directory directory, elsewhere;
  testing::Tmpfs disk(directory.path(), kRoomy);
  if (!disk.why_absent().empty()) GTEST_SKIP() << "may not mount a tmpfs: " << disk.why_absent();
  auto store = std::move(
      *LocalStore::Open(kShape, kv_fingerprint("model", kShape), {.directory = directory.path(), .memtable_bytes = 1 << 16}));
  for (uint64_t n = 1; n <= 200; ++n) ASSERT_TRUE(put(*store, n).ok());
  // Open files stay open, as when a file system is unmounted lazily; new ones cannot be made.
  if (!disk.move(elsewhere.path())) GTEST_SKIP() << "may not move a mount: " << std::strerror(errno);
  Status status;
  for (uint64_t n = 201; status.ok() && n <= 2000; ++n) status = put(*store, n);
  EXPECT_FALSE(status.ok());
  for (uint64_t n = 1; n <= 600; ++n) (void)get(*store, n);  // wrong bytes fail by themselves
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "nothing is made on the disk below";
  ASSERT_TRUE(disk.move(directory.path()));
  store.reset();
  store = open_local(directory.path());
  ASSERT_NE(store, nullptr);
  for (uint64_t n = 1; n <= 200; ++n) EXPECT_EQ(get(*store, n), KvStoreMiss::kNone) << n;
  EXPECT_TRUE(put(*store, 5000).ok());
  expect_whole(*store);
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
  // A quarter more, the file that is appended to and one that isn't worth it, and RocksDB's own.
  EXPECT_LE(stats.file_bytes, options.capacity_bytes * 5 / 4 + 3 * (256 << 10) + (8 << 20));
}

TEST(LocalStore, WhatIsLeftOfAFileMovesAndIsFoundThere) {
  const Directory directory;
  const LocalStoreOptions options{.directory = directory.path(), .capacity_bytes = 16 << 20};
  constexpr uint64_t kPages = 2000;
  const auto keeps = [](uint64_t n) { return n % 7 == 0; };
  {
    auto store = std::move(*LocalStore::Open(kShape, kv_fingerprint("model", kShape), options));
    for (uint64_t n = 1; n <= kPages; ++n) {
      ASSERT_TRUE(put(*store, n, 1000, true, keeps(n) ? CacheClass::kPinned : CacheClass::kChat).ok());
    }
    const int64_t before = store->stats().file_bytes;
    const double later = 1000 + 2 * 86400;  // chat's time is over
    std::atomic<bool> over{false};
    std::thread reader([&] {
      for (uint64_t n = 7; !over; n = n + 7 > kPages ? 7 : n + 7) {  // those that stay
        EXPECT_EQ(get(*store, n, later), KvStoreMiss::kNone) << n;
      }
    });
    ASSERT_TRUE(store->collect_garbage(later, {}).ok());
    over = true;
    reader.join();
    const LocalStoreStats stats = store->stats();
    EXPECT_EQ(stats.expired, static_cast<int64_t>(kPages - kPages / 7));
    EXPECT_GT(stats.moved, 0);
    EXPECT_LT(stats.file_bytes, before / 2);
    for (uint64_t n = 1; n <= kPages; ++n) {
      EXPECT_EQ(get(*store, n, later), keeps(n) ? KvStoreMiss::kNone : KvStoreMiss::kNotStored) << n;
    }
  }
  const auto store = std::move(*LocalStore::Open(kShape, kv_fingerprint("model", kShape), options));
  for (uint64_t n = 1; n <= kPages; ++n) EXPECT_EQ(get(*store, n), keeps(n) ? KvStoreMiss::kNone : KvStoreMiss::kNotStored) << n;
}

TEST(LocalStore, ExpiredPagesGoWithoutTheStoreBeingFull) {
  const Directory directory;
  LocalStoreOptions options{.directory = directory.path()};
  options.retention.ttl_seconds = {1000, 1000, 1000};
  auto store = std::move(*LocalStore::Open(kShape, kv_fingerprint("model", kShape), options));
  for (uint64_t n = 1; n <= 5; ++n) ASSERT_TRUE(put(*store, n, 10000).ok());
  ASSERT_TRUE(put(*store, 6, 10900).ok());
  EXPECT_EQ(store->pages(), 6);
  ASSERT_TRUE(put(*store, 7, 11300).ok());
  EXPECT_EQ(store->pages(), 2) << "the first five had until 11000";
  // A clock that was a century ahead for a moment doesn't keep the next collection away for so long.
  ASSERT_TRUE(put(*store, 8, 4e9).ok());
  ASSERT_TRUE(put(*store, 9, 11400).ok());
  ASSERT_TRUE(put(*store, 10, 13000).ok());
  EXPECT_EQ(get(*store, 9, 13000), KvStoreMiss::kNotStored);
}

TEST(LocalStore, AStoreOfAnEarlierVersionIsRemoved) {
  const Directory directory;
  {
    // As it was: headers and rows in column families of one database.
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, directory.path() + "/db", &opened).ok());
    const std::unique_ptr<rocksdb::DB> database(opened);
    for (const char* name : {"headers", "rows"}) {
      rocksdb::ColumnFamilyHandle* family = nullptr;
      ASSERT_TRUE(database->CreateColumnFamily({}, name, &family).ok());
      ASSERT_TRUE(database->DestroyColumnFamilyHandle(family).ok());
    }
  }
  const auto looked_at = open_store_admin({.directory = directory.path(), .read_only = true});
  ASSERT_FALSE(looked_at.has_value());
  EXPECT_NE(looked_at.error().message().find("earlier version"), std::string::npos) << looked_at.error().message();
  const auto store = open_local(directory.path());
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(put(*store, 1).ok());
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone);
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/db.damaged"));
}

TEST(LocalStore, RowsThatHaveGoneAreAMissAndAreReplaced) {
  const Directory directory;
  {
    const auto store = open_local(directory.path());
    for (uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(put(*store, n).ok());
  }
  for (const auto& file : std::filesystem::directory_iterator(directory.path() + "/db/rows"))
    std::filesystem::remove(file.path());
  const auto store = open_local(directory.path());
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kCorrupt);
  const std::vector<PrefixKey> keys = {key(1)};
  EXPECT_EQ(store->match(keys, true, 1000, {}).reason, KvStoreMiss::kCorrupt);
  ASSERT_TRUE(put(*store, 1).ok());
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone);
}

}  // namespace
}  // namespace deepinfer
