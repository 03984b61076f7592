// Names, times and what several engines on one directory see of each other.

#include "cache/tiers/shared_store.h"

#include <sys/stat.h>

#include "cache/tiers/process.h"
#include "cache/tiers/shared_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;

TEST(SharedLayout, AFileTimeKeepsExpiryAndClass) {
  for (const double expiry : {0.0, 1.0, 3.9, 4.0, 87400.0, 1.8e9, 4.1e9}) {
    for (size_t c = 0; c < kCacheClassCount; ++c) {
      const PageTime time{.expiry = expiry, .cache_class = static_cast<CacheClass>(c)};
      const PageTime back = to_page_time(to_file_time(time));
      EXPECT_GE(back.expiry, expiry) << "nothing goes earlier than it was promised";
      EXPECT_LT(back.expiry, expiry + 4);
      EXPECT_EQ(back.cache_class, time.cache_class);
    }
  }
  EXPECT_EQ(to_page_time({.tv_sec = -5, .tv_nsec = 0}).expiry, 0);
  EXPECT_EQ(to_page_time({.tv_sec = 103, .tv_nsec = 0}).cache_class, CacheClass::kChat);
  EXPECT_LE(to_page_time(to_file_time({.expiry = 1e300, .cache_class = CacheClass::kChat})).expiry, 1e11);
}

TEST(SharedLayout, OnlyNamesOfPagesAreTakenForPages) {
  const std::string digits = "0123456789abcdef0123456789abcdef";
  const auto page = parse_page_name(digits + ".bounded");
  ASSERT_TRUE(page.has_value());
  EXPECT_EQ(key_text(page->key), digits);
  EXPECT_FALSE(page->exact);
  EXPECT_TRUE(parse_page_name(digits + ".exact")->exact);
  for (const std::string& name : {digits, digits + ".", digits + ".exact2", digits.substr(1) + ".exact", digits + "0.exact",
                                  "+" + digits.substr(1) + ".exact", "A" + digits.substr(1) + ".exact", std::string(".exact")}) {
    EXPECT_FALSE(parse_page_name(name).has_value()) << name;
  }
}

const ProcessRole kPeer("shared-peer", [](const std::vector<std::string>& arguments) {
  const auto store = open_shared(arguments[0]);
  return get(*store, 1) == KvStoreMiss::kNone && put(*store, 2).ok() ? 0 : 1;
});

TEST(SharedStore, EnginesSeeEachOthersPagesAtOnce) {
  const Directory directory;
  const auto one = open_shared(directory.path());
  const auto other = open_shared(directory.path());
  ASSERT_TRUE(put(*one, 1).ok());
  EXPECT_EQ(get(*other, 1), KvStoreMiss::kNone);
  EXPECT_EQ(wait_for_process(start_process("shared-peer", {directory.path()})), 0);
  EXPECT_EQ(get(*one, 2), KvStoreMiss::kNone);
}

TEST(SharedStore, ModelsAndVersionsOnOneDirectoryDoNotMix) {
  const Directory directory;
  const auto one = open_shared(directory.path());
  const auto other = open_shared(directory.path(), "another model");
  ASSERT_TRUE(put(*one, 1).ok());
  EXPECT_EQ(get(*other, 1), KvStoreMiss::kNotStored);
  ASSERT_TRUE(put(*other, 2).ok());
  EXPECT_EQ(get(*one, 2), KvStoreMiss::kNotStored);
  // Even under the other's names they are refused: the fingerprint is in what every checksum begins with.
  const std::string from = path_of(directory.path(), 1);
  const std::string to = page_path(generation_path(directory.path(), "another model"), key(1), true);
  std::filesystem::create_directories(std::filesystem::path(to).parent_path());
  std::filesystem::copy_file(from, to);
  EXPECT_EQ(get(*other, 1), KvStoreMiss::kFingerprint);
}

