// The tensor plan against the totals of the released checkpoint and against the nano files.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temp_dir.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

ModelConfig load(const std::string& path) {
  auto config = ModelConfig::Load(path);
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return config ? *config : ModelConfig{};
}

std::string fixture(const std::string& name) { return testing::source_dir() + "/tests/data/" + name; }

TEST(Catalogue, ReleasedTotals) {
  for (const char* name : {"released_config.json", "released_config_flat.json"}) {
    const auto catalogue = make_catalogue(load(fixture(name)));
    EXPECT_EQ(catalogue.size(), 96085u) << name;  // spec/backbone §2.1
    int64_t bytes = 0;
    std::set<std::string> names;
    for (const auto& entry : catalogue) {
      bytes += entry.bytes();
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    }
    EXPECT_EQ(bytes, 510286023000) << name;
  }
}

TEST(Catalogue, ReleasedParts) {
  int64_t draft = 0, tower = 0, tower_bytes = 0;
  for (const auto& entry : make_catalogue(load(fixture("released_config.json")))) {
    draft += entry.name.starts_with("mtp.") ? 1 : 0;
    if (entry.group == "vision") {  // vision.*, aligner.* and image_start, image_end, image_newline
      ++tower;
      tower_bytes += entry.bytes();
    }
  }
  EXPECT_EQ(draft, 2401);  // dspark.md §2
  EXPECT_EQ(tower, 266);   // vision.md §3
  EXPECT_EQ(tower_bytes, 970536960);
}

TEST(Catalogue, ReleasedHeaderParses) {
  // All 96,085 entries in one sparse file of 510 GB: quick, and every offset beyond 32 bits.
  std::string json = "{";
  int64_t at = 0;
  const auto catalogue = make_catalogue(load(fixture("released_config.json")));
  for (const auto& e : catalogue) {
    json += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", at == 0 ? "" : ",", e.name,
                        dtype_name(e.dtype), fmt::join(e.shape, ","), at, at + e.bytes());
    at += e.bytes();
  }
  json += "}";
  const uint64_t length = json.size();
  const std::string path = testing::scratch_dir("released") + "/model.safetensors";
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&length), 8) << json;
  std::error_code error;
  std::filesystem::resize_file(path, 8 + length + static_cast<uint64_t>(at), error);
  if (error) GTEST_SKIP() << "no sparse file of that size here: " << error.message();
  const auto file = MappedFile::Open(path);
  if (!file) GTEST_SKIP() << file.error().message();
  const auto start = std::chrono::steady_clock::now();
  const auto header = parse_safetensors(file->bytes(), path);
  const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(header.has_value()) << header.error().message();
  ASSERT_EQ(header->entries.size(), catalogue.size());
  EXPECT_EQ(header->entries.back().offset + header->entries.back().bytes, file->size());
  std::printf("parsed %zu entries (%.1f MB of JSON) in %.1f ms\n", catalogue.size(), static_cast<double>(length) / 1e6,
              ms.count());
  std::filesystem::remove(path);
}

/// Opens a directory and checks that every tensor of the plan is there and nothing else.
void expect_opens(const std::string& directory) {
  const auto start = std::chrono::steady_clock::now();
  const auto checkpoint = Checkpoint::Open(directory);
  const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  EXPECT_TRUE((*checkpoint)->warnings().empty()) << (*checkpoint)->warnings().front();
  const auto catalogue = make_catalogue((*checkpoint)->config());
  for (const auto& entry : catalogue) {
    const TensorView* view = (*checkpoint)->find(entry.name);
    ASSERT_NE(view, nullptr) << entry.name;
    EXPECT_EQ(view->shape, entry.shape);
    EXPECT_EQ(view->dtype, entry.dtype);
    EXPECT_EQ(view->bytes, entry.bytes());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % static_cast<uintptr_t>(dtype_bytes(view->dtype)), 0u) << entry.name;
  }
  EXPECT_EQ((*checkpoint)->find("no.such.tensor"), nullptr);
  ::testing::Test::RecordProperty("tensors", static_cast<int>(catalogue.size()));
  ::testing::Test::RecordProperty("open_ms", std::to_string(ms.count()));
  std::printf("opened %s: %zu tensors, %.2f ms\n", directory.c_str(), catalogue.size(), ms.count());
  Checkpoint::Options full;
  full.verify = VerifyLevel::kFull;
  const auto again = Checkpoint::Open(directory, full);
  EXPECT_TRUE(again.has_value()) << again.error().message();
}

TEST(Checkpoint, NanoOpens) { expect_opens(testing::nano_dir()); }

TEST(Checkpoint, WideOpens) {
  if (testing::shared_dir().empty()) GTEST_SKIP() << "no shared folder here";
  expect_opens(testing::shared_dir() + "/nano/wide");
}

}  // namespace
}  // namespace deepinfer
