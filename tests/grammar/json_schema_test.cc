#include <gtest/gtest.h>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using grammar::JsonSchemaSpec;
using grammar::JsonSpace;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

struct SchemaCase {
  const char* schema;
  std::vector<const char*> yes;
  std::vector<const char*> no;
};

TEST(JsonSchema, TextsOfSchemas) {
  const std::vector<SchemaCase> cases = {
      {"true", {"1", "[]", "{\"a\":[null]}", "\"x\""}, {"", "{", "tru"}},
      {R"({"type":"string"})", {R"("")", R"("a\n\u00e9\ud83d\ude00é")"}, {R"("\ud83d")", "\"\n\"", R"("a)", R"("\x")"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", R"("é中\n")"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"^a+$"})", {R"("aa")"}, {R"("")", R"("ab")"}},
      {R"({"type":"string","pattern":"b","maxLength":3})", {R"("b")", R"("abc")"}, {R"("aaab")", R"("aaa")"}},
      {R"({"type":"integer"})", {"0", "-5", "123"}, {"01", "1.5", "-0", "1e5"}},
      {R"({"type":"integer","minimum":-5,"maximum":120})", {"-5", "0", "99", "120"}, {"-6", "121", "1000", "00"}},
      {R"({"type":"integer","exclusiveMinimum":9,"multipleOf":7})", {"14", "21", "700"}, {"7", "15"}},
      {R"({"type":"integer","minimum":18446744073709551615})",
       {"18446744073709551615", "100000000000000000000"},
       {"18446744073709551614", "1"}},
      {R"({"type":"number","minimum":-1.5,"exclusiveMaximum":2.25})",
       {"-1.5", "-1.49", "2.24999", "0", "2", "-0.3", "2.2"},
       {"-1.51", "2.25", "2.3", "3", "-2"}},
      {R"({"type":"number","multipleOf":0.01})", {"1.25", "3", "0.10"}, {"1.255"}},
      {R"({"type":"number"})", {"1.5e-10", "-0.5"}, {"1.", ".5", "+1"}},
      {R"({"enum":["a",1,null,{"b":[true]}]})",
       {R"("a")", "1", "null", R"({"b":[true]})", R"({"b": [ true]})"},
       {"2", R"({"b":[false]})"}},
      {R"({"const":"a\"b"})", {R"("a\"b")"}, {R"("ab")"}},
      {R"({"type":["string","null"]})", {"null", R"("x")"}, {"1"}},
      {R"({"type":"string","nullable":true})", {"null", R"("x")"}, {"1"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1,2,3]", "[1, 2]", "[\n  1\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
       {"[]", "[1]", R"([1,"a"])"},
       {R"(["a"])", R"([1,"a",2])"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"null"},"minItems":2})",
       {"[1,null]", "[1,null,null]"},
       {"[1]", "[]", "[null,null]"}},
      {R"({"type":"array","items":{"type":"integer"},"contains":{"const":7}})", {"[7]", "[1,7,2]"}, {"[]", "[1]"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"],"additionalProperties":false})",
       {R"({"b":"x"})", R"({"a":1,"b":"x"})", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}"},
       {"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x","c":1})", R"({"b":"x",})"}},
      {R"({"properties":{"a":{"type":"integer"}}})",
       {"{}", R"({"a":1})", R"({"a":1,"b":"x"})", R"({"aa":"x"})", "5"},
       {R"({"a":"x"})", R"({"b":1,"a":"x"})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
       {R"({"a":1})", R"({"a":1,"b":2})"},
       {"{}", R"({"a":"x"})", R"({"a":1,"b":2,"c":3})"}},
      {R"({"type":"object","patternProperties":{"^n":{"type":"integer"},"s$":{"type":"string"}},"additionalProperties":false})",
       {"{}", R"({"n":1})", R"({"xs":"y"})"},
       {R"({"n":"1"})", R"({"ns":1})", R"({"b":1})"}},
      {R"({"type":"object","propertyNames":{"maxLength":2}})", {R"({"ab":1})"}, {R"({"abc":1})"}},
      {R"({"type":"object","required":["x"]})", {R"({"x":1})", R"({"x":1,"y":2})"}, {"{}", R"({"y":2})"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"5", R"("a")"}, {R"("ab")", "null"}},
      {R"({"oneOf":[{"type":"integer","multipleOf":3},{"type":"integer","minimum":10}]})", {}, {}},
      {R"({"oneOf":[{"type":"object","properties":{"t":{"const":"a"}},"required":["t"]},{"type":"object","properties":{"t":{"const":"b"},"v":{"type":"integer"}},"required":["t","v"]}]})",
       {R"({"t":"a"})", R"({"t":"b","v":1})"},
       {R"({"t":"b"})", R"({"t":"c"})"}},
      {R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"})",
       {R"({"a":1})", R"({"b":1})"},
       {"{}", R"({"a":1,"b":1})"}},
      {R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":5}}}],"type":"object"})",
       {R"({"a":5})"},
       {R"({"a":4})", "{}"}},
      {R"({"type":"string","not":{"enum":["x","yy"]}})", {R"("y")", R"("yyy")"}, {R"("x")", R"("yy")"}},
      {R"({"type":"object","if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["a"]},"else":{"required":["b"]}})",
       {R"({"k":1,"a":0})", R"({"b":0})"},
       {R"({"k":1,"b":0})", R"({"a":0})"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"n":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","n"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
       {R"({"v":1,"n":null})", R"({"v":1,"n":{"v":2,"n":{"v":3,"n":null}}})"},
       {R"({"v":1,"n":{"v":2}})", R"({"v":1})"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2000-02-29")"},
       {R"("2023-02-29")", R"("2023-13-01")", R"("1900-02-29")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("fe80::1:2")", R"("::ffff:1.2.3.4")"},
       {R"("1:2")", R"("1::2::3")", R"("1:2:3:4:5:6:7:8:9")"}},
      {R"({"type":"string","format":"email"})", {R"("a.b@c.de")"}, {R"("a")", R"("@c")"}},
      {R"({"type":"object","dependentRequired":{"a":["b"]}})", {"{}", R"({"a":1,"b":2})", R"({"b":2})"}, {R"({"a":1})"}},
      {R"({"type":"object","properties":{"a":false}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
  };
  for (const SchemaCase& c : cases) {
    auto made = compile_grammar(JsonSchemaSpec{c.schema}, small_vocabulary());
    if (!made) {
      EXPECT_TRUE(c.yes.empty()) << c.schema << ": " << made.error().message();
      continue;
    }
    for (const char* text : c.yes) EXPECT_TRUE(accepts(*made, text)) << c.schema << " " << text;
    for (const char* text : c.no) EXPECT_FALSE(accepts(*made, text)) << c.schema << " " << text;
  }
}

