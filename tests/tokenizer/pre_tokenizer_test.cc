#include "tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "testing/paths.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

using Pieces = std::vector<std::string_view>;

TEST(PreTokenizerTest, Vectors) {
  const nlohmann::json file = testing::read_json(testing::source_dir() + "/tests/data/protocol/tokenizer.json");
  int checked = 0;
  for (const auto& c : file["cases"]) {
    if (!c.contains("pretokens")) continue;
    const auto text = c["text"].get<std::string>();
    const auto expected = c["pretokens"].get<std::vector<std::string>>();
    const Pieces pieces = pre_tokenize(text);
    EXPECT_EQ(std::vector<std::string>(pieces.begin(), pieces.end()), expected) << c["id"];
    ++checked;
  }
  EXPECT_GE(checked, 50);
}

TEST(PreTokenizerTest, Traps) {
  // The lookahead of 3e does not see what stages 1 and 2 cut off.
  EXPECT_EQ(pre_tokenize("a  1"), (Pieces{"a", "  ", "1"}));
  EXPECT_EQ(pre_tokenize("a  中"), (Pieces{"a", "  ", "中"}));
  EXPECT_EQ(pre_tokenize("a  b"), (Pieces{"a", " ", " b"}));
  // First alternative, not longest: 3a takes one sign and ASCII letters only; an accent ends it.
  EXPECT_EQ(pre_tokenize("-foo\u0301"), (Pieces{"-foo", "\u0301"}));
  EXPECT_EQ(pre_tokenize("--foo"), (Pieces{"--", "foo"}));
  EXPECT_EQ(pre_tokenize("-éa"), (Pieces{"-", "éa"}));
  // Stage 3 splits CJK runs again.
  EXPECT_EQ(pre_tokenize("ア・イ"), (Pieces{"ア", "・", "イ"}));
  EXPECT_EQ(pre_tokenize("中\u3040文"), (Pieces{"中", "\u3040文"}));
  EXPECT_EQ(pre_tokenize("中é"), (Pieces{"中", "é"}));
  EXPECT_EQ(pre_tokenize("é中"), (Pieces{"é", "中"}));
  // \s: U+0085 is white, U+001C is not and stays a gap.
  EXPECT_EQ(pre_tokenize("\u0085\u0085"), (Pieces{"\u0085\u0085"}));
  EXPECT_EQ(pre_tokenize("\x1c\x1c"), (Pieces{"\x1c\x1c"}));
  EXPECT_EQ(pre_tokenize("\x1c\x1c x"), (Pieces{"\x1c\x1c", " x"}));
  EXPECT_EQ(pre_tokenize(std::string_view("\0\0a", 3)), (Pieces{std::string_view("\0", 1), std::string_view("\0a", 2)}));
  EXPECT_EQ(pre_tokenize("\ufeff\ufeffx"), (Pieces{"\ufeff", "\ufeffx"}));
  // 3d goes to the last newline of a run, 3c takes the newlines behind signs.
  EXPECT_EQ(pre_tokenize(" \n \n  x"), (Pieces{" \n \n", " ", " x"}));
  EXPECT_EQ(pre_tokenize("!\r\n\n x"), (Pieces{"!\r\n\n", " x"}));
  EXPECT_EQ(pre_tokenize("\r\nx"), (Pieces{"\r\n", "x"}));
  EXPECT_EQ(pre_tokenize("\n\u3000!"), (Pieces{"\n", "\u3000", "!"}));
  EXPECT_EQ(pre_tokenize("٣٤٥٦Ⅷ²"), (Pieces{"٣٤٥", "٦Ⅷ²"}));
  EXPECT_EQ(pre_tokenize(""), Pieces{});
}

/// The stages as the file states them, one pass after the other with backtracking regular expressions replaced by the most
/// literal code: an independent second implementation to compare random texts with.
class Literal {
 public:
  static std::vector<std::u32string> split(const std::u32string& text) {
    std::vector<std::u32string> pieces{text};
    for (const auto stage : {number, cjk, words}) {
      std::vector<std::u32string> next;
      for (const auto& piece : pieces) {
        std::u32string gap;
        for (size_t i = 0; i < piece.size();) {
          const size_t n = stage(piece, i);
          if (n == 0) {
            gap += piece[i++];
            continue;
          }
          if (!gap.empty()) next.push_back(std::exchange(gap, {}));
          next.push_back(piece.substr(i, n));
          i += n;
        }
        if (!gap.empty()) next.push_back(gap);
      }
      pieces = std::move(next);
    }
    return pieces;
  }

