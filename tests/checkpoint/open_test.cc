// Whole directories: layouts, name variants, and everything that can be wrong with one.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "checkpoint/inspect.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temp_dir.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

struct StoredTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::vector<StoredTensor>;

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string config_text() {
  return read_text_file(testing::source_dir() + "/tests/data/micro_config.json", 1 << 20).value_or("");
}

/// The tensors of a sound micro checkpoint.
const Tensors& sound_tensors() {
  static const Tensors kTensors = [] {
    const std::string directory = testing::scratch_dir("micro");
    const auto config = ModelConfig::Parse(config_text(), "micro");
    EXPECT_TRUE(config.has_value()) << config.error().message();
    EXPECT_TRUE(write_random_checkpoint(*config, config_text(), directory).ok());
    const auto checkpoint = Checkpoint::Open(directory);
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    Tensors out;
    for (const auto& e : make_catalogue(*config)) {
      const TensorView& v = *(*checkpoint)->find(e.name);
      out.push_back({e.name, v.dtype, v.shape, std::string(v.as<char>(), static_cast<size_t>(v.bytes))});
    }
    return out;
  }();
  return kTensors;
}

void write_shard(const std::string& path, std::span<const StoredTensor> tensors) {
  std::vector<SafetensorsWrite> writes;
  for (const StoredTensor& t : tensors) {
    writes.push_back({t.name, t.dtype, t.shape, [&t](int64_t offset, std::span<std::byte> out) {
                        std::memcpy(out.data(), t.bytes.data() + offset, out.size());
                        return Status::Ok();
                      }});
  }
  const Status status = write_safetensors(path, writes);
  EXPECT_TRUE(status.ok()) << status.message();
}

/// One model.safetensors beside config.json.
std::string single_file(const Tensors& tensors) {
  const std::string directory = testing::scratch_dir("single");
  write_text(directory + "/config.json", config_text());
  write_shard(directory + "/model.safetensors", tensors);
  return directory;
}

/// Two shards with an index, which `edit` may spoil.
std::string sharded(const Tensors& tensors, const std::function<void(nlohmann::json&)>& edit = nullptr) {
  const std::string directory = testing::scratch_dir("sharded");
  write_text(directory + "/config.json", config_text());
  const std::span<const StoredTensor> all(tensors);
  nlohmann::json index;
  for (size_t i = 0; i < all.size(); ++i) index["weight_map"][all[i].name] = i < 100 ? "a.safetensors" : "b.safetensors";
  write_shard(directory + "/a.safetensors", all.first(100));
  write_shard(directory + "/b.safetensors", all.subspan(100));
  if (edit) edit(index);
  write_text(directory + "/model.safetensors.index.json", index.dump());
  return directory;
}

std::string open_error(const std::string& directory, VerifyLevel level = VerifyLevel::kScales) {
  Checkpoint::Options options;
  options.verify = level;
  const auto checkpoint = Checkpoint::Open(directory, options);
  if (checkpoint) return "no error";
  EXPECT_EQ(checkpoint.error().message().find('\n'), std::string::npos) << checkpoint.error().message();
  return checkpoint.error().message();
}

StoredTensor& named(Tensors& tensors, const std::string& name) {
  for (StoredTensor& t : tensors) {
    if (t.name == name) return t;
  }
  ADD_FAILURE() << name;
  return tensors.front();
}

#define EXPECT_HAS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)

TEST(Open, SingleFileAndShards) {
  EXPECT_EQ(open_error(single_file(sound_tensors())), "no error");
  EXPECT_EQ(open_error(sharded(sound_tensors())), "no error");
}

TEST(Open, NameVariants) {
  // What DeepSeek's converter tolerates (spec/backbone §2.1).
  Tensors tensors = sound_tensors();
  const auto replace = [](std::string& name, const std::string& from, const std::string& to) {
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  };
  for (StoredTensor& t : tensors) {
    replace(t.name, ".attn.", ".self_attn.");
    replace(t.name, ".ffn.", ".mlp.");
    if (t.dtype == DType::kF8E8M0) replace(t.name, ".scale", ".weight_scale_inv");
    if (t.name.ends_with("gate.bias")) replace(t.name, "gate.bias", "gate.e_score_correction_bias");
    t.name = "model." + t.name;
  }
  const auto checkpoint = Checkpoint::Open(single_file(tensors));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  const TensorView* bias = (*checkpoint)->find("layers.1.ffn.gate.bias");
  const TensorView* bias_vl = (*checkpoint)->find("layers.1.ffn.gate.bias_vl");
  ASSERT_TRUE(bias != nullptr && bias_vl != nullptr);
  Tensors sound = sound_tensors();
  EXPECT_EQ(std::memcmp(bias->data, named(sound, "layers.1.ffn.gate.bias").bytes.data(), static_cast<size_t>(bias->bytes)), 0);
  EXPECT_EQ(
      std::memcmp(bias_vl->data, named(sound, "layers.1.ffn.gate.bias_vl").bytes.data(), static_cast<size_t>(bias_vl->bytes)), 0);

  // Both spellings of one tensor contradict each other.
  tensors.push_back(sound_tensors().front());
  EXPECT_HAS(open_error(single_file(tensors)), "occurs a second time");
}

