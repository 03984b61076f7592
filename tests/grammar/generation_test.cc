#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "grammar/random_schema.h"
#include "grammar/support.h"
#include "grammar/validator.h"

namespace deepinfer {
namespace {

using grammar::JsonSchemaSpec;
using grammar::RegexSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

TEST(Generation, RandomSchemasGiveValidJson) {
  Random random(11);
  int samples = 0;
  int endless = 0;
  for (int n = 0; n < 150; ++n) {
    const Json schema = random_schema(random, 3);
    const auto made = compile_grammar(JsonSchemaSpec{schema.dump()}, small_vocabulary());
    if (!made) {
      EXPECT_NE(made.error().message().find("no text at all"), std::string::npos)
          << schema.dump() << ": " << made.error().message();
      continue;
    }
    for (int i = 0; i < 40; ++i) {
      const auto text = generate(*made, random, 60);
      ASSERT_TRUE(text.has_value()) << "stuck: " << schema.dump();
      if (*text == "(endless)") {
        ++endless;
        continue;
      }
      ++samples;
      const Json value = Json::parse(*text, nullptr, false);
      // Numbers beyond a double are JSON, but this parser has no value for them.
      if (value.is_discarded() && std::regex_search(*text, std::regex("[eE][+]?[0-9]{3}"))) continue;
      ASSERT_FALSE(value.is_discarded()) << *text << " of " << schema.dump();
      // Doubled members collapse in a parsed value, and may then be too few: not what is looked at here.
      if (schema.dump().find("minProperties") != std::string::npos) continue;
      ASSERT_TRUE(valid_json(schema, value, schema)) << *text << " of " << schema.dump();
    }
  }
  std::printf("generation: %d samples, %d endless\n", samples, endless);
  EXPECT_GT(samples, 4000);
  // Drawn bytes are poor at ending some patterns; it shows that an end is reached, not how soon.
  EXPECT_LE(endless, samples / 5);
}

TEST(Generation, RegexesGiveMatches) {
  Random random(12);
  int samples = 0;
  for (const char* pattern :
       {"[a-z]+@[a-z]+\\.(com|org)", "(\\d{1,3}\\.){3}\\d{1,3}", "(a|b)*abb", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "\\w+( \\w+){0,5}", "((a{2,3}|b+)c?){1,4}", "[^x]{1,10}x", "(0|[1-9]\\d*)(\\.\\d+)?", "-?\\d+(,\\d{3})*",
        "(the|name|abc){2,}", "a?b?c?d?e?", "\\$\\{\\w+\\}"}) {
    const auto g = compile(RegexSpec{pattern});
    for (int i = 0; i < 200; ++i) {
      const auto text = generate(g, random, 40);
      ASSERT_TRUE(text.has_value()) << pattern;
      if (*text == "(endless)") continue;
      ++samples;
      // std::regex works on bytes: patterns above that take any character are kept to lengths that it can't tell.
      if (std::string(pattern).find("[^") != std::string::npos) continue;
      ASSERT_TRUE(std::regex_match(*text, std::regex(pattern))) << pattern << ": " << *text;
    }
  }
  EXPECT_GT(samples, 2000);
}

TEST(Generation, EbnfNeverGetsStuck) {
  Random random(13);
  for (const char* text : {"root ::= \"(\" root \")\" | [a-c]+", "root ::= s\ns ::= s s | \"a\" | \"(\" s \")\"",
                           "root ::= (\"name\" \": \" [0-9]{1,3} \"\\n\"){1,3}"}) {
    const auto g = compile(grammar::EbnfSpec{text});
    for (int i = 0; i < 100; ++i) {
      const auto out = generate(g, random, 50);
      ASSERT_TRUE(out.has_value()) << text;
      EXPECT_TRUE(*out == "(endless)" || accepts(g, *out)) << *out;
    }
  }
}

}  // namespace
}  // namespace deepinfer
