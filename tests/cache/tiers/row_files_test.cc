// The files that a local store's rows lie in.

#include "cache/tiers/row_files.h"

#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "cache/tiers/store_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;

constexpr int64_t kFileBytes = int64_t{256} << 10;

std::unique_ptr<RowFiles> open_files(const std::string& path, bool read_only = false) {
  auto files = RowFiles::Open(path + "/rows", kFileBytes, read_only);
  EXPECT_TRUE(files.has_value()) << files.error().message();
  return files ? *std::move(files) : nullptr;
}

std::vector<uint64_t> checksums_of(uint64_t n) { return {n, n + 1000, n + 2000}; }

/// Pages n, n + 1, ... as one batch, held.
std::vector<RowPlace> append(RowFiles& files, uint64_t n, uint64_t count) {
  std::vector<std::vector<uint8_t>> pages;
  std::vector<RowPage> rows;
  for (uint64_t i = 0; i < count; ++i) pages.push_back(page_of(n + i));
  for (uint64_t i = 0; i < count; ++i) rows.push_back({.page = pages[i], .checksums = checksums_of(n + i)});
  const auto places = files.append(kShape, rows);
  EXPECT_TRUE(places.has_value()) << places.error().message();
  for (const RowPlace& place : *places) files.hold(place, RowFiles::page_bytes(kShape));
  return *places;
}

/// Whether pages n, n + 1, ... are right where they follow each other from `first` on.
bool are_right(const RowFiles& files, const RowPlace& first, uint64_t n, uint64_t count) {
  for (int64_t group = 0; group < 3; ++group) {
    const auto size = static_cast<size_t>(kShape.group_bytes[static_cast<size_t>(group)]);
    std::vector<std::vector<uint8_t>> into(count, std::vector<uint8_t>(size));
    std::vector<RowRead> reads;
    for (auto& rows : into) reads.push_back({.into = rows});
    if (!files.read(kShape, first, group, reads).ok()) return false;
    for (uint64_t i = 0; i < count; ++i) {
      const std::vector<uint8_t> page = page_of(n + i);
      if (!std::equal(into[i].begin(), into[i].end(), page.begin() + kShape.group_offset(group))) return false;
      if (reads[i].checksum != checksums_of(n + i)[static_cast<size_t>(group)]) return false;
    }
  }
  return true;
}

int64_t files_in(const std::string& path) {
  return std::distance(std::filesystem::directory_iterator(path + "/rows"), std::filesystem::directory_iterator());
}

TEST(RowFiles, PagesThatWereWrittenTogetherAreReadTogether) {
  const Directory directory;
  const auto files = open_files(directory.path());
  const auto one = append(*files, 1, 1), many = append(*files, 10, 7);
  EXPECT_TRUE(are_right(*files, one[0], 1, 1));
  EXPECT_TRUE(are_right(*files, many[0], 10, 7));
  EXPECT_TRUE(are_right(*files, many[3], 13, 4));
  EXPECT_TRUE(are_right(*files, many[6], 16, 1));
  EXPECT_TRUE(many[4].follows(many[3]));
  EXPECT_FALSE(many[4].follows(many[2]));
  EXPECT_FALSE(many[0].follows(one[0]));
  EXPECT_EQ(files->bytes(), 8 * RowFiles::page_bytes(kShape));
  EXPECT_TRUE(files->append(kShape, {})->empty());
}

TEST(RowFiles, GroupsWithoutRowsAreNoHindrance) {
  const Directory directory;
  const auto files = open_files(directory.path());
  const KvPageShape shape{.group_bytes = {0, 100, 0}};
  const std::vector<uint8_t> page(100, 3);
  const RowPage rows{.page = page, .checksums = {1, 2, 3}};
  const auto places = files->append(shape, {&rows, 1});
  ASSERT_TRUE(places.has_value());
  std::vector<uint8_t> into(100);
  RowRead read{.into = into};
  ASSERT_TRUE(files->read(shape, places->front(), 1, {&read, 1}).ok());
  EXPECT_EQ(into, page);
  RowRead empty{.into = {}};
  ASSERT_TRUE(files->read(shape, places->front(), 2, {&empty, 1}).ok());
  EXPECT_EQ(empty.checksum, 3U);
}

TEST(RowFiles, AFileGoesWithItsLastPageAndThoseWhoReadItReadOn) {
  const Directory directory;
  const auto files = open_files(directory.path());
  std::vector<std::vector<RowPlace>> batches;
  for (uint64_t i = 0; i < 6; ++i) batches.push_back(append(*files, i * 100, 30));  // two batches fill a file
  EXPECT_EQ(files_in(directory.path()), 3);
  EXPECT_EQ(batches[1][0].file, batches[0][0].file);
  for (const auto& place : batches[0]) files->release(place, RowFiles::page_bytes(kShape));
  EXPECT_EQ(files_in(directory.path()), 3) << "half of it is in use";
  EXPECT_TRUE(files->sparse().empty()) << "too little to be worth it";
  for (const auto& place : batches[1]) files->release(place, RowFiles::page_bytes(kShape));
  EXPECT_EQ(files_in(directory.path()), 2);
  EXPECT_FALSE(are_right(*files, batches[0][0], 0, 1));
  EXPECT_TRUE(are_right(*files, batches[2][0], 200, 30));
  for (const auto& place : batches[5]) files->release(place, RowFiles::page_bytes(kShape));
  for (const auto& place : batches[4]) files->release(place, RowFiles::page_bytes(kShape));
  EXPECT_EQ(files_in(directory.path()), 2) << "the last one is still appended to";
}

