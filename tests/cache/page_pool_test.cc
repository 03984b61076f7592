#include "cache/page_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <limits>

namespace deepinfer {
namespace {

std::unique_ptr<PagePool> make_pool(int64_t page_bytes, int64_t budget_bytes) {
  auto pool = PagePool::Create(page_bytes, budget_bytes);
  EXPECT_TRUE(pool.has_value());
  return *std::move(pool);
}

TEST(PagePool, PagesAreAlignedAndDoNotOverlap) {
  const auto pool = make_pool(100, 1000);  // 128 bytes each
  EXPECT_EQ(pool->total(), 7);
  EXPECT_EQ(pool->page_bytes(), 100);
  for (int i = 0; i < 7; ++i) {
    const PageId page = pool->allocate();
    ASSERT_NE(page, kNoPage);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool->data(page)) % 64, 0u);
    EXPECT_EQ(pool->data(page)[0], 0);
    std::memset(pool->data(page), i + 1, 100);
    pool->check_invariants();
  }
  EXPECT_EQ(pool->allocate(), kNoPage);
  EXPECT_EQ(pool->free_count(), 0);
  for (PageId page = 0; page < 7; ++page) {
    EXPECT_EQ(pool->data(page)[0], pool->data(page)[99]);
    EXPECT_EQ(pool->references(page), 1);
  }
}

TEST(PagePool, PageFreedLastComesFirst) {
  const auto pool = make_pool(64, 640);
  const PageId a = pool->allocate();
  const PageId b = pool->allocate();
  pool->release(a);
  pool->release(b);
  pool->check_invariants();
  EXPECT_EQ(pool->allocate(), b);
  EXPECT_EQ(pool->allocate(), a);
  EXPECT_EQ(pool->free_count(), 8);
}

TEST(PagePool, SharedPageIsFreeWithItsLastReference) {
  const auto pool = make_pool(64, 64);
  const PageId page = pool->allocate();
  pool->add_reference(page);
  EXPECT_EQ(pool->references(page), 2);
  pool->release(page);
  EXPECT_EQ(pool->free_count(), 0);
  EXPECT_EQ(pool->allocate(), kNoPage);
  pool->release(page);
  EXPECT_EQ(pool->free_count(), 1);
  EXPECT_EQ(pool->references(page), 0);
}

TEST(PagePool, WrongSizesAreNamed) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  struct Case {
    int64_t page_bytes, budget_bytes;
    StatusCode code;
    const char* message;
  };
  for (const Case& c : {Case{0, 100, StatusCode::kInvalidArgument, "page_bytes: 0, must"},
                        Case{-5, 100, StatusCode::kInvalidArgument, "page_bytes: -5, must"},
                        Case{64, 0, StatusCode::kInvalidArgument, "0 bytes hold no page of 64 bytes"},
                        Case{64, -1, StatusCode::kInvalidArgument, "-1 bytes hold no page"},
                        Case{64, 63, StatusCode::kInvalidArgument, "63 bytes hold no page of 64"},
                        Case{65, 127, StatusCode::kInvalidArgument, "127 bytes hold no page of 65 bytes, which takes 128"},
                        Case{kMax, kMax, StatusCode::kOutOfRange, "page_bytes: 9223372036854775807"},
                        Case{1, kMax, StatusCode::kOutOfRange, "pages of 1 bytes, the limit is"},
                        Case{64, int64_t{64} << 31, StatusCode::kOutOfRange, "make 2147483648 pages"},
                        Case{int64_t{1} << 61, kMax, StatusCode::kResourceExhausted, "cannot map 3 pages"}}) {
    const auto pool = PagePool::Create(c.page_bytes, c.budget_bytes);
    ASSERT_FALSE(pool.has_value()) << c.message;
    EXPECT_EQ(pool.error().code(), c.code) << pool.error().message();
    EXPECT_NE(pool.error().message().find(c.message), std::string::npos) << pool.error().message();
  }
}

int64_t resident_bytes() {
  long size = 0;
  long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &size, &resident) != 2) ADD_FAILURE() << "no /proc/self/statm";
  if (file != nullptr) std::fclose(file);
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(PagePool, UntouchedPagesTakeNoMemory) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const int64_t before = resident_bytes();
  const auto pool = make_pool(114000, 64 * kGiB);
  const PageId page = pool->allocate();
  std::memset(pool->data(page), 1, 114000);
  EXPECT_GT(pool->total(), 500000);
  EXPECT_LT(resident_bytes() - before, kGiB / 16);
}

// Offsets beyond 2^32 are not cut short.
TEST(PagePool, PagesFarApart) {
  const auto pool = make_pool(int64_t{1} << 31, int64_t{10} << 31);
  EXPECT_EQ(pool->total(), 10);
  EXPECT_EQ(pool->data(9) - pool->data(0), int64_t{9} << 31);
}

TEST(PagePoolDeathTest, MisuseIsCaught) {
  const auto pool = make_pool(64, 640);
  const PageId page = pool->allocate();
  pool->release(page);
  EXPECT_DEATH(pool->release(page), "page 0 is free already");
  EXPECT_DEATH(pool->add_reference(page), "page 0 has 0 references");
  EXPECT_DEATH(pool->data(kNoPage), "page -1 of 10");
  EXPECT_DEATH(pool->data(10), "page 10 of 10");
}

}  // namespace
}  // namespace deepinfer
