#include "cache/tiers/shared_gc.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

#include "cache/tiers/process.h"
#include "cache/tiers/shared_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;

constexpr double kDay = 86400;

/// Sets a file's mtime to `seconds` before now.
void age(const std::string& path, double seconds) {
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = static_cast<time_t>(wall_seconds() - seconds), .tv_nsec = 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0) << path;
}

TEST(SharedGc, WhatHasExpiredGoesAndWhatWasUsedStays) {
  const Directory directory;
  const auto store = open_shared(directory.path());
  for (uint64_t n = 1; n <= 20; ++n) ASSERT_TRUE(put(*store, n, 1000).ok());
  std::vector<PrefixKey> used;
  for (uint64_t n = 1; n <= 5; ++n) used.push_back(key(n));
  ASSERT_TRUE(store->touch(used, CacheClass::kChat, 50000, {}).ok());
  std::ofstream(generation_path(directory.path()) + "/notes") << "somebody's";
  std::ofstream(std::filesystem::path(path_of(directory.path(), 1)).parent_path() / "notes") << "somebody's";
  const auto collected = store->collect_garbage(1000 + kDay + 10, {});
  ASSERT_TRUE(collected.has_value()) << collected.error().message();
  EXPECT_EQ(collected->expired.pages, 15);
  EXPECT_EQ(collected->kept.pages, 5);
  EXPECT_EQ(collected->expired.bytes, 15 * record_bytes(kShape));
  EXPECT_EQ(store->match(used, true, 50000, {}).pages, 5);
  EXPECT_EQ(count_files(directory.path(), "notes"), 2) << "what is none of ours stays";
}

TEST(SharedGc, StoreAndClassesAreBroughtWithinTheirSizes) {
  const Directory directory;
  const int64_t record = record_bytes(kShape);
  SharedStoreOptions options = shared_options(directory.path());
  options.gc.capacity_bytes = 100 * record;
  options.gc.retention.max_fraction = {0.5, 1, 0.1};
  const auto store = open_shared(options);
  uint64_t n = 1;
  for (; n <= 80; ++n) ASSERT_TRUE(put(*store, n, static_cast<double>(1000 * n), true, CacheClass::kChat).ok());
  for (; n <= 160; ++n) ASSERT_TRUE(put(*store, n, static_cast<double>(1000 * n), true, CacheClass::kAgent).ok());
  for (; n <= 180; ++n) ASSERT_TRUE(put(*store, n, 80000, true, CacheClass::kPinned).ok());
  const auto collected = store->collect_garbage(80000, {});
  ASSERT_TRUE(collected.has_value()) << collected.error().message();
  EXPECT_LE(collected->kept.bytes, options.gc.capacity_bytes);
  EXPECT_GE(collected->kept.pages, 85) << "not more than it takes";
  const auto report = open_shared_admin(directory.path())->stat(80000, {});
  ASSERT_TRUE(report.has_value());
  const auto& generation = report->generations.begin()->second;
  EXPECT_LE(generation.by_class[0].pages, 50);
  EXPECT_LE(generation.by_class[2].pages, 10);
  EXPECT_GE(generation.by_class[2].pages, 8);
  EXPECT_EQ(get(*store, 1, 80000), KvStoreMiss::kNotStored) << "what would expire first goes first";
  EXPECT_EQ(get(*store, 160, 80000), KvStoreMiss::kNone);
}

TEST(SharedGc, AGenerationThatNobodyOpensGoesAsAWhole) {
  const Directory directory;
  const auto store = open_shared(directory.path());
  ASSERT_TRUE(put(*store, 1).ok());
  { ASSERT_TRUE(put(*open_shared(directory.path(), "old model"), 2).ok()); }
  { ASSERT_TRUE(put(*open_shared(directory.path(), "living model"), 3).ok()); }
  age(generation_path(directory.path(), "old model") + "/last_open", 8 * kDay);
  age(generation_path(directory.path(), "living model") + "/last_open", 6 * kDay);
  age(generation_path(directory.path()) + "/last_open", 99 * kDay);
  const auto collected = store->collect_garbage(1000, {});
  ASSERT_TRUE(collected.has_value()) << collected.error().message();
  EXPECT_EQ(collected->generations, 1);
  EXPECT_FALSE(std::filesystem::exists(generation_path(directory.path(), "old model")));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() + "/trash"));
  EXPECT_EQ(get(*open_shared(directory.path(), "living model"), 3), KvStoreMiss::kNone);
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone) << "its own is in use, whatever the stamp says";
  // An engine that somebody else's collection took for dead makes its generation anew.
  age(generation_path(directory.path()) + "/last_open", 99 * kDay);
  ASSERT_TRUE(open_shared_admin(directory.path())->gc(1000, {}).has_value());
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNotStored);
  ASSERT_TRUE(put(*store, 1).ok());
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone);
  EXPECT_TRUE(std::filesystem::exists(generation_path(directory.path()) + "/last_open"));
}

