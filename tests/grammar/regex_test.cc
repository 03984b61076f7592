#include "grammar/regex.h"

#include <gtest/gtest.h>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using grammar::RegexSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

struct RegexCase {
  const char* pattern;
  std::vector<const char*> yes;
  std::vector<const char*> no;
};

TEST(Regex, TextsOfPatterns) {
  const std::vector<RegexCase> cases = {
      {"", {""}, {"a"}},
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"a*b+c?", {"b", "aab", "abbc"}, {"", "ac", "abcc"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"}},
      {"[a-c]{3}", {"abc"}, {"ab", "abcd", "abd"}},
      {"[a-c]{2,}", {"ab", "abcabc"}, {"a", "abd"}},
      {"[a-z]{0,1000}", {"", "hello"}, {"A"}},
      {"(a{1,2}b){2}c", {"ababc", "aabaabc"}, {"abc", "aaabab"}},
      {"[^a]", {"b", "é", "中"}, {"a", "", "bb"}},
      {"\\d{2}-\\w+", {"12-a_9"}, {"1-a", "12-"}},
      {".", {"a", "\t", "😀"}, {"\n", "ab"}},
      {"\\p{Lu}\\p{Greek}", {"Aα", "Éω"}, {"aα", "AA"}},
      {"\\P{L}", {"1"}, {"a"}},
      {"[\\d.\\-]+", {"1.2-3"}, {"a"}},
      {"[]a]", {}, {"]"}},
      {"[a\\]]", {"]", "a"}, {"b"}},
      {"^abc$", {"abc"}, {"ab"}},
      {"(^a|b)c", {"ac", "bc"}, {"c"}},
      {"a^b", {}, {"ab", "a^b"}},
      {"a{,2}", {"a{,2}"}, {"aa"}},
      {"x{2", {"x{2"}, {"xx"}},
      {"(?:a|b)+?", {"abba"}, {""}},
      {"(?<name>a)(?P<n>b)", {"ab"}, {"a"}},
      {"(?i)abc", {"aBC", "abc"}, {"abd"}},
      {"\\u00e9\\x41\\u{1F600}", {"éA😀"}, {"e"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"(a|aa)+", {"a", "aaaa"}, {""}},
      {"(a?){3}", {"", "aaa"}, {"aaaa"}},
      {"[[:alpha:]]+", {"abC"}, {"a1"}},
      {"\\s\\S", {" a"}, {"a "}},
  };
  for (const RegexCase& c : cases) {
    auto made = compile_grammar(RegexSpec{c.pattern}, small_vocabulary());
    if (!made) {
      EXPECT_TRUE(c.yes.empty()) << c.pattern << ": " << made.error().message();
      continue;
    }
    for (const char* text : c.yes) EXPECT_TRUE(accepts(*made, text)) << c.pattern << " " << text;
    for (const char* text : c.no) EXPECT_FALSE(accepts(*made, text)) << c.pattern << " " << text;
  }
}

TEST(Regex, ErrorsNameThePosition) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"(a", "position 2: a group without"},
      {"a)", "position 1: unmatched"},
      {"[a", "a class without"},
      {"a**", "a quantifier follows"},
      {"*a", "position 0: nothing to repeat"},
      {"(a)\\1", "back-references"},
      {"a(?=b)", "look-ahead"},
      {"(?<!a)b", "look-behind"},
      {"\\bfoo", "word boundaries"},
      {"[z-a]", "out of order"},
      {"a{3,2}", "out of order"},
      {"\\p{Nope}", "\"Nope\" is not known"},
      {"a{2000000}", "above 1000000"},
      {"\\q", "unknown escape"},
      {"\xFF", "invalid UTF-8"},
  };
  for (const auto& [pattern, message] : cases) {
    EXPECT_NE(compile_error(RegexSpec{pattern}).find(message), std::string::npos)
        << pattern << ": " << compile_error(RegexSpec{pattern});
  }
}

TEST(Regex, AutomataAgreeWithMatching) {
  using namespace grammar;  // NOLINT(google-build-using-namespace)
  Work work{CompileLimits()};
  const auto dfa = [&](const char* pattern) {
    return dfa_of_regex(*parse_regex(pattern, RegexScope::kSearch, work.limits()), work);
  };
  const auto text = [](std::string_view t) { return *decode_utf8(t); };
  const CharDfa both = intersect(dfa("^a"), dfa("z$"), work);
  EXPECT_TRUE(both.matches(text("abcz")));
  EXPECT_FALSE(both.matches(text("abc")));
  const CharDfa neither = complement(both, work);
  EXPECT_FALSE(neither.matches(text("az")));
  EXPECT_TRUE(neither.matches(text("")));
  EXPECT_TRUE(intersect(both, neither, work).empty());
  EXPECT_TRUE(dfa_of_words({text("a"), text("ab")}, work).matches(text("ab")));
  EXPECT_TRUE(work.ok());
}

}  // namespace
}  // namespace deepinfer
