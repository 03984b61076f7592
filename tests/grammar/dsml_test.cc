#include <gtest/gtest.h>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using grammar::DsmlSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

/// "｜DSML｜" in the text stands for the added token.
std::string tokens(std::string text) {
  const std::string mark = "｜DSML｜";
  const std::string token = TokenVocabulary::marker(*small_vocabulary()->added_token(mark));
  for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += token.size()) text.replace(at, mark.size(), token);
  return text;
}

DsmlSpec weather() {
  DsmlSpec spec;
  spec.tools = {
      {"get_weather",
       R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":["integer","null"]},"unit":{"enum":["C","F",1]}},"required":["city"],"additionalProperties":false})",
       true},
      {"now", R"({"type":"object","properties":{}, "additionalProperties":false})", true}};
  return spec;
}

const char* kCall =
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Paris "
    "<3</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

TEST(Dsml, AutoModeIsTextThenPerhapsCalls) {
  const auto g = compile(weather());
  EXPECT_TRUE(accepts(g, ""));
  EXPECT_TRUE(accepts(g, "The weather < fine"));
  EXPECT_TRUE(accepts(g, tokens(kCall)));
  EXPECT_TRUE(accepts(g, tokens(std::string("Let me see.\n\n") + kCall)));
  EXPECT_FALSE(accepts_prefix(g, tokens(std::string(kCall) + "\n")));
  EXPECT_FALSE(accepts_prefix(g, kCall)) << "the spelled-out mark is not the token";
  EXPECT_FALSE(accepts_prefix(g, tokens("｜DSML｜")));
}

TEST(Dsml, RequiredAndInside) {
  DsmlSpec spec = weather();
  spec.mode = DsmlSpec::Mode::kRequired;
  EXPECT_TRUE(accepts(compile(spec), tokens(std::string("\n\n") + kCall)));
  EXPECT_FALSE(accepts_prefix(compile(spec), "a"));
  spec.mode = DsmlSpec::Mode::kInside;
  EXPECT_TRUE(accepts(compile(spec), tokens("<｜DSML｜ invoke name=\"now\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>")));
  const std::string two =
      "<｜DSML｜ invoke name=\"now\">\n\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"now\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ "
      "calls>";
  EXPECT_TRUE(accepts(compile(spec), tokens(two)));
  spec.parallel = false;
  EXPECT_FALSE(accepts(compile(spec), tokens(two)));
  spec.v4 = true;
  EXPECT_TRUE(accepts(compile(spec), tokens("<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>")));
}

TEST(Dsml, AnAnswerInItsFormOrCalls) {
  DsmlSpec spec = weather();
  spec.answer = grammar::JsonSchemaSpec{R"({"type":"array","items":{"type":"boolean"}})"};
  const auto g = compile(spec);
  EXPECT_TRUE(accepts(g, "[true]"));
  EXPECT_TRUE(accepts(g, tokens(std::string("\n\n") + kCall)));
  EXPECT_FALSE(accepts(g, ""));
  EXPECT_FALSE(accepts_prefix(g, "Let me see"));
  EXPECT_FALSE(accepts_prefix(g, tokens("[true]\n\n<｜DSML｜"))) << "not both";
  // What of either part is refused or left out is told.
  spec.answer = grammar::JsonSchemaSpec{R"({"type":"array","uniqueItems":true})"};
  EXPECT_NE(compile_error(spec).find("uniqueItems"), std::string::npos);
  spec.answer = grammar::JsonSchemaSpec{R"({"type":"array","uniqueItems":true})", false};
  ASSERT_EQ(compile(spec)->ignored().size(), 1u);
  spec.mode = DsmlSpec::Mode::kRequired;
  EXPECT_NE(compile_error(spec).find("free choice"), std::string::npos);
}

TEST(Dsml, ErrorsNameTheTool) {
  DsmlSpec spec = weather();
  spec.tools.push_back({"sort", R"({"type":"object","properties":{"list":{"type":"array","uniqueItems":true}}})", true});
  const std::string error = compile_error(spec);
  EXPECT_NE(error.find("tool sort"), std::string::npos) << error;
  EXPECT_NE(error.find("/properties/list/uniqueItems"), std::string::npos) << error;
}

TEST(Dsml, TheAttributeGoesWithTheType) {
  DsmlSpec spec = weather();
  spec.mode = DsmlSpec::Mode::kInside;
  const auto g = compile(spec);
  const auto with = [&](const std::string& parameters) {
    return accepts(g,
                   tokens("<｜DSML｜ invoke name=\"get_weather\">\n" + parameters + "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
  };
  const auto p = [](const std::string& name, bool string, const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + (string ? "true" : "false") + "\">" + value +
           "</｜DSML｜ parameter>";
  };
  EXPECT_TRUE(with(p("city", true, "x")));
  EXPECT_TRUE(with(p("city", true, "")));
  EXPECT_FALSE(with(p("city", false, "\"x\"")));
  EXPECT_FALSE(with(p("days", false, "3")));
  EXPECT_TRUE(with(p("city", true, "x") + "\n" + p("days", false, "null")));
  EXPECT_FALSE(with(p("city", true, "x") + "\n" + p("days", true, "3")));
  EXPECT_TRUE(with(p("city", true, "x") + "\n" + p("unit", true, "C")));
  EXPECT_TRUE(with(p("city", true, "x") + "\n" + p("unit", false, "1")));
  EXPECT_FALSE(with(p("city", true, "x") + "\n" + p("unit", false, "\"C\"")));
  EXPECT_FALSE(with(p("city", true, "x") + "\n" + p("other", true, "C")));
}

TEST(Dsml, FreeToolsTakeAnyArguments) {
  DsmlSpec spec;
  spec.mode = DsmlSpec::Mode::kInside;
  spec.tools = {{"f", "", false}};
  const auto g = compile(spec);
  EXPECT_TRUE(accepts(g, tokens("<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a b\" "
                                "string=\"false\">{\"x\":1}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>")));
  EXPECT_NE(compile_error(DsmlSpec{}).find("tools"), std::string::npos);
  spec.tools[0].name = "a\"b";
  EXPECT_NE(compile_error(spec).find("tools[0].name"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
