// What a shared directory owes when disks fill up, files are damaged and processes are killed.

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <future>
#include <thread>

#include "cache/tiers/async_tiers.h"
#include "cache/tiers/process.h"
#include "cache/tiers/shared_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;

void flip(const std::string& path, uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.is_open()) << path;
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const char flipped = static_cast<char>(file.get() ^ (1 << bit % 8));
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(flipped);
}

const ProcessRole kWriter("shared-writer", [](const std::vector<std::string>& arguments) {
  const auto store = open_shared(arguments[0]);
  for (uint64_t n = std::stoull(arguments[1]);; ++n) {
    if (!put(*store, n).ok() || ::write(kProcessOutput, "x", 1) != 1) return 1;
  }
});

/// No file of the process may be longer than 2,000 bytes, which is less than a page takes.
void limit_files() {
  const rlimit limit{.rlim_cur = 2000, .rlim_max = 2000};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

/// The signal of that limit ends it in the middle of a page.
const ProcessRole kTornWriter("shared-torn-writer", [](const std::vector<std::string>& arguments) {
  const auto store = open_shared(arguments[0]);
  limit_files();
  (void)put(*store, 9999);
  return 0;
});

TEST(SharedFaults, KilledWritersLeaveWholePagesAndGarbageThatIsCollected) {
  const Directory directory;
  std::mt19937 random(7);
  uint64_t next = 1;
  for (int round = 0; round < 8; ++round) {
    int output = -1;
    const pid_t writer = start_process("shared-writer", {directory.path(), std::to_string(next)}, &output);
    const auto written = static_cast<uint64_t>(kill_after(writer, output, 1 + static_cast<int64_t>(random() % 200)));
    const auto store = open_shared(directory.path());
    for (uint64_t n = next; n < next + written; ++n) EXPECT_EQ(get(*store, n), KvStoreMiss::kNone);
    next += written;
  }
  EXPECT_EQ(wait_for_process(start_process("shared-torn-writer", {directory.path()})), -SIGXFSZ);
  EXPECT_GE(count_files(directory.path(), "temporary-"), 1);
  const auto admin = open_shared_admin(directory.path());
  auto checked = admin->verify(false, {});
  ASSERT_TRUE(checked.has_value());
  EXPECT_GE(checked->checked.pages, static_cast<int64_t>(next) - 1);
  EXPECT_EQ(checked->checked.pages, checked->by_reason[0].pages) << checked->problems[0];
  EXPECT_EQ(get(*open_shared(directory.path()), 9999), KvStoreMiss::kNotStored);

  SharedGcOptions options = shared_options(directory.path()).gc;
  ASSERT_TRUE(collect_shared_garbage(SharedLayout(directory.path()), options, {}, 1000, {}).has_value());
  EXPECT_GE(count_files(directory.path(), "temporary-"), 1) << "it could still be written by somebody";
  options.temporary_seconds = 0;
  ::sleep(1);  // a file's age has seconds
  const auto collected = collect_shared_garbage(SharedLayout(directory.path()), options, {}, 1000, {});
  ASSERT_TRUE(collected.has_value());
  EXPECT_GE(collected->temporary.pages, 1);
  EXPECT_EQ(count_files(directory.path(), "temporary-"), 0);
}

TEST(SharedFaults, TornAndFlippedFilesAreMissesAndAreReplaced) {
  const Directory directory;
  std::mt19937_64 random(5);
  const auto size = static_cast<uint64_t>(record_bytes(kShape));
  for (uint64_t n = 1; n <= 120; ++n) {
    const auto store = open_shared(directory.path());
    ASSERT_TRUE(put(*store, n).ok());
    const std::string path = path_of(directory.path(), n);
    uint64_t at = random() % size;
    if (n % 3 == 0) {
      std::filesystem::resize_file(path, at);
    } else if (n % 3 == 1) {
      flip(path, at * 8 + random() % 8);
    } else {
      std::filesystem::resize_file(path, at);  // as after a power failure: the right length, without the last rows
      std::filesystem::resize_file(path, size);
      at = std::min<uint64_t>(at, size - 1);
    }
    const auto checked = open_shared_admin(directory.path())->verify(false, {});
    ASSERT_TRUE(checked.has_value());
    EXPECT_EQ(checked->checked.pages - checked->by_reason[0].pages, 1) << path << " at " << at;
    const KvStoreMiss miss = get(*store, n);  // fails the test by itself if bytes are wrong
    const bool in_rows = at >= header_bytes(kShape.group_bytes.size());
    EXPECT_TRUE(miss == KvStoreMiss::kCorrupt || (!in_rows && n % 3 != 0)) << kv_store_miss_name(miss) << " at " << at;
    if (miss != KvStoreMiss::kNone) {
      const PrefixKey looked_for = key(n);
      EXPECT_EQ(store->match({&looked_for, 1}, true, 1000, {}).pages, 0) << "it is not promised again";
      ASSERT_TRUE(put(*store, n).ok());
      EXPECT_EQ(get(*store, n), KvStoreMiss::kNone);
      EXPECT_EQ(store->match({&looked_for, 1}, true, 1000, {}).pages, 1);
    }
    std::filesystem::remove(path);
  }
}

TEST(SharedFaults, OtherVersionsAndOtherPagesUnderAPagesNameAreRefused) {
  const Directory directory;
  const auto store = open_shared(directory.path());
  for (uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(put(*store, n).ok());
  flip(path_of(directory.path(), 1), 8 * 8 + 1);  // the version
  flip(path_of(directory.path(), 1), 8 * 1000);   // and rows, or nobody would look at it
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kFormat);
  std::filesystem::copy_file(path_of(directory.path(), 3), path_of(directory.path(), 2),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(get(*store, 2), KvStoreMiss::kCorrupt);
  const auto checked = open_shared_admin(directory.path())->verify(true, {});
  ASSERT_TRUE(checked.has_value());
  EXPECT_EQ(checked->removed, 2);
  EXPECT_EQ(checked->by_reason[static_cast<size_t>(KvStoreMiss::kFormat)].pages, 1);
  EXPECT_EQ(checked->by_reason[static_cast<size_t>(KvStoreMiss::kCorrupt)].pages, 1);
  EXPECT_EQ(get(*open_shared(directory.path()), 2), KvStoreMiss::kNotStored);
}

TEST(SharedFaults, WhateverElseHasAPagesNameNeitherBlocksNorLeadsElsewhere) {
  const Directory directory;
  const auto store = open_shared(directory.path());
  for (uint64_t n = 1; n <= 3; ++n) {
    ASSERT_TRUE(put(*store, n).ok());
    std::filesystem::remove(path_of(directory.path(), n));
  }
  const std::string elsewhere = directory.path() + "/elsewhere";
  std::ofstream(elsewhere) << "secret";
  ASSERT_EQ(::mkfifo(path_of(directory.path(), 1).c_str(), 0600), 0);  // a read of it would never end
  std::filesystem::create_symlink(elsewhere, path_of(directory.path(), 2));
  std::filesystem::create_directory(path_of(directory.path(), 3));
  for (uint64_t n = 1; n <= 3; ++n) {
    const PrefixKey looked_for = key(n);
    EXPECT_EQ(store->match({&looked_for, 1}, true, 1000, {}).reason, KvStoreMiss::kCorrupt);
    EXPECT_EQ(get(*store, n), KvStoreMiss::kCorrupt);
  }
  EXPECT_TRUE(put(*store, 1).ok());
  EXPECT_TRUE(put(*store, 2).ok());
  EXPECT_FALSE(put(*store, 3).ok()) << "nobody removes folders";
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone);
  EXPECT_EQ(get(*store, 2), KvStoreMiss::kNone);
  EXPECT_EQ(std::filesystem::file_size(elsewhere), 6U);
}

const ProcessRole kLimitedWriter("shared-limited-writer", [](const std::vector<std::string>& arguments) {
  const std::string& directory = arguments[0];
  const auto store = open_shared(directory);
  ::signal(SIGXFSZ, SIG_IGN);
  limit_files();
  const Status status = put(*store, 2);
  if (status.code() != StatusCode::kResourceExhausted) return 1;
  if (status.message().find(path_of(directory, 2)) == std::string::npos) return 2;
  if (status.message().find(std::to_string(record_bytes(kShape))) == std::string::npos) return 3;
  return get(*store, 2) == KvStoreMiss::kNotStored && get(*store, 1) == KvStoreMiss::kNone ? 0 : 4;
});

/// The limit of a file's size stands in for a disk without room: the same call fails at the same place.
TEST(SharedFaults, APageThatDoesNotFitIsAnErrorThatNamesPathAndSizeAndLeavesNothing) {
  const Directory directory;
  ASSERT_TRUE(put(*open_shared(directory.path()), 1).ok());
  EXPECT_EQ(wait_for_process(start_process("shared-limited-writer", {directory.path()})), 0);
  EXPECT_EQ(count_files(directory.path(), "temporary-"), 0);
  EXPECT_TRUE(put(*open_shared(directory.path()), 2).ok());
}

TEST(SharedFaults, AFullDiskIsAnErrorAndCollectingGarbageMakesRoom) {
  const Directory directory;
  if (::mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=512k,mode=700") != 0) {
    GTEST_SKIP() << "may not mount a tmpfs: " << std::strerror(errno);
  }
  {
    const auto store = open_shared(directory.path());
    uint64_t n = 1;
    Status status;
    for (; status.ok() && n < 1000; ++n) status = put(*store, n, static_cast<double>(n));
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
    EXPECT_EQ(get(*store, 1, 1), KvStoreMiss::kNone);
    EXPECT_EQ(get(*store, n - 1, 1), KvStoreMiss::kNotStored);
    EXPECT_EQ(count_files(directory.path(), "temporary-"), 0);
    const auto collected = store->collect_garbage(86400 + 40, {});
    ASSERT_TRUE(collected.has_value()) << "also on a full disk: " << collected.error().message();
    EXPECT_GT(collected->expired.pages, 20);
    EXPECT_TRUE(put(*store, n, 86440).ok());
    const auto checked = open_shared_admin(directory.path())->verify(false, {});
    ASSERT_TRUE(checked.has_value());
    EXPECT_EQ(checked->checked.pages, checked->by_reason[0].pages);
  }
  EXPECT_EQ(::umount(directory.path().c_str()), 0);
}

const ProcessRole kReadOnly("shared-read-only", [](const std::vector<std::string>& arguments) {
  const std::string& directory = arguments[0];
  // To root nothing is read-only.
  if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return kNotPermitted;
  const auto store = open_shared(directory);
  if (store == nullptr) return 1;
  const PrefixKey first = key(1);
  if (store->match({&first, 1}, true, 1000, {}).pages != 1 || get(*store, 1) != KvStoreMiss::kNone) return 2;
  const Status written = put(*store, 2);
  if (written.code() != StatusCode::kUnavailable || written.message().find(directory) == std::string::npos) return 3;
  if (store->collect_garbage(1000, {}).has_value()) return 4;
  if (get(*store, 1) != KvStoreMiss::kNone) return 5;
  // A model that has no pages there has nothing to read either.
  return SharedStore::Open(kShape, kv_fingerprint("new", kShape), shared_options(directory)).has_value() ? 6 : 0;
});

TEST(SharedFaults, AReadOnlyDirectoryGivesItsPagesAndTakesNone) {
  const Directory directory;
  ASSERT_TRUE(put(*open_shared(directory.path()), 1).ok());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    std::filesystem::permissions(entry.path(), std::filesystem::perms(entry.is_directory() ? 0555 : 0444));
  }
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0555));
  const int code = wait_for_process(start_process("shared-read-only", {directory.path()}));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (entry.is_directory()) std::filesystem::permissions(entry.path(), std::filesystem::perms(0755));
  }
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0755));
  if (code == kNotPermitted) GTEST_SKIP() << "may not become another user";
  EXPECT_EQ(code, 0);
}