TEST(SharedStore, UsesMoveTheTimeOfAFileOnlyWhenItMatters) {
  const Directory directory;
  const auto store = open_shared(directory.path());
  ASSERT_TRUE(put(*store, 1, 1000).ok());
  const auto expiry = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(path_of(directory.path(), 1).c_str(), &status), 0);
    return to_page_time(status.st_mtim);
  };
  EXPECT_EQ(expiry().expiry, 1000 + 86400);
  const PrefixKey first = key(1);
  ASSERT_TRUE(store->touch({&first, 1}, CacheClass::kChat, 1100, {}).ok());
  EXPECT_EQ(expiry().expiry, 1000 + 86400) << "a hundred seconds of a day";
  ASSERT_TRUE(store->touch({&first, 1}, CacheClass::kChat, 9000, {}).ok());
  EXPECT_EQ(expiry().expiry, 9000 + 86400);
  ASSERT_TRUE(store->touch({&first, 1}, CacheClass::kAgent, 9000, {}).ok());
  EXPECT_EQ(expiry().cache_class, CacheClass::kAgent);
  ASSERT_TRUE(put(*store, 1, 9000, true, CacheClass::kChat).ok());
  EXPECT_EQ(expiry().cache_class, CacheClass::kAgent) << "the higher class stays";
  EXPECT_EQ(expiry().expiry, 9000 + 3 * 86400);
}

TEST(SharedStore, AnUnmountedDirectoryIsNotFilled) {
  const Directory directory;
  const std::string mount = directory.path() + "/mount";
  const auto missing = SharedStore::Open(kShape, kv_fingerprint("model", kShape), shared_options(mount));
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message().find(mount), std::string::npos);
  std::filesystem::create_directory(mount);
  const auto store = open_shared(mount);
  ASSERT_TRUE(put(*store, 1).ok());
  std::filesystem::rename(mount, directory.path() + "/away");
  std::filesystem::create_directory(mount);  // what lies under a mount point
  const PrefixKey first = key(1);
  EXPECT_EQ(store->match({&first, 1}, true, 1000, {}).reason, KvStoreMiss::kUnavailable);
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kUnavailable);
  const Status written = put(*store, 2);
  EXPECT_EQ(written.code(), StatusCode::kUnavailable);
  EXPECT_NE(written.message().find(mount), std::string::npos) << written.message();
  EXPECT_TRUE(std::filesystem::is_empty(mount));
  std::filesystem::remove(mount);
  EXPECT_FALSE(put(*store, 2).ok());
  std::filesystem::rename(directory.path() + "/away", mount);
  EXPECT_EQ(get(*store, 1), KvStoreMiss::kNone) << "it is back";
  EXPECT_TRUE(put(*store, 2).ok());
}

TEST(SharedStore, WithoutTimeToCheckAMatchMayPromiseTooMuchAndTheReadSaysSo) {
  const Directory directory;
  SharedStoreOptions options = shared_options(directory.path());
  options.match_check_seconds = 0;
  const auto store = open_shared(options);
  std::vector<PrefixKey> keys;
  for (uint64_t n = 1; n <= 40; ++n) {
    ASSERT_TRUE(put(*store, n).ok());
    keys.push_back(key(n));
  }
  std::filesystem::remove(path_of(directory.path(), 7));
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 40);
  EXPECT_EQ(get(*store, 7), KvStoreMiss::kNotStored);
}

TEST(SharedStore, OptionsOutOfRangeAreNamed) {
  const Directory directory;
  SharedStoreOptions options = shared_options(directory.path());
  options.gc.generation_seconds = std::nan("");
  const auto store = SharedStore::Open(kShape, kv_fingerprint("model", kShape), options);
  ASSERT_FALSE(store.has_value());
  EXPECT_NE(store.error().message().find("generation_seconds"), std::string::npos);
  EXPECT_FALSE(SharedStore::Open({}, {}, shared_options(directory.path())).has_value()) << "a page without groups";
}

}  // namespace
}  // namespace deepinfer
