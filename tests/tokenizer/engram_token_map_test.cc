#include "tokenizer/engram_token_map.h"

#include <gtest/gtest.h>

#include "testing/paths.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

// The hashes are FNV-1a over the little-endian int32 map. Both maps were also made with the normalisers of the Hugging Face
// tokenizers library 0.23.2 (Rust) and are equal to it in every entry; nano's also with the Python reference.

TEST(EngramTokenMapTest, Nano) {
  const EngramTokenMap map = make_engram_token_map(*testing::nano_tokenizer());
  EXPECT_EQ(map.map.size(), 4096u);
  EXPECT_EQ(map.compressed_vocab_size, 3406);
  EXPECT_EQ(testing::fnv1a(map.map), 0x230167808c68d242u);
  const nlohmann::json golden = testing::read_json(testing::source_dir() + "/tests/data/nano_tokenizer_golden.json");
  EXPECT_EQ(map.compressed_vocab_size, golden["engram_compressed_vocab_size"].get<int32_t>());
  EXPECT_EQ(fmt::format("{:016x}", testing::fnv1a(map.map)), golden["engram_map_fnv1a"].get<std::string>());
}

TEST(EngramTokenMapTest, Official) {
  const auto tokenizer = testing::official_tokenizer("v4.1");
  if (tokenizer == nullptr) GTEST_SKIP() << testing::official_tokenizer_missing();
  const EngramTokenMap map = make_engram_token_map(*tokenizer);
  EXPECT_EQ(map.map.size(), 129280u);
  EXPECT_EQ(map.compressed_vocab_size, 99092);
  EXPECT_EQ(map.map[2], 2);
  EXPECT_EQ(testing::fnv1a(map.map), 0x6b5cfa68a5f57ba6u);
}

TEST(EngramTokenMapTest, Normalises) {
  EXPECT_EQ(engram_normalise(" The"), "the");
  EXPECT_EQ(engram_normalise("ÉCOLE"), "ecole");
  EXPECT_EQ(engram_normalise("ﬁ"), "fi");
  EXPECT_EQ(engram_normalise("Å①Ａ"), "a1a");
  EXPECT_EQ(engram_normalise("İ"), "i");      // decomposes before it is lowered
  EXPECT_EQ(engram_normalise("ΣΑΣ"), "σασ");  // no final sigma: one character at a time
  EXPECT_EQ(engram_normalise("ẞ"), "ß");
  EXPECT_EQ(engram_normalise("한"), "\u1112\u1161\u11ab");
  EXPECT_EQ(engram_normalise(" "), " ");
  EXPECT_EQ(engram_normalise(" \t\r\n "), " ");
  EXPECT_EQ(engram_normalise("\u00a0"), " ");  // NFKC makes it a blank
  EXPECT_EQ(engram_normalise("\u2028"), "");   // white, but not squeezed: stripped
  EXPECT_EQ(engram_normalise("a \t\n b  "), "a b");
  EXPECT_EQ(engram_normalise("\u0301"), "");
  EXPECT_EQ(engram_normalise("\x1c"), "\x1c");  // not White_Space
  EXPECT_EQ(engram_normalise("\ue000x"), " x");
  EXPECT_EQ(engram_normalise(""), "");
}

}  // namespace
}  // namespace deepinfer