/// What an engine sees of such a store: a pull gives the pages up to the first bad one, and right ones only.
TEST(SharedFaults, APullEndsAtTheFirstPageThatIsGoneOrDamaged) {
  constexpr uint64_t kPages = 48;
  std::mt19937_64 random(13);
  for (int round = 0; round < 6; ++round) {
    const Directory directory;
    SharedStoreOptions options = shared_options(directory.path());
    options.match_check_seconds = 0;
    std::vector<PrefixKey> keys;
    std::shared_ptr<SharedStore> store = open_shared(options);
    for (uint64_t n = 1; n <= kPages; ++n) {
      ASSERT_TRUE(put(*store, n, wall_seconds()).ok());
      keys.push_back(key(n));
    }
    AsyncTiersOptions io;
    io.match_seconds = io.pull_seconds = 60;
    const auto tiers = std::move(*make_async_tiers(kShape, {store}, io));
    std::promise<KvTierMatch> promise;
    tiers->match(keys, true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
    const KvTierMatch found = promise.get_future().get();
    ASSERT_EQ(found.pages, static_cast<int64_t>(kPages));
    // Between match and pull: what a collection of garbage, a bad disk or a vanished mount does.
    const uint64_t bad = 1 + random() % kPages;
    KvStoreMiss expected = KvStoreMiss::kNotStored;
    if (round % 3 == 0) std::filesystem::remove(path_of(directory.path(), bad));
    if (round % 3 == 1) {
      flip(path_of(directory.path(), bad), 8 * (header_bytes(kShape.group_bytes.size()) + random() % 800));
      expected = KvStoreMiss::kCorrupt;
    }
    if (round % 3 == 2) {
      std::filesystem::rename(directory.path() + "/generations", directory.path() + "/gone");
      expected = KvStoreMiss::kUnavailable;
    }
    std::vector<std::vector<uint8_t>> buffers(kPages, std::vector<uint8_t>(static_cast<size_t>(kShape.page_bytes())));
    std::vector<uint8_t*> pages;
    for (auto& buffer : buffers) pages.push_back(buffer.data());
    const auto pull = tiers->pull(found, keys, pages, {});
    bool all = true;
    for (size_t group = 0; group < kShape.group_bytes.size(); ++group) all = pull->wait(static_cast<int64_t>(group)) && all;
    EXPECT_FALSE(all);
    while (!pull->done()) std::this_thread::yield();
    const KvPull::Result& result = pull->result();
    EXPECT_EQ(result.miss, expected);
    EXPECT_LT(result.good_pages, static_cast<int64_t>(round % 3 == 2 ? 1 : bad));
    for (int64_t n = 0; n < result.good_pages; ++n) {
      EXPECT_EQ(buffers[static_cast<size_t>(n)], page_of(static_cast<uint64_t>(n) + 1));
    }
  }
}

}  // namespace
}  // namespace deepinfer