TEST(Open, MisalignedTensorsAreCopied) {
  Tensors tensors = sound_tensors();
  tensors.insert(tensors.begin(), StoredTensor{"odd", DType::kU8, {1}, "x"});
  const auto checkpoint = Checkpoint::Open(single_file(tensors));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  ASSERT_EQ((*checkpoint)->warnings().size(), 1u);
  EXPECT_HAS((*checkpoint)->warnings()[0], "tensor odd is not implied");
  EXPECT_EQ((*checkpoint)->find("odd"), nullptr);
  for (const StoredTensor& t : sound_tensors()) {
    const TensorView* v = (*checkpoint)->find(t.name);
    ASSERT_NE(v, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(v->data) % static_cast<uintptr_t>(dtype_bytes(v->dtype)), 0u) << t.name;
    EXPECT_EQ(std::memcmp(v->data, t.bytes.data(), t.bytes.size()), 0) << t.name;
  }
}

TEST(Open, EveryMissingTensorIsNoticed) {
  for (size_t i = 0; i < sound_tensors().size(); i += 23) {
    Tensors tensors = sound_tensors();
    const std::string name = tensors[i].name;
    tensors.erase(tensors.begin() + static_cast<int64_t>(i));
    EXPECT_HAS(open_error(single_file(tensors)), "tensor " + name + ": missing");
  }
}

TEST(Open, WrongShapeOrDtype) {
  Tensors tensors = sound_tensors();
  std::swap(named(tensors, "layers.0.attn.wq_a.weight").shape[0], named(tensors, "layers.0.attn.wq_a.weight").shape[1]);
  EXPECT_HAS(open_error(single_file(tensors)),
             "tensor layers.0.attn.wq_a.weight: shape is [64, 32], the config implies [32, 64]");
  tensors = sound_tensors();
  named(tensors, "layers.0.attn.wq_a.weight").dtype = DType::kU8;
  EXPECT_HAS(open_error(single_file(tensors)), "tensor layers.0.attn.wq_a.weight: dtype is U8, it must be F8_E4M3");
  tensors = sound_tensors();
  named(tensors, "norm.weight").dtype = DType::kF16;
  EXPECT_HAS(open_error(single_file(tensors)), "tensor norm.weight: dtype is F16, it must be BF16");
}

