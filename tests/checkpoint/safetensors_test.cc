#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "base/mapped_file.h"
#include "checkpoint/temp_dir.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

/// Length prefix + header + payload of zeros.
std::string file_of(const std::string& header, size_t payload, int64_t length = -1) {
  const uint64_t n = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + std::string(payload, '\0');
}

Result<SafetensorsHeader> parse(const std::string& bytes) {
  // An exact heap copy, so that the address sanitizer sees any read past the end.
  const std::vector<char> copy(bytes.begin(), bytes.end());
  return parse_safetensors(std::as_bytes(std::span(copy)), "f.safetensors");
}

constexpr const char* kTwo =
    R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I8","shape":[5],"data_offsets":[24,29]}})";

TEST(Safetensors, ReadsTwoTensors) {
  const auto header = parse(file_of(kTwo, 29));
  ASSERT_TRUE(header.has_value()) << header.error().message();
  ASSERT_EQ(header->entries.size(), 2u);
  EXPECT_EQ(header->entries[0].name, "a");
  EXPECT_EQ(header->entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header->entries[1].offset, static_cast<int64_t>(8 + std::strlen(kTwo) + 24));
  EXPECT_EQ(header->entries[1].bytes, 5);
}

TEST(Safetensors, OddButLegal) {
  EXPECT_TRUE(parse(file_of("{}", 0)).has_value());
  EXPECT_TRUE(parse(file_of("{}      ", 0)).has_value());
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":{"format":"pt"}})", 0)).has_value());
  EXPECT_TRUE(parse(file_of(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4)).has_value());
  EXPECT_TRUE(
      parse(file_of(
                R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"s":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                1))
          .has_value());
}

struct Hostile {
  const char* what;
  const char* header;
  size_t payload;
  const char* words;
};
constexpr Hostile kHostile[] = {
    {"not JSON", "{", 0, "not valid JSON"},
    {"empty header", "", 0, "not valid JSON"},
    {"an array", "[]", 0, "not a JSON object"},
    {"deep", R"({"a":[[[[[[[[[[[[[[]]]]]]]]]]]]]]})", 0, "nesting"},
    {"not UTF-8", "{\"\xff\xfe\":1}", 0, "not valid JSON"},
    {"entry is a number", R"({"a":3})", 0, "tensor a"},
    {"metadata is a list", R"({"__metadata__":[]})", 0, "__metadata__"},
    {"metadata of numbers", R"({"__metadata__":{"a":1}})", 0, "__metadata__.a"},
    {"unknown dtype", R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8, "dtype is \"F64\""},
    {"dtype with a line break", R"({"a":{"dtype":"F\n4","shape":[1],"data_offsets":[0,8]}})", 8, "\\x0a"},
    {"dtype number", R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,8]}})", 8, "dtype is 4"},
    {"no dtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "dtype is missing"},
    {"no shape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "shape is missing"},
    {"no offsets", R"({"a":{"dtype":"U8","shape":[1]}})", 1, "data_offsets is missing"},
    {"unknown field", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1, "unknown field"},
    {"dtype twice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "dtype is given twice"},
    {"shape twice", R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1, "shape is given twice"},
    {"negative length", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "shape[0] is -1"},
    {"two negatives", R"({"a":{"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]}})", 1, "shape[0] is -1"},
    {"fractional length", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "shape[0]"},
    {"shape no list", R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "shape is 1"},
    {"overflow", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "overflows"},
    {"overflow to 4", R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4, "overflows"},
    {"over int64", R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1, "shape[0]"},
    {"over uint64", R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1, "not valid JSON"},
    {"nine dims", R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1, "more than 8"},
    {"span too small", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8 bytes"},
    {"span too large", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})", 12, "needs 8 bytes"},
    {"descending", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "data_offsets is [1, 0]"},
    {"negative offset", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[-1,1]}})", 1, "data_offsets is [-1, 1]"},
    {"past the end", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "payload of 1 bytes"},
    {"far past", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})", 1, "payload"},
    {"one offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "not a pair"},
    {"three offsets", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "not a pair"},
    {"offsets strings", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":["0","1"]}})", 1, "not two integers"},
    {"overlap", R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", 4,
     "inside"},
    {"same bytes", R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
     3, "inside"},
    {"hole", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3,
     "hole"},
    {"hole at the start", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "hole"},
    {"trailing bytes", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2, "the payload has 2 bytes"},
    {"payload without tensors", "{}", 1, "the payload has 1 bytes"},
    {"same name", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     2, "twice"},
};

