#include "protocol/output_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "protocol/dsml.h"
#include "protocol/vector_checks.h"

namespace deepinfer {
namespace {

using testing::read_output;

std::vector<std::string> pieces_of(const std::string& text, const std::vector<size_t>& cuts) {
  std::vector<std::string> out;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) out.push_back(text.substr(cuts[i], cuts[i + 1] - cuts[i]));
  return out;
}

/// Whole, every cut in two, one character at a time, and random cuts.
void expect_any_split(const ParsingOptions& options, const std::string& text, const Json& finish, const Json& expected) {
  const std::vector<size_t> borders = testing::character_borders(text);
  EXPECT_EQ(read_output(options, {text}, finish).items, expected);
  EXPECT_EQ(read_output(options, pieces_of(text, borders), finish).items, expected) << "one character at a time";
  for (const size_t cut : borders) {
    EXPECT_EQ(read_output(options, {text.substr(0, cut), text.substr(cut)}, finish).items, expected) << "cut at byte " << cut;
  }
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    std::vector<size_t> cuts{0};
    for (const size_t b : borders) {
      if (b > 0 && b < text.size() && random() % 4 == 0) cuts.push_back(b);
    }
    cuts.push_back(text.size());
    EXPECT_EQ(read_output(options, pieces_of(text, cuts), finish).items, expected) << "random cuts";
  }
}

Json without_counts(Json items) {
  for (Json& item : items) item.erase("completion_tokens");
  return items;
}

}  // namespace

namespace testing {

void check_parse(const Json& test) {
  const ParsingOptions options = parsing_options(test.at("options"));
  const auto chunks = test.at("chunks").get<std::vector<std::string>>();
  const Json expected = without_counts(test.at("expect"));
  const ReadOutput got = read_output(options, chunks, test.at("finish"));
  EXPECT_EQ(got.items, expected);
  EXPECT_EQ(got.completion_tokens, test.at("expect").back().at("completion_tokens"));
  if (!test.at("any_chunking").get<bool>()) return;
  std::string whole;
  for (const std::string& chunk : chunks) whole += chunk;
  expect_any_split(options, whole, test.at("finish"), expected);
}

void check_parse_hardening(const Json& test) {
  ParsingOptions options = parsing_options(test.at("options"));
  std::string whole;
  for (const Json& chunk : test.at("chunks")) whole += chunk.get<std::string>();
  expect_any_split(options, whole, test.at("finish"), test.at("expect_reference"));
  options.hardened = true;
  expect_any_split(options, whole, test.at("finish"), test.at("expect_hardened"));
}

}  // namespace testing

