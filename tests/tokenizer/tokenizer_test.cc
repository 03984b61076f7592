#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "testing/paths.h"
#include "tokenizer/official_tokenizer.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

using Ids = std::vector<int32_t>;

#define SKIP_WITHOUT(tokenizer) \
  if ((tokenizer) == nullptr) GTEST_SKIP() << testing::official_tokenizer_missing()

TEST(TokenizerTest, OfficialVectors) {
  SKIP_WITHOUT(testing::official_tokenizer("v4.1"));
  int plain = 0, added = 0, stream = 0;
  const nlohmann::json file = testing::read_json(testing::source_dir() + "/tests/data/protocol/tokenizer.json");
  for (const auto& c : file["cases"]) {
    const auto tokenizer = testing::official_tokenizer(c.value("model_version", "v4.1"));
    const std::string mode = c["mode"];
    if (mode == "stream_decode") {
      Detokenizer detokenizer(tokenizer);
      std::vector<std::string> pieces;
      std::string text;
      for (const int32_t id : c["ids"]) {
        std::string piece = detokenizer.push(id);
        text += piece;
        pieces.push_back(std::move(piece));
      }
      EXPECT_EQ(pieces, c["expect_pieces"].get<std::vector<std::string>>()) << c["id"];
      EXPECT_EQ(text, c["expect_text"].get<std::string>()) << c["id"];
      EXPECT_EQ(text + detokenizer.finish(), tokenizer->decode(c["ids"].get<Ids>())) << c["id"];
      ++stream;
      continue;
    }
    const auto text = c["text"].get<std::string>();
    const Ids ids = mode == "plain" ? tokenizer->encode(text) : tokenizer->encode_with_added_tokens(text);
    EXPECT_EQ(ids, c["expect_ids"].get<Ids>()) << c["id"];
    EXPECT_EQ(tokenizer->decode(ids), text) << c["id"];
    ++(mode == "plain" ? plain : added);
  }
  EXPECT_EQ(plain, 57);
  EXPECT_EQ(added, 8);
  EXPECT_EQ(stream, 4);
}

TEST(TokenizerTest, OfficialFacts) {
  const auto tokenizer = testing::official_tokenizer("v4.1");
  SKIP_WITHOUT(tokenizer);
  EXPECT_EQ(tokenizer->vocab_size(), 129280);
  const nlohmann::json special_tokens = testing::read_json(testing::source_dir() + "/tests/data/protocol/special_tokens.json");
  for (const auto& token : special_tokens["tokens"]) {
    const std::string literal = token.value("both", token.value("v4.1", ""));
    const auto id = token["id"].get<int32_t>();
    EXPECT_EQ(tokenizer->added_token(literal), id);
    EXPECT_EQ(tokenizer->token_bytes(id), literal);
    EXPECT_EQ(tokenizer->encode_with_added_tokens(literal), Ids{id});
    EXPECT_TRUE(tokenizer->is_added(id));
    EXPECT_EQ(tokenizer->is_special(id), id <= 2);
    for (const int32_t plain : tokenizer->encode(literal)) EXPECT_FALSE(tokenizer->is_added(plain)) << literal;
  }
  EXPECT_EQ(tokenizer->encode("<｜User｜>"), (Ids{30, 28217, 6756, 28217, 32}));
  EXPECT_EQ(tokenizer->encode("<think>"), (Ids{30, 37947, 32}));
  EXPECT_EQ(tokenizer->encode_with_added_tokens("<｜place▁holder▁no▁79｜><|place_holder_mm_span_0442|>"),
            (Ids{128079, 129268 + 11}));
  // skip_special keeps what the file does not flag as special, <｜System｜> among them (spec/protocol §1).
  EXPECT_EQ(tokenizer->decode(Ids{0, 128799, 19923, 1}, /*skip_special=*/true), "<｜System｜>Hello");
  EXPECT_EQ(testing::official_tokenizer("v4")->decode(Ids{0, 128799, 19923, 1}, true), "Hello");
}

TEST(TokenizerTest, NanoEqualsTheReference) {
  const auto tokenizer = testing::nano_tokenizer();
  const nlohmann::json golden = testing::read_json(testing::source_dir() + "/tests/data/nano_tokenizer_golden.json");
  int checked = 0;
  for (const auto& c : golden["cases"]) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(text), ids) << c.dump();
    EXPECT_EQ(tokenizer->encode_with_added_tokens(text), c.value("with_added", ids)) << c.dump();
    EXPECT_EQ(tokenizer->decode(ids), text);
    ++checked;
  }
  EXPECT_GE(checked, 250);
}

