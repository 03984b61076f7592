#include <gtest/gtest.h>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using namespace grammar;  // NOLINT(google-build-using-namespace)
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::string nested_counts(int depth) {
  std::string out = "a";
  for (int i = 0; i < depth; ++i) out = "(" + out + "){1000}";
  return out;
}

/// Doubles the number of alternatives with each level.
std::string multiplying_schema(int levels) {
  std::string out = R"({"type":"object","allOf":[)";
  for (int i = 0; i < levels; ++i) {
    const std::string a = "a" + std::to_string(i);
    out += std::string(i > 0 ? "," : "") + R"({"anyOf":[{"required":[")" + a + R"("]},{"properties":{")" + a +
           R"(":{"type":"string"}}}]})";
  }
  return out + "]}";
}

std::string wide_schema(int properties) {
  std::string out = R"({"type":"object","properties":{)";
  for (int i = 0; i < properties; ++i)
    out += std::string(i > 0 ? "," : "") + "\"property_" + std::to_string(i) + R"(":{"type":"string","description":"some text"})";
  return out + "}}";
}

struct BadInput {
  const char* name;
  GrammarSpec spec;
  const char* message;  ///< "": compiles
};

TEST(BadInput, EndsSoonAndSaysWhy) {
  const std::vector<BadInput> cases = {
      {"counts of counts", RegexSpec{nested_counts(5)}, ""},
      {"exponential in a DFA",
       JsonSchemaSpec{R"({"type":"string","allOf":[{"pattern":"(a|b)*a(a|b){20}"},{"pattern":"b(a|b){19}$"}]})"},
       "states of a character automaton"},
      {"huge pattern", RegexSpec{repeated("(abc|[a-z]+)?", 50000)}, ""},
      {"pattern above the limit", RegexSpec{std::string(5 << 20, 'a')}, "bytes, the limit is"},
      {"catastrophic for backtracking", RegexSpec{"(a+)+(a*)*(a|aa)+b"}, ""},
      {"deep groups", RegexSpec{std::string(100000, '(') + std::string(100000, ')')}, "nested too deep"},
      {"deep JSON", JsonSchemaSpec{repeated("{\"items\":", 100000) + "{}" + std::string(100000, '}')}, "nested deeper than"},
      {"deep parentheses", EbnfSpec{"root ::= " + std::string(100000, '(') + "\"a\"" + std::string(100000, ')')},
       "nested too deep"},
      {"empty enum", JsonSchemaSpec{R"({"enum":[]})"}, "no text at all"},
      {"self reference", JsonSchemaSpec{R"({"$ref":"#"})"}, ""},
      {"mutual reference without an end",
       JsonSchemaSpec{
           R"({"$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/b"},"minItems":1},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})"},
       "no text at all"},
      {"anyOf with itself", JsonSchemaSpec{R"({"anyOf":[{"$ref":"#"},{"type":"string"}]})"}, "left recursion"},
      {"two to the power of 30", JsonSchemaSpec{multiplying_schema(30)}, "more than"},
      {"1 MB of properties", JsonSchemaSpec{wide_schema(17000)}, ""},
      {"1 MB enum", JsonSchemaSpec{"{\"enum\":[" + repeated("\"0123456789abcdefghijklmnopqrstuvwxyz\",", 27000) + "1]}"}, ""},
      {"endless count", JsonSchemaSpec{R"({"type":"array","minItems":1e30})"}, "minItems"},
      {"large count", JsonSchemaSpec{R"({"type":"array","minItems":100000000})"}, ""},
      {"many counted members", JsonSchemaSpec{R"({"type":"object","minProperties":900000000})"}, "nodes"},
      {"large divisor", JsonSchemaSpec{R"({"type":"integer","multipleOf":123456789})"}, "multipleOf"},
      {"left recursion over rules", EbnfSpec{"root ::= a \"x\" | \"y\"\na ::= root \"z\""}, "left recursion"},
      {"rules without an end", EbnfSpec{"root ::= \"a\" b\nb ::= \"c\" root"}, "no text at all"},
      {"invalid UTF-8", EbnfSpec{"root ::= \"\xC3\x28\""}, "invalid UTF-8"},
      {"not a schema", JsonSchemaSpec{"{\"properties\":[1,2]}"}, "#/properties"},
      {"wrong kinds everywhere", JsonSchemaSpec{R"({"type":5})"}, "#/type"},
      {"twenty patterns", JsonSchemaSpec{[] {
         std::string out = R"({"type":"object","patternProperties":{)";
         for (int i = 0; i < 20; ++i) out += std::string(i > 0 ? "," : "") + "\"^" + std::to_string(i) + "\":{}";
         return out + "}}";
       }()},
       "patternProperties"},
  };
  for (const BadInput& c : cases) {
    const auto made = compile_grammar(c.spec, small_vocabulary());
    // The work is bounded by counters: what were not would run into the runner's limit.
    const std::string message = made ? "" : made.error().message();
    if (*c.message == 0) {
      EXPECT_TRUE(made.has_value()) << c.name << ": " << message;
    } else {
      EXPECT_NE(message.find(c.message), std::string::npos) << c.name << ": " << message;
    }
    if (!made) continue;
    GrammarMatcher matcher(*made);
    std::vector<uint32_t> mask((*made)->vocabulary().mask_words());
    matcher.fill_mask(mask);
    EXPECT_NE(mask, std::vector<uint32_t>(mask.size(), 0)) << c.name;
  }
}

TEST(BadInput, DeepOutputNeedsNoDeepStack) {
  const auto g = compile(JsonObjectSpec{});
  GrammarMatcher matcher(g);
  ASSERT_TRUE(matcher.accept_bytes("{\"a\":"));
  for (int i = 0; i < 100000; ++i) ASSERT_TRUE(matcher.accept('['));
  for (int i = 0; i < 100000; ++i) ASSERT_TRUE(matcher.accept(']'));
  ASSERT_TRUE(matcher.accept('}'));
  EXPECT_TRUE(matcher.can_stop());
}

}  // namespace
}  // namespace deepinfer
