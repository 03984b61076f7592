#include "cache/tiers/store_admin.h"

#include "cache/tiers/local_store.h"
#include "cache/tiers/shared_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;

class Admin : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<KvStore> open(const std::string& directory, const std::string& model = "model") {
    if (GetParam() == "shared") return open_shared(directory, model);
    return std::move(*LocalStore::Open(kShape, kv_fingerprint(model, kShape), {.directory = directory}));
  }
  std::unique_ptr<StoreAdmin> admin(const std::string& directory, StoreAdminOptions options = {}) {
    options.directory = directory;
    auto opened = open_store_admin(options);
    EXPECT_TRUE(opened.has_value()) << opened.error().message();
    return opened ? *std::move(opened) : nullptr;
  }
  Directory directory_;
};
INSTANTIATE_TEST_SUITE_P(All, Admin, ::testing::Values("local", "shared"), [](const auto& param) { return param.param; });

TEST_P(Admin, CountsByGenerationClassExactnessAndAge) {
  {
    const auto store = open(directory_.path());
    for (uint64_t n = 1; n <= 6; ++n)
      ASSERT_TRUE(put(*store, n, 1000, n != 6, n <= 4 ? CacheClass::kChat : CacheClass::kAgent).ok());
  }
  { ASSERT_TRUE(put(*open(directory_.path(), "another model"), 100, 1000).ok()); }
  const auto report = admin(directory_.path())->stat(1000 + 2 * 86400, {});
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->kind, GetParam());
  ASSERT_EQ(report->generations.size(), 2U);
  const auto& mine = report->generations.at(hex_text(kv_fingerprint("model", kShape)));
  EXPECT_EQ(mine.by_class[0].pages, 4);
  EXPECT_EQ(mine.by_class[1].pages, 2);
  EXPECT_EQ(mine.exact.pages, 5);
  EXPECT_EQ(mine.bounded.pages, 1);
  EXPECT_EQ(mine.expired.pages, 4) << "chat's day is over, agents' three are not";
  EXPECT_EQ(mine.by_age[5].pages, 6) << "between one day and three";
  EXPECT_EQ(mine.by_ttl_left[5].pages, 2);
  EXPECT_GT(mine.exact.bytes, 5 * kShape.page_bytes());
  EXPECT_GT(report->file_bytes, 0);
}

TEST_P(Admin, CollectsGarbageOfEveryGeneration) {
  { ASSERT_TRUE(put(*open(directory_.path()), 1, 1000).ok()); }
  { ASSERT_TRUE(put(*open(directory_.path(), "another model"), 2, wall_seconds()).ok()); }
  const auto collected = admin(directory_.path())->gc(wall_seconds(), {});
  ASSERT_TRUE(collected.has_value()) << collected.error().message();
  EXPECT_EQ(collected->expired.pages, 1);
  EXPECT_EQ(collected->kept.pages, 1);
  EXPECT_EQ(get(*open(directory_.path()), 1), KvStoreMiss::kNotStored);
  const auto smaller = admin(directory_.path(), {.directory = {}, .capacity_bytes = 1})->gc(wall_seconds(), {});
  ASSERT_TRUE(smaller.has_value());
  EXPECT_EQ(smaller->evicted.pages, 1);
}

TEST_P(Admin, WhatIsExportedCanBeImportedIntoEitherKindOfStore) {
  {
    const auto store = open(directory_.path());
    for (uint64_t n = 1; n <= 9; ++n) ASSERT_TRUE(put(*store, n, 1000, n % 3 != 0, CacheClass::kAgent).ok());
  }
  const auto from = admin(directory_.path());
  for (const bool shared : {false, true}) {
    const Directory other;
    if (shared) {
      open_shared(other.path());
    } else {
      ASSERT_TRUE(LocalStore::Open(kShape, kv_fingerprint("model", kShape), {.directory = other.path()}).has_value());
    }
    {
      const auto to = admin(other.path());
      int64_t pages = 0;
      const Status copied = from->for_each(
          [&](const StoredPage& page) {
            ++pages;
            EXPECT_TRUE(to->import_page(page).ok());
            return to->import_page(page);  // a second time changes nothing
          },
          {});
      ASSERT_TRUE(copied.ok()) << copied.message();
      EXPECT_EQ(pages, 9);
      std::vector<uint8_t> damaged;
      (void)from->for_each(
          [&](const StoredPage& page) {
            damaged.assign(page.record.begin(), page.record.end());
            return Status::Cancelled("one is enough");
          },
          {});
      damaged[damaged.size() / 2] ^= 1;
      EXPECT_EQ(to->import_page({.key = {}, .record = damaged}).code(), StatusCode::kDataLoss);
      const auto checked = to->verify(false, {});
      ASSERT_TRUE(checked.has_value());
      EXPECT_EQ(checked->checked.pages, 9);
      EXPECT_EQ(checked->by_reason[0].pages, 9);
    }
    std::unique_ptr<KvStore> reader;
    if (shared) {
      reader = open_shared(other.path());
    } else {
      reader = std::move(*LocalStore::Open(kShape, kv_fingerprint("model", kShape), {.directory = other.path()}));
    }
    for (uint64_t n = 1; n <= 9; ++n) EXPECT_EQ(get(*reader, n, 1000, n % 3 != 0), KvStoreMiss::kNone);
    const PrefixKey first = key(1);
    EXPECT_EQ(reader->match({&first, 1}, true, 1000, {}).ttl_seconds, 3 * 86400);
  }
}

TEST_P(Admin, ReadOnlyLooksWhileAnEngineHasTheStoreOpen) {
  const auto engine = open(directory_.path());
  for (uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(put(*engine, n, 1000).ok());
  const auto looking = admin(directory_.path(), {.directory = {}, .read_only = true});
  ASSERT_NE(looking, nullptr);
  const auto checked = looking->verify(false, {});
  ASSERT_TRUE(checked.has_value()) << checked.error().message();
  EXPECT_EQ(checked->checked.pages, 3);
  EXPECT_EQ(checked->by_reason[0].pages, 3);
  EXPECT_EQ(looking->gc(1000, {}).error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(looking->verify(true, {}).error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(looking->import_page({}).code(), StatusCode::kFailedPrecondition);
}

TEST(StoreAdmin, WhereNoStoreIsItSaysSo) {
  const Directory directory;
  const auto none = open_store_admin({.directory = directory.path()});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), StatusCode::kNotFound);
  EXPECT_NE(none.error().message().find(directory.path()), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "looking makes nothing";
}

}  // namespace
}  // namespace deepinfer
