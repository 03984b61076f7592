#include <gtest/gtest.h>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using grammar::EbnfSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

TEST(Ebnf, Arithmetic) {
  const auto g = compile(EbnfSpec{R"g(
    # sums and products
    root ::= expr "\n"
    expr ::= term (("+" | "-") term)*
    term ::= factor ("*" factor)*
    factor ::= [0-9]+ | "(" expr ")"
  )g"});
  EXPECT_TRUE(accepts(g, "1+2*(3-4)\n"));
  EXPECT_TRUE(accepts(g, "((((1))))\n"));
  EXPECT_FALSE(accepts(g, "1+\n"));
  EXPECT_FALSE(accepts(g, "(1\n"));
  EXPECT_FALSE(accepts(g, "1+2"));
}

TEST(Ebnf, DirectLeftRecursionIsRewritten) {
  const auto g = compile(EbnfSpec{"root ::= root \"+\" [0-9] | [0-9]"});
  EXPECT_TRUE(accepts(g, "1"));
  EXPECT_TRUE(accepts(g, "1+2+3"));
  EXPECT_FALSE(accepts(g, "+1"));
  EXPECT_FALSE(accepts(g, "1+"));
}

TEST(Ebnf, AmbiguityStaysSmall) {
  const auto g = compile(EbnfSpec{"root ::= s\ns ::= s s | \"a\" | \"(\" s \")\""});
  EXPECT_TRUE(accepts(g, std::string(2000, 'a')));
  EXPECT_TRUE(accepts(g, "a(aa(a))a"));
  EXPECT_FALSE(accepts(g, "a(a"));
  const auto h = compile(EbnfSpec{"root ::= \"a\" root \"x\" | \"a\" root \"y\" | \"b\""});
  EXPECT_TRUE(accepts(h, std::string(200, 'a') + "b" + std::string(100, 'x') + std::string(100, 'y')));
  EXPECT_FALSE(accepts(h, std::string(200, 'a') + "b" + std::string(199, 'x')));
}

TEST(Ebnf, NullableRules) {
  const auto g = compile(EbnfSpec{"root ::= a b a \"x\"\na ::= \"1\"?\nb ::= a a | \"2\""});
  for (const char* text : {"x", "1x", "11x", "1111x", "2x", "121x", "12x"}) EXPECT_TRUE(accepts(g, text)) << text;
  for (const char* text : {"", "11111x", "22x", "1121x"}) EXPECT_FALSE(accepts(g, text)) << text;
}

TEST(Ebnf, CountsAndEscapes) {
  const auto g = compile(EbnfSpec{"root ::= item{2,3} [^\\n\\x41]{1} \"\\u00e9\\\"\" .\nitem ::= \"a\" | \"bb\""});
  EXPECT_TRUE(accepts(g, "abbcé\"z"));
  EXPECT_TRUE(accepts(g, "aaa中é\"\n"));
  EXPECT_FALSE(accepts(g, "acé\"z"));
  EXPECT_FALSE(accepts(g, "aaAé\"z"));
}

TEST(Ebnf, ErrorsNameLineAndColumn) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"foo ::= \"a\"", "no rule \"root\""},
      {"root ::= bar", "line 1, column 10: rule \"bar\" is not defined"},
      {"root ::= \"a", "a string without its end"},
      {"root ::= (\"a\"", "\")\" expected"},
      {"root ::= [a", "a class without"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule \"root\" is defined twice"},
      {"root ::= a\na ::= b \"x\"\nb ::= a | \"y\"", "left recursion"},
      {"root ::= root", "no text at all"},
      {"root ::= \"a\" root", "no text at all"},
      {"= x", "a rule (name ::= ...) expected"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_NE(compile_error(EbnfSpec{text}).find(message), std::string::npos) << text << ": " << compile_error(EbnfSpec{text});
  }
}

TEST(Ebnf, ChoiceIsLiteral) {
  const auto g = compile(grammar::ChoiceSpec{{"yes", "no", "yes, but [a-z]*"}});
  EXPECT_TRUE(accepts(g, "yes"));
  EXPECT_TRUE(accepts(g, "yes, but [a-z]*"));
  EXPECT_FALSE(accepts(g, "yes, but abc"));
  EXPECT_NE(compile_error(grammar::ChoiceSpec{}).find("no choices"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