TEST(Open, BadValues) {
  struct Case {
    const char* name;
    size_t at;
    const char* bytes;
    size_t count;
    VerifyLevel first;  ///< the lowest level that must notice
    const char* words;
  };
  const Case cases[] = {
      {"layers.0.attn.wq_a.scale", 1, "\xff", 1, VerifyLevel::kScales, "scale byte at element 1 is 255, which is NaN"},
      {"layers.0.attn.wq_a.scale", 0, "\x42", 1, VerifyLevel::kScales, "is 66, it must lie in [67, 187]"},
      {"mtp.1.attn.wkv.scale", 1, "\xbc", 1, VerifyLevel::kScales, "is 188, it must lie in [67, 187]"},
      {"layers.3.ffn.experts.2.w2.scale", 5, "\xff", 1, VerifyLevel::kScales, "element 5 is 255"},
      {"layers.2.engram.embed.scale", 77, "\xff", 1, VerifyLevel::kScales, "element 77 is 255"},
      {"layers.0.attn.wq_a.weight", 1000, "\x7f", 1, VerifyLevel::kFull, "element 1000 is not a finite number"},
      {"layers.0.attn.wq_a.weight", 7, "\xff", 1, VerifyLevel::kFull, "element 7 is not a finite number"},
      {"embed.weight", 100, "\xc0\x7f", 2, VerifyLevel::kFull, "element 50 is not a finite number"},
      {"embed.weight", 100, "\x80\xff", 2, VerifyLevel::kFull, "element 50 is not a finite number"},
      {"layers.6.hc_attn_fn", 4000, "\x00\x00\xc0\x7f", 4, VerifyLevel::kFull, "element 1000 is not a finite number"},
  };
  for (const Case& c : cases) {
    Tensors tensors = sound_tensors();
    std::memcpy(named(tensors, c.name).bytes.data() + c.at, c.bytes, c.count);
    const std::string directory = single_file(tensors);
    for (const VerifyLevel level : {VerifyLevel::kHeaders, VerifyLevel::kScales, VerifyLevel::kFull}) {
      const std::string error = open_error(directory, level);
      if (level < c.first) {
        EXPECT_EQ(error, "no error") << c.name;
      } else {
        EXPECT_HAS(error, c.words);
        EXPECT_HAS(error, c.name);
      }
    }
  }
  // The edges of the range and an absurd but finite expert scale are fine.
  Tensors tensors = sound_tensors();
  named(tensors, "layers.0.attn.wq_a.scale").bytes[0] = 67;
  named(tensors, "layers.0.attn.wq_a.scale").bytes[1] = static_cast<char>(187);
  named(tensors, "layers.0.ffn.experts.0.w1.scale").bytes[0] = 1;
  EXPECT_EQ(open_error(single_file(tensors), VerifyLevel::kFull), "no error");
}

TEST(Open, BadIndexes) {
  using Json = nlohmann::json;
  struct Case {
    std::function<void(Json&)> edit;
    const char* words;
  };
  const Case cases[] = {
      {[](Json& j) { j = Json::array(); }, "weight_map is missing"},
      {[](Json& j) { j["weight_map"] = 3; }, "weight_map is missing"},
      {[](Json& j) { j["weight_map"] = Json::object(); }, "weight_map is empty"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = 3; }, "weight_map.norm.weight is not a string"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = "../a.safetensors"; }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = "/etc/passwd"; }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = ".."; }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = ""; }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = "sub/a.safetensors"; }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = "a\\b"; }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = std::string("a\0b", 3); }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = std::string(300, 'a'); }, "not a plain file name"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = "c.safetensors"; }, "weight_map puts it in c.safetensors"},
      {[](Json& j) { j["weight_map"]["more"] = "c.safetensors"; }, "c.safetensors: no such file"},
      {[](Json& j) { j["weight_map"]["norm.weight"] = "a.safetensors"; }, "weight_map puts it in a.safetensors"},
  };
  for (const Case& c : cases) {
    const std::string error = open_error(sharded(sound_tensors(), c.edit));
    if (std::string(c.words).find("puts it in c") != std::string::npos) {
      EXPECT_NE(error, "no error");  // whichever is met first: the missing shard or the contradiction
    } else {
      EXPECT_HAS(error, c.words);
    }
  }
  // A tensor that is in a shard but not in the index is used, with a warning; one in the index alone is missing.
  const auto unlisted = Checkpoint::Open(sharded(sound_tensors(), [](Json& j) { j["weight_map"].erase("norm.weight"); }));
  ASSERT_TRUE(unlisted.has_value()) << unlisted.error().message();
  EXPECT_EQ((*unlisted)->warnings().size(), 1u);
  const std::string directory = sharded(sound_tensors());
  write_text(directory + "/model.safetensors.index.json", std::string(1000, '['));
  EXPECT_HAS(open_error(directory), "not valid JSON");
}

TEST(Open, MissingAndTruncatedFiles) {
  EXPECT_HAS(open_error("/no/such/directory"), "config.json: no such file");
  std::string directory = testing::scratch_dir("empty");
  EXPECT_HAS(open_error(directory), "config.json: no such file");
  write_text(directory + "/config.json", config_text());
  EXPECT_HAS(open_error(directory), "model.safetensors: no such file");

  directory = sharded(sound_tensors());
  fs::remove(directory + "/b.safetensors");
  EXPECT_HAS(open_error(directory), "b.safetensors: no such file");
  fs::create_directory(directory + "/b.safetensors");
  EXPECT_HAS(open_error(directory), "not a regular file");

  directory = single_file(sound_tensors());
  const std::string path = directory + "/model.safetensors";
  const auto whole = static_cast<int64_t>(fs::file_size(path));
  for (int64_t size = whole - 1; size >= 0; size -= 1 + size / 40) {
    fs::resize_file(path, static_cast<uintmax_t>(size));
    EXPECT_HAS(open_error(directory), "model.safetensors: ");
  }
}