TEST(Safetensors, RefusesHostileHeaders) {
  for (const Hostile& h : kHostile) {
    const auto header = parse(file_of(h.header, h.payload));
    ASSERT_FALSE(header.has_value()) << h.what;
    const std::string& error = header.error().message();
    EXPECT_NE(error.find(h.words), std::string::npos) << h.what << ": " << error;
    EXPECT_TRUE(error.starts_with("f.safetensors: ")) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole = file_of(kTwo, 29);
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(parse(whole.substr(0, n)).has_value()) << n;
}

TEST(Safetensors, RefusesLyingLengths) {
  const auto size = static_cast<int64_t>(std::strlen(kTwo));
  for (const int64_t length : {int64_t{0}, int64_t{1}, size - 1, size + 1, size + 29, size + 30, int64_t{1} << 20,
                               int64_t{1} << 28, (int64_t{1} << 28) + 1, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    EXPECT_FALSE(parse(file_of(kTwo, 29, length)).has_value()) << length;
  }
  std::string all_ones = file_of(kTwo, 29);
  std::memset(all_ones.data(), 0xff, 8);
  EXPECT_FALSE(parse(all_ones).has_value());
}

TEST(Safetensors, RefusesLongNames) {
  const std::string header = "{\"" + std::string(1025, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  EXPECT_FALSE(parse(file_of(header, 1)).has_value());
}

TEST(Safetensors, RandomByteFlipsNeverCrash) {
  const std::string whole = file_of(kTwo, 29);
  std::mt19937 rng(7);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string broken = whole;
    for (int flips = 1 + static_cast<int>(rng() % 4); flips > 0; --flips)
      broken[rng() % broken.size()] = static_cast<char>(rng());
    const auto header = parse(broken);
    if (!header) {
      ++refused;
      continue;
    }
    for (const auto& e : header->entries) {
      ASSERT_GE(e.offset, 0);
      ASSERT_LE(e.offset + e.bytes, static_cast<int64_t>(broken.size()));
    }
  }
  EXPECT_GT(refused, 10000);
}

TEST(Safetensors, WriterRoundTrip) {
  const std::string path = testing::scratch_dir("safetensors") + "/t.safetensors";
  // 9 MB crosses several write chunks; names need escaping.
  const std::vector<int64_t> big = {3, 1 << 20, 3};
  std::vector<SafetensorsWrite> writes;
  int64_t next = 0;
  writes.push_back({"small \"quoted\" \\ \x01", DType::kU8, {3}, [](int64_t, std::span<std::byte> out) {
                      std::fill(out.begin(), out.end(), std::byte{9});
                      return Status::Ok();
                    }});
  writes.push_back({"big", DType::kU8, big, [&next](int64_t offset, std::span<std::byte> out) {
                      EXPECT_EQ(offset, next);
                      for (size_t i = 0; i < out.size(); ++i)
                        out[i] = static_cast<std::byte>((static_cast<size_t>(offset) + i) % 251);
                      next = offset + static_cast<int64_t>(out.size());
                      return Status::Ok();
                    }});
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
  ASSERT_TRUE(write_safetensors(path, writes, metadata).ok());
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.has_value());
  const auto header = parse_safetensors(file->bytes(), path);
  ASSERT_TRUE(header.has_value()) << header.error().message();
  ASSERT_EQ(header->entries.size(), 2u);
  EXPECT_EQ(header->entries[0].name, writes[0].name);
  EXPECT_EQ(header->metadata.size(), 1u);
  EXPECT_EQ(header->entries[0].offset % 64, 0);
  for (int64_t i = 0; i < header->entries[1].bytes; i += 997) {
    ASSERT_EQ(std::to_integer<int64_t>(file->data()[header->entries[1].offset + i]), i % 251);
  }
}

TEST(Safetensors, WriterReportsFailures) {
  const std::string directory = testing::scratch_dir("safetensors");
  const SafetensorsWrite bad{"a", DType::kU8, {3}, [](int64_t, std::span<std::byte>) { return Status::Internal("no bytes"); }};
  const Status failed = write_safetensors(directory + "/t.safetensors", {&bad, 1});
  EXPECT_NE(failed.message().find("no bytes"), std::string::npos);
  EXPECT_NE(::access((directory + "/t.safetensors").c_str(), F_OK), 0);
  EXPECT_NE(::access((directory + "/t.safetensors.tmp").c_str(), F_OK), 0);
  const SafetensorsWrite huge{"a", DType::kF32, {int64_t{1} << 62}, nullptr};
  EXPECT_FALSE(write_safetensors(directory + "/t.safetensors", {&huge, 1}).ok());
  EXPECT_FALSE(write_safetensors(directory + "/no/such/t.safetensors", {}).ok());
}

}  // namespace
}  // namespace deepinfer