 private:
  using C = CharClasses;
  static uint8_t bits(char32_t c) { return C::instance().of(c); }
  template <typename Is>
  static size_t run(const std::u32string& s, size_t i, Is is) {
    size_t n = 0;
    while (i + n < s.size() && is(s[i + n])) ++n;
    return n;
  }
  static bool is_word(char32_t c) { return (bits(c) & (C::kLetter | C::kMark)) != 0; }
  static bool is_sign(char32_t c) { return (bits(c) & (C::kPunctuation | C::kSymbol)) != 0; }
  static bool is_newline(char32_t c) { return c == U'\r' || c == U'\n'; }
  static bool is_white(char32_t c) { return (bits(c) & C::kWhite) != 0; }
  static bool is_ascii_letter(char32_t c) { return (c >= U'A' && c <= U'Z') || (c >= U'a' && c <= U'z'); }

  static size_t number(const std::u32string& s, size_t i) {
    return std::min<size_t>(3, run(s, i, [](char32_t c) { return (bits(c) & C::kNumber) != 0; }));
  }
  static size_t cjk(const std::u32string& s, size_t i) {
    return run(s, i, [](char32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); });
  }
  static size_t words(const std::u32string& s, size_t i) {
    static const std::u32string kSigns = U"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    const char32_t c = s[i];
    if (kSigns.find(c) != std::u32string::npos) {
      if (const size_t n = run(s, i + 1, is_ascii_letter); n > 0) return 1 + n;
    }
    if (!is_newline(c) && !(bits(c) & C::kLetter) && !is_sign(c)) {
      if (const size_t n = run(s, i + 1, is_word); n > 0) return 1 + n;
    }
    if (const size_t n = run(s, i, is_word); n > 0) return n;
    const size_t blank = c == U' ' ? 1 : 0;
    if (const size_t n = run(s, i + blank, is_sign); n > 0) return blank + n + run(s, i + blank + n, is_newline);
    const size_t white = run(s, i, is_white);
    for (size_t n = white; n > 0; --n) {  // \s*[\r\n]+ giving back one character after the other
      if (is_newline(s[i + n - 1])) return n;
    }
    for (size_t n = white; n > 0; --n) {  // \s+(?!\S)
      if (i + n == s.size() || is_white(s[i + n])) return n;
    }
    return white;
  }
};

TEST(PreTokenizerTest, EqualsTheStagesTakenLiterally) {
  const std::u32string alphabet =
      U"aZé\u0301\u0300 "
      U"\t\n\r\u0085\u00a0\u3000\x1c\x00x.-!'_$｜。・中文アの\u3040\u3099は한ع1٣²Ⅷ\ufeff\u200d\U0001F600\U000E0001";
  uint64_t state = 42;
  const auto random = [&state](size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state >> 33) % n;
  };
  for (int round = 0; round < 20000; ++round) {
    std::u32string text;
    for (size_t n = random(14); n > 0; --n) {
      char32_t c = random(8) != 0 ? alphabet[random(alphabet.size())] : static_cast<char32_t>(random(0x3200));
      text += c;
    }
    std::string utf8;
    for (const char32_t c : text) utf8_append(c, utf8);
    std::vector<std::string> expected;
    for (const auto& piece : Literal::split(text)) {
      expected.emplace_back();
      for (const char32_t c : piece) utf8_append(c, expected.back());
    }
    const Pieces pieces = pre_tokenize(utf8);
    ASSERT_EQ(std::vector<std::string>(pieces.begin(), pieces.end()), expected) << utf8;
  }
}

TEST(PreTokenizerTest, RecognisesBothSpellingsOfThePatterns) {
  EXPECT_EQ(recognise_split(R"(\p{N}{1,3})"), 0);
  EXPECT_EQ(recognise_split("[一-龥\u3040-ゟ゠-ヿ]+"), 1);
  const std::string head = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^";
  EXPECT_EQ(
      recognise_split(head + "\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"), 2);
  EXPECT_EQ(
      recognise_split(
          R"([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
      2);
  EXPECT_EQ(recognise_split(R"(\p{N}{1,2})"), -1);
  EXPECT_EQ(recognise_split(""), -1);
  EXPECT_EQ(recognise_split("\\"), -1);
  EXPECT_EQ(recognise_split(std::string(100000, '\\')), -1);
}

}  // namespace
}  // namespace deepinfer