TEST(JsonSchema, WhiteSpaceIsBounded) {
  const char* schema =
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}},"required":["a"],"additionalProperties":false})";
  const auto flexible = compile(JsonSchemaSpec{schema});
  EXPECT_TRUE(accepts(flexible, "{\n  \"a\": [\n    1,\n    2\n  ]\n}"));
  EXPECT_FALSE(accepts_prefix(flexible, "{  "));
  EXPECT_FALSE(accepts_prefix(flexible, "{\n\n"));
  EXPECT_FALSE(accepts_prefix(flexible, " {"));
  EXPECT_FALSE(accepts_prefix(flexible, "{\"a\":[1]} "));
  const auto compact = compile(JsonSchemaSpec{schema, true, JsonSpace::kCompact});
  EXPECT_TRUE(accepts(compact, R"({"a":[1,2]})"));
  EXPECT_FALSE(accepts_prefix(compact, R"({"a": )"));
  const auto spaced = compile(JsonSchemaSpec{schema, true, JsonSpace::kSpaced});
  EXPECT_TRUE(accepts(spaced, R"({"a": [1, 2]})"));
  EXPECT_FALSE(accepts_prefix(spaced, R"({"a":[)"));
  EXPECT_TRUE(accepts(compile(grammar::JsonObjectSpec{}), R"({"a": {"b": [1, "x"]}})"));
  EXPECT_FALSE(accepts_prefix(compile(grammar::JsonObjectSpec{}), "["));
}

TEST(JsonSchema, WhatIsNotEnforcedIsNamed) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"properties":{"a":{"type":"array","uniqueItems":true}}})", "#/properties/a/uniqueItems"},
      {R"({"type":"string","pattern":"(a)\\1"})", "#/pattern"},
      {R"({"properties":{"x":{"$dynamicRef":"#a"}}})", "#/properties/x/$dynamicRef"},
      {R"({"type":"string","format":"uri-template"})", "#/format"},
  };
  for (const auto& [schema, path] : cases) {
    EXPECT_NE(compile_error(JsonSchemaSpec{schema}).find(path), std::string::npos) << compile_error(JsonSchemaSpec{schema});
    const auto relaxed = compile(JsonSchemaSpec{schema, false});
    ASSERT_EQ(relaxed->ignored().size(), 1u) << schema;
    EXPECT_NE(relaxed->ignored()[0].find(path), std::string::npos) << relaxed->ignored()[0];
  }
  const std::vector<std::pair<const char*, const char*>> broken = {
      {R"({"type":"strin"})", "#/type"},
      {R"({"$ref":"#/nope"})", "points to nothing"},
      {R"({"minLength":-1})", "#/minLength"},
      {R"({"anyOf":[]})", "#/anyOf"},
      {R"({"required":[1]})", "#/required"},
      {R"([1])", "neither an object"},
      {R"({"type":"string"} x)", "not valid JSON"},
      {R"({"multipleOf":0})", "above zero"},
  };
  for (const auto& [schema, message] : broken) {
    EXPECT_NE(compile_error(JsonSchemaSpec{schema}).find(message), std::string::npos)
        << schema << ": " << compile_error(JsonSchemaSpec{schema});
  }
}

TEST(JsonSchema, ContradictionsAreRefused) {
  for (const char* schema :
       {"false", R"({"enum":[]})", R"({"allOf":[{"type":"string"},{"type":"integer"}]})",
        R"({"type":"integer","minimum":5,"maximum":4})", R"({"type":"string","minLength":3,"maxLength":2})",
        R"({"type":"object","required":["a"],"properties":{"a":false}})", R"({"type":"array","minItems":2,"maxItems":1})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"type":"integer","multipleOf":7,"minimum":1,"maximum":6})",
        R"({"type":"object","minProperties":2,"properties":{"a":{}},"additionalProperties":false})"}) {
    EXPECT_NE(compile_error(JsonSchemaSpec{schema}).find("no text at all"), std::string::npos)
        << schema << ": " << compile_error(JsonSchemaSpec{schema});
  }
}

}  // namespace
}  // namespace deepinfer