TEST(RowFiles, WhatIsMostlyUnusedIsToBeWrittenAnew) {
  const Directory directory;
  const auto files = open_files(directory.path());
  std::vector<RowPlace> all;
  for (uint64_t i = 0; i < 20; ++i) {
    for (const RowPlace& place : append(*files, i * 100, 30)) all.push_back(place);
  }
  EXPECT_TRUE(files->sparse().empty());
  // Of the first half of the files nine pages in ten go.
  for (size_t i = 0; i < all.size() / 2; ++i) {
    if (i % 10 != 0) files->release(all[i], RowFiles::page_bytes(kShape));
  }
  const std::vector<uint64_t> sparse = files->sparse();
  EXPECT_FALSE(sparse.empty());
  for (const uint64_t number : sparse) EXPECT_LE(number, all[all.size() / 2].file);
}

TEST(RowFiles, NobodysFilesGoWhenTheStoreOpensAndNoNumberComesTwice) {
  const Directory directory;
  RowPlace kept, lost;
  {
    const auto files = open_files(directory.path());
    kept = append(*files, 1, 60)[5];
    lost = append(*files, 100, 1)[0];  // in the next file
    EXPECT_NE(lost.file, kept.file);
  }
  std::filesystem::copy(directory.path() + "/rows", directory.path() + "/copy");
  const auto files = open_files(directory.path());
  files->hold(kept, RowFiles::page_bytes(kShape));
  files->remove_unused();
  EXPECT_TRUE(are_right(*files, kept, 6, 1));
  EXPECT_FALSE(are_right(*files, lost, 100, 1));
  EXPECT_GT(append(*files, 200, 1)[0].file, lost.file);
}

TEST(RowFiles, WhoOnlyReadsChangesNothing) {
  const Directory directory;
  const auto writer = open_files(directory.path());
  const auto first = append(*writer, 1, 60);
  const auto reader = open_files(directory.path(), true);
  const auto second = append(*writer, 100, 3);
  EXPECT_TRUE(are_right(*reader, first[0], 1, 60));
  EXPECT_FALSE(are_right(*reader, second[0], 100, 3)) << "a file that came later";
  ASSERT_TRUE(reader->rescan().ok());
  EXPECT_TRUE(are_right(*reader, second[0], 100, 3));
  for (const RowPlace& place : first) writer->release(place, RowFiles::page_bytes(kShape));
  EXPECT_FALSE(are_right(*writer, first[0], 1, 1));
  EXPECT_TRUE(are_right(*reader, first[0], 1, 60));
  reader->remove_unused();
  EXPECT_TRUE(are_right(*writer, second[0], 100, 3));
  const Directory nowhere;
  EXPECT_TRUE(open_files(nowhere.path(), true) != nullptr);
  EXPECT_FALSE(std::filesystem::exists(nowhere.path() + "/rows"));
}

TEST(RowFiles, PlacesThatCannotBeAreRefused) {
  const Directory directory;
  const auto files = open_files(directory.path());
  const RowPlace right = append(*files, 1, 4)[1];
  const auto wrong = [&](auto change) {
    RowPlace place = right;
    change(place);
    std::vector<uint8_t> into(static_cast<size_t>(kShape.group_bytes[0]));
    RowRead read{.into = into};
    return files->read(kShape, place, 0, {&read, 1}).code();
  };
  EXPECT_EQ(wrong([](RowPlace&) {}), StatusCode::kOk);
  EXPECT_EQ(wrong([](RowPlace& p) { p.file = 99; }), StatusCode::kDataLoss);
  EXPECT_EQ(wrong([](RowPlace& p) { p.offset = 1 << 20; }), StatusCode::kDataLoss);
  EXPECT_EQ(wrong([](RowPlace& p) { p.offset = ~uint64_t{0}; }), StatusCode::kDataLoss);
  EXPECT_EQ(wrong([](RowPlace& p) { p.batch = ~uint32_t{0}; }), StatusCode::kDataLoss);
  EXPECT_EQ(wrong([](RowPlace& p) { p.index = 4; }), StatusCode::kDataLoss);
}

/// In a process of its own, as it limits the size of files. Ends it with 0 if all is as it should be.
[[noreturn]] void fill_the_disk(const std::string& path) {
  const auto files = open_files(path);
  const RowPlace place = append(*files, 1, 2)[0];
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 12000, .rlim_max = 12000};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const std::vector<uint8_t> page = page_of(9);
  const RowPage rows{.page = page, .checksums = checksums_of(9)};
  const auto refused = files->append(kShape, {&rows, 1});
  const bool full = !refused && refused.error().code() == StatusCode::kResourceExhausted;
  const bool as_it_was = files->bytes() == 2 * RowFiles::page_bytes(kShape) && are_right(*files, place, 1, 2);
  std::_Exit(full && as_it_was ? 0 : 1);
}

TEST(RowFiles, AFullDiskLeavesWhatWasThere) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // other tests of the program leave threads behind
  const Directory directory;
  EXPECT_EXIT(fill_the_disk(directory.path()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace deepinfer