TEST(TokenizerTest, IdsOutsideOfTheVocabularyAreEmpty) {
  const auto tokenizer = testing::nano_tokenizer();
  for (const int32_t id : {-1, INT32_MIN, INT32_MAX, tokenizer->vocab_size()}) {
    EXPECT_EQ(tokenizer->token_bytes(id), "");
    EXPECT_EQ(tokenizer->token_string(id), "");
    EXPECT_FALSE(tokenizer->is_added(id));
    EXPECT_FALSE(tokenizer->is_special(id));
    EXPECT_EQ(tokenizer->decode(Ids{id}), "");
  }
  EXPECT_EQ(tokenizer->added_token("<｜Nobody｜>"), std::nullopt);
  EXPECT_EQ(tokenizer->added_token(""), std::nullopt);
  EXPECT_EQ(tokenizer->added_token("<"), std::nullopt);
}

TEST(TokenizerTest, InjectedControlTokensStayOrdinary) {
  const auto tokenizer = testing::nano_tokenizer();
  int added = 0;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->is_added(id)) continue;
    ++added;
    const std::string literal(tokenizer->token_bytes(id));
    for (const std::string& text : {literal, "a" + literal + "b", literal + literal, " " + literal + "\n"}) {
      const Ids ids = tokenizer->encode(text);
      EXPECT_TRUE(std::none_of(ids.begin(), ids.end(), [&](int32_t i) { return tokenizer->is_added(i); })) << text;
      EXPECT_EQ(tokenizer->decode(ids), text);
      const Ids trusted = tokenizer->encode_with_added_tokens(text);
      EXPECT_NE(std::find(trusted.begin(), trusted.end(), id), trusted.end()) << text;
      EXPECT_EQ(tokenizer->decode(trusted), text);
    }
  }
  EXPECT_EQ(added, 21);
}

TEST(TokenizerTest, InvalidUtf8BecomesReplacementCharacters) {
  const auto tokenizer = testing::nano_tokenizer();
  const std::string r(kReplacementCharacter);
  const std::pair<std::string, std::string> cases[] = {
      {"\xFF", r},
      {"a\x80z", "a" + r + "z"},
      {"\xE4\xB8", r},  // unfinished: one
      {"\xE4\xB8q", r + "q"},
      {"\xE0\x80\x80", r + r + r},  // overlong: each byte
      {"\xED\xA0\x80", r + r + r},  // a surrogate
      {"\xF0\x9F\x98", r},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", r + "😀"},
      {"\xF4\x90\x80\x80", r + r + r + r},  // above U+10FFFF
      {"\xC0\xAF", r + r},
      {std::string("\0\xC3", 2), std::string("\0", 1) + r},
  };
  for (const auto& [broken, repaired] : cases) {
    EXPECT_EQ(tokenizer->encode(broken), tokenizer->encode(repaired)) << repaired;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("x" + broken + "y")), "x" + repaired + "y");
    EXPECT_EQ(tokenizer->encode_with_added_tokens(broken + "<think>"), tokenizer->encode_with_added_tokens(repaired + "<think>"));
  }
}

// Quadratic work on a megabyte takes hours, which the runner's limit ends.
TEST(TokenizerTest, LongRunsFinish) {
  std::vector<std::shared_ptr<const Tokenizer>> tokenizers{testing::nano_tokenizer()};
  if (auto official = testing::official_tokenizer("v4.1")) tokenizers.push_back(official);
  constexpr size_t kBytes = 1 << 20;
  for (const std::string& unit :
       {std::string("a"), std::string(" "), std::string("\u0300"), std::string("7"), std::string("中文字"), std::string(1, '\0'),
        std::string("\n"), std::string(" \n"), std::string("!"), std::string("\xFF"), std::string("<"), std::string("<｜"),
        std::string("\u3040"), std::string("abcdefghijklmnop"), std::string("\u00a0"), std::string("\x1c ")}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    for (const auto& tokenizer : tokenizers) {
      const Ids ids = tokenizer->encode(text);
      EXPECT_EQ(tokenizer->encode_with_added_tokens(text).size(), ids.size());
      std::string repaired;
      utf8_append_lossy(text, true, repaired);
      EXPECT_EQ(tokenizer->decode(ids), repaired) << unit;
    }
  }
}

TEST(TokenizerTest, ManyThreadsEncodeTheSame) {
  const auto tokenizer = testing::nano_tokenizer();
  std::string text;
  for (int i = 0; i < 200; ++i) text += "The value " + std::to_string(i) + " 是 <think> déjà vu;\n";
  const Ids expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) equal[t] += tokenizer->encode(text) == expected ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 20));
}

}  // namespace
}  // namespace deepinfer