TEST(SharedGc, WhatAKilledCollectionLeftInTheTrashGoes) {
  const Directory directory;
  { ASSERT_TRUE(put(*open_shared(directory.path(), "old model"), 2).ok()); }
  std::filesystem::create_directory(directory.path() + "/trash");
  std::filesystem::rename(generation_path(directory.path(), "old model"), directory.path() + "/trash/half-removed");
  const auto store = open_shared(directory.path());
  ASSERT_TRUE(store->collect_garbage(1000, {}).has_value());
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() + "/trash"));
}

TEST(SharedGc, AClockThatIsWrongRemovesNothing) {
  const Directory directory;
  SharedStoreOptions options = shared_options(directory.path());
  options.gc.max_clock_skew_seconds = 600;
  const auto store = open_shared(options);
  const double now = wall_seconds();
  ASSERT_TRUE(put(*store, 1, now).ok());
  for (const double wrong : {now + 10 * 365 * kDay, now - 2000, 0.0}) {
    const auto collected = store->collect_garbage(wrong, {});
    ASSERT_FALSE(collected.has_value());
    EXPECT_NE(collected.error().message().find("600"), std::string::npos) << collected.error().message();
    EXPECT_NE(collected.error().message().find(directory.path()), std::string::npos);
  }
  EXPECT_TRUE(store->collect_garbage(now, {}).has_value());
  EXPECT_EQ(get(*store, 1, now), KvStoreMiss::kNone);
}

TEST(SharedGc, PagesOfAClockThatRanAheadGetTheirTimeAnew) {
  const Directory directory;
  const auto store = open_shared(directory.path());
  ASSERT_TRUE(put(*store, 1, 4e9, true, CacheClass::kAgent).ok());  // a century ahead
  const PrefixKey first = key(1);
  EXPECT_EQ(store->match({&first, 1}, true, 1000, {}).ttl_seconds, KvRetention{}.longest_ttl()) << "no more is promised";
  ASSERT_TRUE(store->collect_garbage(1000, {}).has_value());
  EXPECT_EQ(store->match({&first, 1}, true, 1000, {}).ttl_seconds, 3 * kDay);
  ASSERT_TRUE(put(*store, 2, 1000 - 40 * kDay).ok());  // a clock behind: gone before anybody sees it
  const PrefixKey second = key(2);
  EXPECT_EQ(store->match({&second, 1}, true, 1000, {}).reason, KvStoreMiss::kExpired);
}

constexpr int kEngines = 5;

SharedStoreOptions crowded(const std::string& directory) {
  SharedStoreOptions options = shared_options(directory);
  options.gc.capacity_bytes = 30 * record_bytes(kShape);  // half of the pages are always too many
  return options;
}

/// Of five engines two write and read, one reads, one does so for another model, and one collects garbage.
const ProcessRole kEngine("shared-engine", [](const std::vector<std::string>& arguments) {
  constexpr uint64_t kPages = 60;
  constexpr int kRounds = 400;
  const int which = std::stoi(arguments[1]);
  const auto store = open_shared(crowded(arguments[0]), which == 3 ? "another model" : "model");
  std::mt19937_64 random(static_cast<uint64_t>(which));
  int64_t hits = 0;
  for (int i = 0; i < kRounds; ++i) {
    const uint64_t n = 1 + random() % kPages;
    const double now = 1000 + i;
    if (which == 4) {
      if (i % 10 == 0 && !store->collect_garbage(now, {}).has_value()) return 2;
      continue;
    }
    if (which != 1 && !put(*store, n, now).ok()) return 3;
    const KvStoreMiss miss = get(*store, n, now);  // fails by itself if bytes are wrong
    if (::testing::Test::HasFailure()) return 4;
    if (miss != KvStoreMiss::kNone && miss != KvStoreMiss::kNotStored) return 5;
    hits += miss == KvStoreMiss::kNone;
  }
  return which == 0 && hits == 0 ? 6 : 0;
});

TEST(SharedGc, WritersReadersAndCollectorsOfSeveralProcessesNeverDisagree) {
  const Directory directory;
  std::vector<pid_t> processes;
  for (int which = 0; which < kEngines; ++which) {
    processes.push_back(start_process("shared-engine", {directory.path(), std::to_string(which)}));
  }
  for (const pid_t process : processes) EXPECT_EQ(wait_for_process(process), 0);
  const auto admin = open_shared_admin(directory.path());
  const auto checked = admin->verify(false, {});
  ASSERT_TRUE(checked.has_value()) << checked.error().message();
  EXPECT_EQ(checked->checked.pages, checked->by_reason[0].pages);
  EXPECT_EQ(count_files(directory.path(), "temporary-"), 0);
}

/// Opens, writes and reads again and again, while its generation is taken for dead by others.
const ProcessRole kReopener("shared-reopener", [](const std::vector<std::string>& arguments) {
  const std::string& directory = arguments[0];
  for (uint64_t n = 1; n <= 60; ++n) {
    // It may be taken away in every attempt: that is an error and no page.
    const auto store = SharedStore::Open(kShape, kv_fingerprint("model", kShape), shared_options(directory));
    if (!store && store.error().code() != StatusCode::kUnavailable) return 1;
    if (!store) continue;
    if (const Status written = put(**store, n); !written.ok() && written.code() != StatusCode::kUnavailable) return 2;
    const KvStoreMiss miss = get(**store, n);
    if (::testing::Test::HasFailure()) return 3;
    if (miss != KvStoreMiss::kNone && miss != KvStoreMiss::kNotStored) return 4;
  }
  return 0;
});

