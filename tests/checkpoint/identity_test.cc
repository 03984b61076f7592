// What a checkpoint is told by: its content, wherever and however it lies.

#include "checkpoint/identity.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/temp_dir.h"

namespace deepinfer {
namespace {

void write_file(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string make_checkpoint(uint64_t seed, int64_t shard_bytes = int64_t{4} << 30) {
  const std::string config = read_text_file(testing::source_dir() + "/tests/data/micro_config.json", 1 << 20).value_or("");
  const std::string directory = testing::scratch_dir("identity");
  EXPECT_TRUE(
      write_random_checkpoint(*ModelConfig::Parse(config, "micro"), config, directory, {.seed = seed, .shard_bytes = shard_bytes})
          .ok());
  write_file(directory + "/tokenizer.json", "{\"model\": {}}");
  return directory;
}

std::string identity(const std::string& directory, int threads = 2) {
  const auto checkpoint = Checkpoint::Open(directory);
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  ThreadPool pool(threads);
  const auto identity = checkpoint_identity(**checkpoint, pool);
  EXPECT_TRUE(identity.has_value()) << identity.error().message();
  return identity.value_or("");
}

TEST(CheckpointIdentity, IsThatOfTheContent) {
  const std::string one = identity(make_checkpoint(1));
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(identity(make_checkpoint(1)), one) << "it lies elsewhere";
  EXPECT_EQ(identity(make_checkpoint(1, 20000)), one) << "it has more shards";
  EXPECT_EQ(identity(make_checkpoint(1), 1), one);
  EXPECT_NE(identity(make_checkpoint(2)), one);
}

TEST(CheckpointIdentity, EveryFileCounts) {
  const std::string directory = make_checkpoint(1);
  const std::string one = identity(directory);
  write_file(directory + "/tokenizer.json", "{\"model\": []}");
  EXPECT_NE(identity(directory), one);
  write_file(directory + "/tokenizer.json", "{\"model\": {}}");
  ASSERT_EQ(identity(directory), one);
  const std::string config = read_text_file(directory + "/config.json", 1 << 20).value_or("");
  write_file(directory + "/config.json", config + "\n");
  EXPECT_NE(identity(directory), one);
  write_file(directory + "/config.json", config);
  // One bit of one weight.
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".safetensors") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-1, std::ios::end);
    const auto at = bytes.tellg();
    const int last = bytes.get();
    bytes.seekp(at);
    bytes.put(static_cast<char>(last ^ 1));
  }
  EXPECT_NE(identity(directory), one);
}

TEST(CheckpointIdentity, NeedsItsFiles) {
  const std::string directory = make_checkpoint(1);
  std::filesystem::remove(directory + "/tokenizer.json");
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.has_value());
  ThreadPool pool(1);
  const auto identity = checkpoint_identity(**checkpoint, pool);
  ASSERT_FALSE(identity.has_value());
  EXPECT_NE(identity.error().message().find("tokenizer.json"), std::string::npos) << identity.error().message();
}

}  // namespace
}  // namespace deepinfer
