#include <gtest/gtest.h>

#include <random>

#include "tokenizer/official_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

using Ids = std::vector<int32_t>;

/// Ids of single bytes: what nano encodes a byte as when nothing merges.
Ids byte_ids(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view bytes) {
  static const std::vector<int32_t> table = [&] {
    std::vector<int32_t> ids(256, -1);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      const std::string_view b = tokenizer->token_bytes(id);
      if (b.size() == 1 && !tokenizer->is_added(id)) ids[static_cast<uint8_t>(b[0])] = id;
    }
    return ids;
  }();
  Ids ids;
  for (const char c : bytes) ids.push_back(table[static_cast<uint8_t>(c)]);
  return ids;
}

std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids, bool skip_special = false) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_EQ(utf8_valid_prefix(piece), piece.size());
    text += piece;
  }
  return text + detokenizer.finish();
}

TEST(DetokenizerTest, CharactersAppearWhenTheyAreComplete) {
  const auto tokenizer = testing::nano_tokenizer();
  for (const std::string text : {"é", "中", "😀", "\u0300", "\U0010FFFF"}) {
    const Ids ids = byte_ids(tokenizer, text);
    Detokenizer detokenizer(tokenizer);
    for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(detokenizer.push(ids[i]), "");
    EXPECT_EQ(detokenizer.push(ids.back()), text);
    EXPECT_EQ(detokenizer.finish(), "");
    // Cut short at every place, then followed by something else, or by nothing.
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      Ids broken(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
      EXPECT_EQ(stream(tokenizer, broken), kReplacementCharacter);
      EXPECT_EQ(tokenizer->decode(broken), kReplacementCharacter);
      for (const int32_t id : byte_ids(tokenizer, "x" + text)) broken.push_back(id);
      EXPECT_EQ(stream(tokenizer, broken), std::string(kReplacementCharacter) + "x" + text);
    }
  }
}

TEST(DetokenizerTest, BrokenBytesAppearAtOnce) {
  const auto tokenizer = testing::nano_tokenizer();
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(byte_ids(tokenizer, "\xFF")[0]), kReplacementCharacter);
  EXPECT_EQ(detokenizer.push(byte_ids(tokenizer, "\xE4")[0]), "");
  EXPECT_EQ(detokenizer.push(byte_ids(tokenizer, "\xE4")[0]), kReplacementCharacter);
  EXPECT_EQ(detokenizer.push(byte_ids(tokenizer, "a")[0]), std::string(kReplacementCharacter) + "a");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.push(-5), "");
}

TEST(DetokenizerTest, SkipsSpecialTokens) {
  const auto tokenizer = testing::nano_tokenizer();
  const Ids ids = tokenizer->encode_with_added_tokens("<｜begin▁of▁sentence｜><｜User｜>hi<｜end▁of▁sentence｜>");
  EXPECT_EQ(stream(tokenizer, ids, true), "<｜User｜>hi");
  EXPECT_EQ(tokenizer->decode(ids, true), "<｜User｜>hi");
  // A skipped token does not end an unfinished character: decode() joins the bytes on both sides too.
  Ids split = byte_ids(tokenizer, "中");
  split.insert(split.begin() + 1, 1);
  EXPECT_EQ(stream(tokenizer, split, true), "中");
  EXPECT_EQ(tokenizer->decode(split, true), "中");
}

TEST(DetokenizerTest, ConcatenationEqualsDecodeForRandomIds) {
  for (const auto& tokenizer : {testing::nano_tokenizer(), testing::official_tokenizer("v4.1")}) {
    if (tokenizer == nullptr) continue;
    std::mt19937_64 random(7);
    const Ids all_bytes = [&] {
      std::string bytes;
      for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
      return byte_ids(testing::nano_tokenizer(), bytes);
    }();
    for (int round = 0; round < 2000; ++round) {
      Ids ids;
      for (size_t n = random() % 24; n > 0; --n) {
        // Half of the ids from the low end, where the single bytes are.
        const auto limit = random() % 2 == 0 ? int64_t{300} : int64_t{tokenizer->vocab_size()} + 3;
        ids.push_back(static_cast<int32_t>(static_cast<int64_t>(random() % static_cast<uint64_t>(limit)) - 1));
      }
      const bool skip = round % 2 == 0;
      ASSERT_EQ(stream(tokenizer, ids, skip), tokenizer->decode(ids, skip));
      ASSERT_EQ(utf8_valid_prefix(tokenizer->decode(ids)), tokenizer->decode(ids).size());
    }
  }
}

}  // namespace
}  // namespace deepinfer