namespace {

TEST(OutputParser, Vectors) { testing::for_each_case("parse", 74, testing::check_parse); }

TEST(OutputParser, HardeningVectors) { testing::for_each_case("parse_hardening", 4, testing::check_parse_hardening); }

// CASES 3, 5: whatever is in the arguments comes back as a JSON object that equals them.
TEST(OutputParser, ReadsBackWhatIsRendered) {
  const std::vector<std::string> strings = {"",   "a",     "123",      "true",  " ",         "\n",        "a\nb\n", "\"",
                                            "\\", "a\\\"", "</param>", "<",     "</",        "<｜",       "｜",     "é🦀",
                                            "\t", "2>&1",  "<b>",      "</｜D", "<｜DSML｜", "string=\"", "\x01",   "</think>"};
  std::mt19937 random(11);
  for (const ModelVersion version : {ModelVersion::kV4, ModelVersion::kV4_1}) {
    for (int round = 0; round < 300; ++round) {
      std::vector<ToolCall> calls;
      std::string arguments_text;
      Json expected = Json::array({Json{{"type", "text"}, {"text", "ok"}}});
      const int n = 1 + static_cast<int>(random() % 3);
      for (int c = 0; c < n; ++c) {
        Json arguments = Json::object();
        for (int p = static_cast<int>(random() % 4); p > 0; --p) {
          const std::string key = fmt::format("k{}", random() % 100);
          std::string text;
          for (int k = static_cast<int>(random() % 4); k > 0; --k) text += strings[random() % strings.size()];
          switch (random() % 5) {
            case 0:
              arguments[key] = static_cast<int>(random() % 1000) - 500;
              break;
            case 1:
              arguments[key] = Json{{"n", text}, {"l", Json::array({1, nullptr, 2.5})}};
              break;
            case 2:
              arguments[key] = random() % 2 == 0;
              break;
            default:
              arguments[key] = text;
          }
          // No escape exists for the closer inside a value (§7.2), nor for a value in JSON that contains it.
          if (arguments[key].dump().find("</｜DSML｜") != std::string::npos) arguments.erase(key);
        }
        const std::string name = "tool_" + std::to_string(c);
        calls.push_back({"id", name, arguments.dump()});
        expected.push_back(Json{{"type", "tool_call"}, {"name", name}});
        expected.push_back(Json{{"type", "tool_arguments"}, {"text", prompt_json(arguments)}});
      }
      expected.push_back(Json{{"type", "finish"}, {"reason", "tool_calls"}, {"stop_sequence", nullptr}});
      SegmentBuilder builder;
      builder.text("ok");
      append_tool_calls(calls, version, builder);
      const std::string text = prompt_text(builder.take().segments);
      SCOPED_TRACE(text);
      for (const bool hardened : {false, true}) {
        ParsingOptions options{.parse_tool_calls = true};
        options.hardened = hardened;
        EXPECT_EQ(read_output(options, {text}, "stop").items, expected);
        EXPECT_EQ(read_output(options, pieces_of(text, testing::character_borders(text)), "stop").items, expected);
      }
    }
  }
}

// What is in a form is the answer as it is: a number or a string as well as an object, whatever a string spells.
TEST(OutputParser, AnswersInAForm) {
  for (const bool tools : {false, true}) {
    for (const ReasoningStage stage : {ReasoningStage::kNone, ReasoningStage::kStart}) {
      for (const std::string answer :
           {"30", "\"yes\"", "  true", "null", "{\"a\": \"</think>\"}", "</think>", "```json\n1\n```"}) {
        ParsingOptions options{.parse_tool_calls = tools, .enforced_form = true};
        options.reasoning_initial_stage = stage;
        Json expected = Json::array();
        const bool thinks = stage == ReasoningStage::kStart;
        if (thinks) expected.push_back(Json{{"type", "reasoning"}, {"text", "hm"}});
        expected.push_back(Json{{"type", "text"}, {"text", answer}});
        expected.push_back(Json{{"type", "finish"}, {"reason", "stop"}, {"stop_sequence", nullptr}});
        SCOPED_TRACE(answer);
        expect_any_split(options, (thinks ? "hm</think>" : "") + answer, "stop", expected);
      }
    }
  }
}

// Nothing is lost where nothing is a marker, and every cut of arbitrary text reads the same.
TEST(OutputParser, RandomText) {
  const std::vector<std::string> parts = {"<｜DSML｜",
                                          "</｜DSML｜",
                                          " calls>",
                                          "tool_calls>",
                                          " invoke name=\"",
                                          " parameter name=\"",
                                          "\"",
                                          " string=\"true\">",
                                          " string=\"false\">",
                                          ">",
                                          "\n",
                                          "</think>",
                                          "<think>",
                                          "<",
                                          "｜",
                                          "text",
                                          "END",
                                          "{",
                                          "```json\n",
                                          "\n```",
                                          "é",
                                          "🦀",
                                          "invoke name=\"f\">"};
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    std::string text;
    for (int k = static_cast<int>(random() % 30); k > 0; --k) text += parts[random() % parts.size()];
    ParsingOptions options{.parse_tool_calls = random() % 2 == 0};
    options.tool_call_initial_stage = options.parse_tool_calls && random() % 4 == 0;
    options.reasoning_initial_stage = static_cast<ReasoningStage>(random() % 4);
    options.hardened = random() % 2 == 0;
    if (random() % 2 == 0) options.stop_sequences = {"END", "<｜D", "x\n"};
    SCOPED_TRACE(text);
    const Json whole = read_output(options, {text}, "stop").items;
    expect_any_split(options, text, "stop", whole);
  }
  ParsingOptions plain;
  plain.reasoning_initial_stage = ReasoningStage::kContent;
  std::string text;
  for (int k = 0; k < 300; ++k) {
    const std::string& part = parts[random() % parts.size()];
    if (part != "</think>") text += part;
  }
  EXPECT_EQ(read_output(plain, {text}, "stop").items[0]["text"], text);
}

TEST(OutputParser, SourcePositionsCoverTheText) {
  ParsingOptions options{.parse_tool_calls = true, .reasoning_initial_stage = ReasoningStage::kStart};
  OutputParser parser(options);
  const std::string text =
      "\nwhy</think>\n\nsay\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
      "string=\"true\">v</｜DSML｜ "
      "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  std::vector<ParsedPiece> pieces;
  parser.push(text, pieces);
  parser.finish(pieces);
  int64_t at = 0;
  for (const ParsedPiece& piece : pieces) {
    EXPECT_GE(piece.begin, at);
    EXPECT_LE(piece.begin, piece.end);
    at = piece.end;
    if (piece.kind == ParsedPiece::Kind::kText || piece.kind == ParsedPiece::Kind::kReasoning) {
      EXPECT_EQ(text.substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin)), piece.text);
    }
  }
  EXPECT_LE(at, static_cast<int64_t>(text.size()));
  EXPECT_EQ(parser.reasoning_end(), 12);
  EXPECT_EQ(parser.tool_calls(), 1);
}

// CASES 4: doubled bars are no spelling of the format. They stay text, and are counted.
TEST(OutputParser, DoubledBarsAreCounted) {
  OutputParser parser(ParsingOptions{.parse_tool_calls = true});
  std::vector<ParsedPiece> pieces;
  for (const char* part : {"a<｜", "｜DSML｜｜ calls>", "<｜｜DSML｜｜ invoke name=\"f\">"}) parser.push(part, pieces);
  parser.finish(pieces);
  EXPECT_EQ(parser.foreign_markers(), 2);
  EXPECT_EQ(parser.tool_calls(), 0);
}

}  // namespace
}  // namespace deepinfer
