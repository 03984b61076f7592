#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

using Ids = std::vector<int32_t>;

/// The rule word by word: look at all pairs, merge the leftmost of lowest rank, again.
Ids merge_naively(const TokenizerFile& file, std::string_view piece) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < file.merges.size(); ++i) ranks[{file.merges[i].left, file.merges[i].right}] = i;
  Ids ids;
  for (const char c : piece) ids.push_back(file.byte_ids[static_cast<uint8_t>(c)]);
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = ranks.find({ids[i], ids[i + 1]});
      if (it != ranks.end() && it->second < best) best = it->second, at = i;
    }
    if (best == SIZE_MAX) return ids;
    ids[at] = file.merges[best].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

/// A dense little vocabulary over three letters, whose merges overlap in every way. Some tokens come from several merges, some
/// are not what merging their own bytes gives.
TokenizerFile tangled_file(uint64_t seed) {
  std::mt19937_64 random(seed);
  TokenizerFile file;
  std::map<std::string, int32_t> ids;
  const auto add = [&](const std::string& token) {
    const auto [it, fresh] = ids.emplace(token, static_cast<int32_t>(file.tokens.size()));
    if (fresh) {
      file.tokens.push_back(token);
      file.kinds.push_back(TokenizerFile::Kind::kOrdinary);
    }
    return it->second;
  };
  for (int b = 0; b < 256; ++b) file.byte_ids[static_cast<size_t>(b)] = add(std::string(1, static_cast<char>(b)));
  std::vector<int32_t> parts{'a', 'b', 'c'};
  std::map<std::pair<int32_t, int32_t>, bool> used;
  for (int i = 0; i < 60; ++i) {
    const int32_t left = parts[random() % parts.size()], right = parts[random() % parts.size()];
    const std::string token = file.tokens[static_cast<size_t>(left)] + file.tokens[static_cast<size_t>(right)];
    if (token.size() > 12 || !used.emplace(std::pair{left, right}, true).second) continue;
    const int32_t merged = add(token);
    file.merges.push_back({left, right, merged});
    parts.push_back(merged);
  }
  // Merges in any order: parts may rank after what is made of them.
  std::shuffle(file.merges.begin(), file.merges.end(), random);
  return file;
}

TEST(BpeTest, SmallAndLargeEqualTheRule) {
  std::mt19937_64 random(3);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const TokenizerFile file = tangled_file(seed);
    const Bpe bpe(file);
    for (int round = 0; round < 40; ++round) {
      // Around the border between the two algorithms too.
      const size_t n = round < 25 ? 1 + random() % 30 : 110 + random() % 60;
      std::string piece;
      for (size_t i = 0; i < n; ++i) piece += static_cast<char>('a' + random() % (round % 3 + 1));
      const Ids expected = merge_naively(file, piece);
      Ids encoded, merged;
      bpe.encode(piece, encoded);
      bpe.merge(piece, merged);
      ASSERT_EQ(encoded, expected) << seed << " " << piece;
      ASSERT_EQ(merged, expected) << seed << " " << piece;
    }
  }
}

TEST(BpeTest, WholeTokensAreOnlyTakenWhereMergingGivesThem) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const TokenizerFile file = tangled_file(seed);
    const Bpe bpe(file);
    for (const std::string& token : file.tokens) {
      Ids encoded;
      bpe.encode(token, encoded);
      ASSERT_EQ(encoded, merge_naively(file, token)) << seed << " " << token;
    }
  }
}

TEST(BpeTest, NoMergesAtAll) {
  TokenizerFile file = tangled_file(1);
  file.merges.clear();
  const Bpe bpe(file);
  Ids ids;
  bpe.encode("abc", ids);
  EXPECT_EQ(ids, (Ids{'a', 'b', 'c'}));
  ids.clear();
  bpe.merge("", ids);
  EXPECT_EQ(ids, Ids{});
}

}  // namespace
}  // namespace deepinfer