TEST(Inspect, CollectsEveryProblem) {
  Tensors tensors = sound_tensors();
  tensors.erase(tensors.begin());
  named(tensors, "norm.weight").dtype = DType::kF16;
  named(tensors, "layers.0.attn.wq_a.scale").bytes[0] = static_cast<char>(255);
  tensors.push_back({"extra\nline", DType::kU8, {1}, "x"});
  const auto inspection =
      inspect_checkpoint(single_file(tensors), Checkpoint::Options{.verify = VerifyLevel::kScales, .progress = {}});
  ASSERT_TRUE(inspection.has_value()) << inspection.error().message();
  EXPECT_EQ(inspection->problem_count, 3);
  EXPECT_EQ(inspection->warning_count, 1);
  EXPECT_FALSE(inspection->sound());
  const std::string text = format_inspection(*inspection);
  EXPECT_HAS(text, "tensor embed.weight: missing");
  EXPECT_HAS(text, "dtype is F16");
  EXPECT_HAS(text, "which is NaN");
  EXPECT_HAS(text, "extra\\x0aline");
  const auto json = nlohmann::json::parse(inspection_json(*inspection), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["problem_count"], 3);
  EXPECT_EQ(json["sound"], false);
}

TEST(Inspect, BoundsTheList) {
  Tensors tensors = {sound_tensors().front()};
  const auto inspection = inspect_checkpoint(single_file(tensors));
  ASSERT_TRUE(inspection.has_value());
  EXPECT_EQ(inspection->problem_count, static_cast<int64_t>(sound_tensors().size()) - 1);
  EXPECT_EQ(inspection->problems.size(), 300u);
  EXPECT_HAS(format_inspection(*inspection), "more\n");
}

TEST(Inspect, BrokenShardDoesNotHideTheOther) {
  const std::string directory = sharded(sound_tensors());
  write_text(directory + "/a.safetensors", "broken");
  const auto inspection = inspect_checkpoint(directory);
  ASSERT_TRUE(inspection.has_value());
  EXPECT_EQ(inspection->problem_count, 101);  // the shard and its 100 tensors
  EXPECT_EQ(inspection->files.size(), 1u);
}

TEST(Inspect, ReleasedPlanFromConfigAlone) {
  const std::string directory = testing::scratch_dir("plan");
  fs::copy_file(testing::source_dir() + "/tests/data/released_config.json", directory + "/config.json");
  const auto inspection = inspect_checkpoint(directory);
  ASSERT_TRUE(inspection.has_value()) << inspection.error().message();
  EXPECT_FALSE(inspection->weights_present);
  EXPECT_EQ(inspection->tensors, 96085);
  EXPECT_EQ(inspection->bytes, 510286023000);
  EXPECT_EQ(inspection->kv_bytes_per_token, 890.0);
  EXPECT_EQ(inspection->window_bytes, 2703360);                                   // spec/backbone §7.2
  EXPECT_EQ(inspection->window_bytes + inspection->draft_window_bytes, 2906112);  // the same
  EXPECT_EQ(inspection->tail_bytes, 12288);
  const std::string text = format_inspection(*inspection);
  EXPECT_HAS(text, "files         absent");
  EXPECT_HAS(text, "890 bytes a token");
  EXPECT_HAS(text, "510,286,023,000");
  std::printf("%s", text.c_str());
}

TEST(Inspect, NanoIsSound) {
  const auto inspection =
      inspect_checkpoint(testing::nano_dir(), Checkpoint::Options{.verify = VerifyLevel::kFull, .progress = {}});
  ASSERT_TRUE(inspection.has_value());
  EXPECT_TRUE(inspection->sound()) << format_inspection(*inspection);
  EXPECT_EQ(inspection->files.size(), 2u);
  EXPECT_EQ(inspection->tensors, 1467);
}

TEST(Inspect, VerifyLevelNames) {
  for (const char* name : {"headers", "scales", "full"}) {
    const auto level = parse_verify_level(name);
    ASSERT_TRUE(level.has_value());
    EXPECT_EQ(verify_level_name(*level), name);
  }
  EXPECT_FALSE(parse_verify_level("all").has_value());
}

}  // namespace
}  // namespace deepinfer
