// What a checkpoint is told by: its content, wherever and however it lies.

#include "checkpoint/identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/mapped_file.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/safetensors.h"
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

std::string identity(const std::string& directory, WeightsCheck check = WeightsCheck::kSample, int threads = 2) {
  Checkpoint::Options options;
  options.verify = VerifyLevel::kHeaders;
  const auto checkpoint = Checkpoint::Open(directory, options);
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  ThreadPool pool(threads);
  const auto identity = checkpoint_identity(**checkpoint, pool, check);
  EXPECT_TRUE(identity.has_value()) << identity.error().message();
  return identity.value_or("");
}

/// A checkpoint with tensors far larger than what is sampled of them: all zeros, holes in a single file.
struct SparseCheckpoint {
  SparseCheckpoint() : directory(testing::scratch_dir("identity-sparse")) {
    std::string config = read_text_file(testing::source_dir() + "/tests/data/micro_config.json", 1 << 20).value_or("");
    const std::string vocabulary = "\"vocab_size\": 384";
    config.replace(config.find(vocabulary), vocabulary.size(), "\"vocab_size\": 4000000");
    std::string header = "{";
    int64_t end = 0;
    std::vector<CatalogueEntry> catalogue = make_catalogue(*ModelConfig::Parse(config, "sparse"));
    std::stable_sort(catalogue.begin(), catalogue.end(),
                     [](const auto& a, const auto& b) { return dtype_bytes(a.dtype) > dtype_bytes(b.dtype); });
    for (const CatalogueEntry& e : catalogue) {
      header += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header.size() > 1 ? "," : "",
                            e.name, dtype_name(e.dtype), fmt::join(e.shape, ","), end, end + e.bytes());
      offsets[e.name] = end;
      bytes[e.name] = e.bytes();
      end += e.bytes();
    }
    header += "}";
    header.resize((header.size() + 63) / 64 * 64 + 56, ' ');
    std::string begin(8, '\0');
    for (size_t i = 0; i < begin.size(); ++i) begin[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
    write_file(path(), begin + header);
    payload = static_cast<int64_t>(begin.size() + header.size());
    total = end;
    std::filesystem::resize_file(path(), static_cast<uintmax_t>(payload + end));
    write_file(directory + "/config.json", config);
    write_file(directory + "/tokenizer.json", "{}");
  }
  std::string path() const { return directory + "/model.safetensors"; }
  /// Changes one byte of a tensor; the same call changes it back.
  void flip(const std::string& tensor, int64_t at) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(payload + offsets.at(tensor) + at);
    const int was = file.get();
    file.seekp(payload + offsets.at(tensor) + at);
    file.put(static_cast<char>(was ^ 1));
  }

  std::string directory;
  std::map<std::string, int64_t> offsets, bytes;
  int64_t payload = 0, total = 0;
};

TEST(CheckpointIdentity, IsThatOfTheContent) {
  for (const WeightsCheck check : {WeightsCheck::kSample, WeightsCheck::kFull}) {
    const std::string one = identity(make_checkpoint(1), check);
    EXPECT_EQ(one.size(), 32u);
    EXPECT_EQ(identity(make_checkpoint(1), check), one) << "it lies elsewhere";
    EXPECT_EQ(identity(make_checkpoint(1, 20000), check), one) << "it has more shards";
    EXPECT_EQ(identity(make_checkpoint(1), check, 1), one);
    EXPECT_NE(identity(make_checkpoint(2), check), one);
  }
  EXPECT_NE(identity(make_checkpoint(1), WeightsCheck::kSample), identity(make_checkpoint(1), WeightsCheck::kFull))
      << "who checked less must not meet who checked all";
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
  // One bit of one weight: a tensor as small as these is read as a whole.
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

TEST(CheckpointIdentity, ASampleSeesWhatItReadsAndTheFullCheckAll) {
  const SparseCheckpoint sparse;
  const std::string tensor = "head.weight";
  const std::string sampled = identity(sparse.directory);
  const std::string full = identity(sparse.directory, WeightsCheck::kFull);
  const std::vector<SampledBytes> sample = sample_of(tensor, sparse.bytes.at(tensor), sparse.total);
  ASSERT_GE(sample.size(), 3u);
  for (const size_t block : {size_t{0}, size_t{1}, sample.size() / 2, sample.size() - 1}) {
    for (const int64_t at : {sample[block].offset, sample[block].offset + sample[block].bytes - 1}) {
      sparse.flip(tensor, at);
      EXPECT_NE(identity(sparse.directory), sampled) << "byte " << at;
      sparse.flip(tensor, at);
    }
  }
  ASSERT_EQ(identity(sparse.directory), sampled);
  // What it cannot tell, as its text says.
  const int64_t between = sample[0].offset + sample[0].bytes;
  ASSERT_LT(between, sample[1].offset);
  sparse.flip(tensor, between);
  EXPECT_EQ(identity(sparse.directory), sampled);
  EXPECT_NE(identity(sparse.directory, WeightsCheck::kFull), full);
}

TEST(CheckpointIdentity, ASampleIsSpreadOverEveryTensorOfTheRelease) {
  const std::string path = testing::source_dir() + "/tests/data/released_config.json";
  const std::vector<CatalogueEntry> catalogue =
      make_catalogue(*ModelConfig::Parse(read_text_file(path, 1 << 20).value_or(""), "released"));
  int64_t total = 0, read = 0;
  for (const CatalogueEntry& e : catalogue) total += e.bytes();
  std::set<int64_t> second;  // where the second block of tensors begins
  for (const CatalogueEntry& e : catalogue) {
    const std::vector<SampledBytes> sample = sample_of(e.name, e.bytes(), total);
    int64_t end = 0;
    for (const SampledBytes& part : sample) {
      ASSERT_GE(part.offset, end) << e.name;
      ASSERT_GT(part.bytes, 0) << e.name;
      end = part.offset + part.bytes;
      read += part.bytes;
    }
    ASSERT_EQ(sample.front().offset, 0) << e.name;
    ASSERT_EQ(end, e.bytes()) << e.name;
    if (sample.size() == 1) continue;
    ASSERT_GE(sample.size(), 3u) << e.name;
    second.insert(sample[1].offset);
    // No gap is more than two parts.
    for (size_t i = 1; i < sample.size(); ++i)
      ASSERT_LE(sample[i].offset - sample[i - 1].offset, 2 * e.bytes() / static_cast<int64_t>(sample.size() - 2)) << e.name;
  }
  EXPECT_GT(total, int64_t{100} << 30);
  EXPECT_LE(read, (int64_t{256} << 20) + static_cast<int64_t>(catalogue.size()) * 12288);
  EXPECT_GT(second.size(), catalogue.size() / 4) << "tensors are looked at in different places";
}

TEST(CheckpointIdentity, NeedsItsFiles) {
  const std::string directory = make_checkpoint(1);
  std::filesystem::remove(directory + "/tokenizer.json");
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.has_value());
  ThreadPool pool(1);
  const auto identity = checkpoint_identity(**checkpoint, pool, WeightsCheck::kSample);
  ASSERT_FALSE(identity.has_value());
  EXPECT_NE(identity.error().message().find("tokenizer.json"), std::string::npos) << identity.error().message();
}

}  // namespace
}  // namespace deepinfer
