// What broke for others (shared/CASES.md 1-9, 30, 33, 34; spec/protocol §17), as far as the conformance vectors do not show it.

#include <gtest/gtest.h>

#include "protocol/vectors.h"

namespace deepinfer {
namespace {

constexpr const char* kCall =
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" string=\"true\">a < b 2>&1</｜DSML｜ "
    "parameter>\n</｜DSML｜ "
    "invoke>\n</｜DSML｜ calls>";

/// Everything of one kind that has been streamed after each byte of the text.
std::vector<std::string> streamed(const ParsingOptions& options, const std::string& text, ParsedPiece::Kind kind) {
  OutputParser parser(options);
  std::vector<std::string> out;
  std::string so_far;
  for (const char c : text) {
    std::vector<ParsedPiece> pieces;
    parser.push(std::string_view(&c, 1), pieces);
    for (const ParsedPiece& piece : pieces) {
      if (piece.kind == kind) so_far += piece.text;
    }
    out.push_back(so_far);
  }
  return out;
}

// CASES 1: no byte of a marker is ever streamed as content, whatever follows.
TEST(PublishedMistakes, OpenersAreNeverStreamed) {
  const ParsingOptions tools{.parse_tool_calls = true};
  for (const std::string& content : streamed(tools, std::string("Checking.\n\n") + kCall, ParsedPiece::Kind::kText)) {
    EXPECT_TRUE(std::string("Checking.").starts_with(content)) << content;
  }
}

// CASES 2: the block ends a reasoning that was not closed, and neither side gets the other's bytes.
TEST(PublishedMistakes, BlockInsideReasoning) {
  ParsingOptions options{.parse_tool_calls = true, .reasoning_initial_stage = ReasoningStage::kStart};
  const std::string text = std::string("why\n\n") + kCall;
  EXPECT_EQ(streamed(options, text, ParsedPiece::Kind::kReasoning).back(), "why");
  EXPECT_EQ(streamed(options, text, ParsedPiece::Kind::kText).back(), "");
  EXPECT_EQ(streamed(options, text, ParsedPiece::Kind::kToolArguments).back(), R"({"x": "a < b 2>&1"})");
  // Streamed arguments only grow.
  std::string before;
  for (const std::string& now : streamed(options, text, ParsedPiece::Kind::kToolArguments)) {
    EXPECT_TRUE(std::string_view(R"({"x": "a < b 2>&1"})").starts_with(now));
    EXPECT_TRUE(now.starts_with(before));
    before = now;
  }
}

// §17.3: what the parser made of an answer goes back into the prompt as the same markup, never as content.
TEST(PublishedMistakes, HistoryGoesBackAsMarkup) {
  Conversation c;
  c.messages = {Message::User("q"), Message::Assistant("ok")};
  c.messages[1].tool_calls = {{"1", "f", R"({"x": "a < b 2>&1"})"}};
  Message result{.role = Message::Role::kTool};
  result.content = "r";
  result.tool_call_id = "1";
  c.messages.push_back(result);
  const std::string prompt = prompt_text(render_prompt(c, ModelVersion::kV4_1).segments);
  EXPECT_NE(prompt.find(std::string("ok\n\n") + kCall), std::string::npos) << prompt;
}

// CASES 8: from the value in the request to the text of the prompt; everything else is a 400.
TEST(PublishedMistakes, EffortTable) {
  struct Row {
    const char* value;  ///< JSON
    int number;         ///< of V4.1; 0: thinking is off
    const char* v4;     ///< how V4's text begins
  };
  constexpr Row kRows[] = {{"\"none\"", 0, ""},
                           {"\"minimal\"", 50, ""},
                           {"\"low\"", 50, ""},
                           {"\"medium\"", 75, "Reasoning Effort: Absolute maximum"},
                           {"\"high\"", 75, "Reasoning Effort: Absolute maximum"},
                           {"\"xhigh\"", 75, "Reasoning Effort: Absolute maximum"},
                           {"\"max\"", 100, "Reasoning Effort: Beyond maximum"},
                           {"\"ultra\"", 100, "Reasoning Effort: Beyond maximum"},
                           {"1", 1, ""},
                           {"60", 60, "Reasoning Effort: Absolute maximum"},
                           {"100", 100, "Reasoning Effort: Beyond maximum"}};
  const auto request = [](Api api, const std::string& value) {
    switch (api) {
      case Api::kMessages:
        return parse_request(
            api, R"({"model":"m","messages":[{"role":"user","content":"q"}],"output_config":{"effort":)" + value + "}}");
      case Api::kResponses:
        return parse_request(api, R"({"model":"m","input":"q","reasoning":{"effort":)" + value + "}}");
      default:
        return parse_request(api, R"({"model":"m","messages":[{"role":"user","content":"q"}],"reasoning_effort":)" + value + "}");
    }
  };
  for (const Api api : {Api::kChat, Api::kMessages, Api::kResponses}) {
    for (const Row& row : kRows) {
      SCOPED_TRACE(row.value);
      const auto converted = request(api, row.value);
      ASSERT_TRUE(converted.has_value()) << converted.error().message;
      const Conversation& c = converted->conversation;
      EXPECT_EQ(c.thinking, row.number != 0);
      const std::string v41 = prompt_text(render_prompt(c, ModelVersion::kV4_1).segments);
      const std::string line = fmt::format("<｜System｜>Reasoning Effort: {} (range 1-100,", row.number);
      EXPECT_EQ(v41.find(line) != std::string::npos, c.thinking) << v41;
      const std::string v4 = prompt_text(render_prompt(c, ModelVersion::kV4).segments);
      EXPECT_TRUE(v4.starts_with(std::string(kBosToken) + (*row.v4 != 0 ? row.v4 : "<｜User｜>"))) << v4;
    }
    for (const char* bad : {"\"\"", "\"High\"", "\"extreme\"", "\"50\"", "0", "101", "-1", "1.5", "true", "[]", "{}", "1e99",
                            "9223372036854775808", "18446744073709551615"}) {
      const auto converted = request(api, bad);
      ASSERT_FALSE(converted.has_value()) << bad;
      EXPECT_EQ(converted.error().status, 400);
    }
  }
}

// CASES 30: every integer of every format at the edges of its type is taken or refused by name, never wrapped.
TEST(PublishedMistakes, IntegersAtTheEdges) {
  const char* const edges[] = {"-9223372036854775809",
                               "-9223372036854775808",
                               "-2147483649",
                               "-2147483648",
                               "-1",
                               "0",
                               "1",
                               "2147483647",
                               "2147483648",
                               "4294967295",
                               "4294967296",
                               "9223372036854775807",
                               "9223372036854775808",
                               "18446744073709551615",
                               "18446744073709551616",
                               "1e308",
                               "-1e308",
                               "0.5"};
  const char* const fields[] = {"max_tokens",
                                "max_completion_tokens",
                                "max_output_tokens",
                                "n",
                                "best_of",
                                "seed",
                                "top_logprobs",
                                "logprobs",
                                "top_k",
                                "min_tokens",
                                "priority",
                                "temperature",
                                "top_p",
                                "min_p",
                                "deadline",
                                "presence_penalty",
                                "frequency_penalty",
                                "repetition_penalty"};
  int refused = 0;
  for (const std::string field : fields) {
    for (const std::string edge : edges) {
      const std::string more = fmt::format(R"("model":"m","{}":{})", field, edge);
      const auto check = [&](const auto& request) {
        if (!request.has_value()) {
          ++refused;
          EXPECT_NE(request.error().message.find(field), std::string::npos) << request.error().message;
          return;
        }
        const GenerationOptions& g = request->generation;
        EXPECT_TRUE(g.n >= 1 && g.n <= 128);
        EXPECT_TRUE(g.max_tokens.value_or(1) >= 1 && g.max_tokens.value_or(1) <= 4294967295);
        EXPECT_TRUE(g.seed.value_or(0) >= 0);
        EXPECT_TRUE(g.logprobs.value_or(0) >= 0 && g.logprobs.value_or(0) <= 20);
        EXPECT_TRUE(g.min_tokens >= 0);
      };
      check(parse_chat_request("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]," + more + "}"));
      check(parse_messages_request("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]," + more + "}"));
      check(parse_responses_request("{\"input\":\"q\"," + more + "}"));
      check(parse_completion_request("{\"prompt\":\"q\"," + more + "}"));
    }
  }
  EXPECT_GT(refused, 200);
}

// CASES 33: deep and wide input costs linear time and no stack.
TEST(PublishedMistakes, DeepAndWideInput) {
  const auto body = [](const std::string& arguments) {
    return Json{{"model", "m"},
                {"messages",
                 Json::array({Json{{"role", "user"}, {"content", "q"}},
                              Json{{"role", "assistant"},
                                   {"content", ""},
                                   {"tool_calls", Json::array({Json{{"id", "1"},
                                                                    {"type", "function"},
                                                                    {"function", {{"name", "f"}, {"arguments", arguments}}}}})}},
                              Json{{"role", "tool"}, {"tool_call_id", "1"}, {"content", "r"}}})}}
        .dump();
  };
  // Arguments are text: too deep to be read as JSON, they go into the prompt as one string.
  const auto deep = parse_chat_request(body("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"));
  ASSERT_TRUE(deep.has_value());
  const std::string prompt = prompt_text(render_prompt(deep->conversation, ModelVersion::kV4_1).segments);
  EXPECT_NE(prompt.find("parameter name=\"arguments\" string=\"true\">{\"a\":[["), std::string::npos);

  std::string grounded;
  for (int i = 0; i < 100'000; ++i) grounded += "<｜box｜>";
  Conversation c;
  c.messages = {Message::User("q"), Message::Assistant(grounded), Message::User("q")};
  EXPECT_GT(render_prompt(c, ModelVersion::kV4_1).segments.size(), 100'000u);

  std::string parts = R"({"model":"m","input":[{"type":"reasoning","content":[)";
  for (int i = 0; i < 10'000; ++i) parts += R"({"type":"reasoning_text","text":")" + std::string(1'000, 'x') + "\"},";
  parts += R"({"type":"reasoning_text","text":""}]},{"role":"assistant","content":"a"}]})";
  const auto wide = parse_responses_request(parts);
  ASSERT_TRUE(wide.has_value()) << wide.error().message;
  EXPECT_EQ(wide->conversation.messages[0].reasoning->size(), 10'000u * 1'001u);
}

// §17.32 and CASES 2: the end token spelled inside a closer, and a closer cut by the length.
TEST(PublishedMistakes, CutClosers) {
  const ParsingOptions tools{.parse_tool_calls = true};
  const std::string open =
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
      "string=\"true\">v</｜DS<｜end▁of▁sentence｜>";
  const Json items = testing::read_output(tools, {open}, "length").items;
  EXPECT_EQ(items[1]["text"], "{\"x\": \"v</｜DS<｜end▁of▁sentence｜>");
  EXPECT_EQ(items[2]["reason"], "length");
}

}  // namespace
}  // namespace deepinfer
