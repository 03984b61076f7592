#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "grammar/support.h"
#include "grammar/validator.h"

namespace deepinfer {
namespace {

using grammar::JsonSchemaSpec;
using grammar::RegexSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

/// A random schema of the kind people write.
Json random_schema(Random& random, int depth) {
  const auto pick = [&](std::initializer_list<const char*> list) {
    return std::string(*(list.begin() + random.below(static_cast<int64_t>(list.size()))));
  };
  switch (random.below(depth > 0 ? 12 : 7)) {
    case 0: {
      Json s{{"type", "string"}};
      if (random.below(2) == 0) s["minLength"] = random.below(3);
      if (random.below(2) == 0) s["maxLength"] = 3 + random.below(30);
      return s;
    }
    case 1:
      return {{"type", "string"}, {"pattern", pick({"^[a-z]+$", "ab", "^(\\d{2}-)*x$", "^[^@]+@[^@]+$", "^a.*b$", "(^x)|(y$)"})}};
    case 2: {
      Json s{{"type", "integer"}};
      if (random.below(2) == 0) s["minimum"] = random.between(-1000, 100);
      if (random.below(2) == 0) s["maximum"] = random.between(101, 100000);
      if (random.below(3) == 0) s["multipleOf"] = random.between(1, 9);
      return s;
    }
    case 3: {
      Json s{{"type", "number"}};
      if (random.below(2) == 0) s["minimum"] = static_cast<double>(random.between(-1000, 100)) / 8;
      if (random.below(2) == 0) s["exclusiveMaximum"] = static_cast<double>(random.between(101, 10000)) / 4;
      return s;
    }
    case 4:
      return {{"enum", {"a", "abc", 12, nullptr, true, {{"k", {1, "x"}}}}}};
    case 5:
      return {{"type", {"boolean", "null"}}};
    case 6:
      return {{"type", "string"}, {"not", {{"enum", {"a", "b", "the"}}}}};
    case 7: {
      Json s{{"type", "array"}, {"items", random_schema(random, depth - 1)}};
      if (random.below(2) == 0) s["minItems"] = random.below(3);
      if (random.below(2) == 0) s["maxItems"] = random.between(3, 6);
      if (random.below(4) == 0) s["prefixItems"] = {random_schema(random, depth - 1), random_schema(random, 0)};
      return s;
    }
    case 8:
      return {{"anyOf", {random_schema(random, depth - 1), random_schema(random, depth - 1)}}};
    default: {
      Json s{{"type", "object"}, {"properties", Json::object()}};
      std::vector<std::string> required;
      for (const char* name : {"name", "the", "id", "a\"b", "é", "value"}) {
        if (random.below(2) == 0) continue;
        s["properties"][name] = random_schema(random, depth - 1);
        if (random.below(2) == 0) required.emplace_back(name);
      }
      s["required"] = required;
      if (random.below(3) == 0) s["additionalProperties"] = random.below(2) == 0 ? Json(false) : random_schema(random, depth - 1);
      if (random.below(5) == 0) s["patternProperties"] = {{"^x", random_schema(random, 0)}};
      if (random.below(5) == 0) s["minProperties"] = 2;
      if (random.below(5) == 0) s["maxProperties"] = std::max<int64_t>(3, static_cast<int64_t>(required.size()));
      return s;
    }
  }
}

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