/// Takes every generation for dead, as it sets their stamps back.
const ProcessRole kUndertaker("shared-undertaker", [](const std::vector<std::string>& arguments) {
  SharedGcOptions options = shared_options(arguments[0]).gc;
  options.generation_seconds = 1e-9;
  for (int i = 0; i < 60; ++i) {
    // Errors are what the other undertaker does at the same time.
    (void)collect_shared_garbage(SharedLayout(arguments[0]), options, {}, 1000, {});
    const timespec long_ago[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 1000, .tv_nsec = 0}};
    (void)::utimensat(AT_FDCWD, (generation_path(arguments[0]) + "/last_open").c_str(), long_ago, 0);
  }
  return 0;
});

TEST(SharedGc, EnginesWhoseGenerationIsBuriedUnderThemLosePagesAndNothingElse) {
  const Directory directory;
  open_shared(directory.path());
  std::vector<pid_t> processes;
  for (const char* role : {"shared-reopener", "shared-reopener", "shared-undertaker", "shared-undertaker"}) {
    processes.push_back(start_process(role, {directory.path()}));
  }
  for (const pid_t process : processes) EXPECT_EQ(wait_for_process(process), 0);
  // What is left is whole, and the next engine goes on.
  const auto store = open_shared(directory.path());
  ASSERT_TRUE(put(*store, 1000).ok());
  EXPECT_EQ(get(*store, 1000), KvStoreMiss::kNone);
  ASSERT_TRUE(store->collect_garbage(1000, {}).has_value());
  const auto checked = open_shared_admin(directory.path())->verify(false, {});
  ASSERT_TRUE(checked.has_value());
  EXPECT_EQ(checked->checked.pages, checked->by_reason[0].pages);
}

/// Says of each page that it evicts that it has done so.
const ProcessRole kCollector("shared-collector", [](const std::vector<std::string>& arguments) {
  (void)collect_shared_garbage(SharedLayout(arguments[0]), crowded(arguments[0]).gc, {}, 1000, {},
                               [](const KvFingerprint&, const PrefixKey&) {
                                 if (::write(kProcessOutput, "x", 1) != 1) ::_exit(1);
                               });
  ::pause();
  return 0;
});

TEST(SharedGc, WhatAKilledCollectorBeganAnotherEnds) {
  const Directory directory;
  const auto store = open_shared(crowded(directory.path()));
  std::mt19937 random(5);
  for (int round = 0; round < 4; ++round) {
    for (uint64_t n = 1; n <= 100; ++n) ASSERT_TRUE(put(*store, n, static_cast<double>(n)).ok());
    int output = -1;
    const pid_t collector = start_process("shared-collector", {directory.path()}, &output);
    const int64_t evicted = kill_after(collector, output, 1 + static_cast<int64_t>(random() % 60));
    EXPECT_GT(evicted, 0);
    const auto collected = store->collect_garbage(1000, {});
    ASSERT_TRUE(collected.has_value());
    EXPECT_LE(collected->kept.bytes, crowded(directory.path()).gc.capacity_bytes);
    EXPECT_EQ(get(*store, 100, 1000), KvStoreMiss::kNone) << "what would expire last stays";
  }
  const auto checked = open_shared_admin(directory.path())->verify(false, {});
  ASSERT_TRUE(checked.has_value());
  EXPECT_EQ(checked->checked.pages, checked->by_reason[0].pages);
}

TEST(SharedGc, TenThousandPagesOfChurnVerifyClean) {
  const Directory directory(Directory::quick());
  SharedStoreOptions options = shared_options(directory.path());
  options.gc.capacity_bytes = 1000 * record_bytes(kShape);
  const auto store = open_shared(options);
  int64_t evicted = 0;
  for (uint64_t n = 1; n <= 10000; ++n) {
    ASSERT_TRUE(put(*store, n, static_cast<double>(n)).ok());
    if (n % 1500 == 0) {
      const auto collected = store->collect_garbage(static_cast<double>(n), {});
      ASSERT_TRUE(collected.has_value());
      EXPECT_LE(collected->kept.bytes, options.gc.capacity_bytes);
      EXPECT_GT(collected->kept.pages, 800);
      evicted += collected->evicted.pages;
    }
  }
  const auto checked = open_shared_admin(directory.path())->verify(false, {});
  ASSERT_TRUE(checked.has_value());
  EXPECT_EQ(checked->checked.pages, 10000 - evicted);
  EXPECT_EQ(checked->by_reason[0].pages, checked->checked.pages);
  EXPECT_EQ(get(*store, 10000, 10000), KvStoreMiss::kNone);
}

}  // namespace
}  // namespace deepinfer
