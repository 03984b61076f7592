// Requests to prompts: the conformance vectors, injection, and the checkpoint encoder's rules.

#include <gtest/gtest.h>

#include <algorithm>

#include "protocol/render_v4.h"
#include "protocol/vector_checks.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

Json images_json(const std::vector<ImageRef>& images) {
  Json out = Json::array();
  for (const ImageRef& image : images) {
    const char* const kind = image.kind == ImageRef::Kind::kUrl ? "url" : "data_url";
    out.push_back(Json{{"kind", kind}, {kind, image.url}, {"detail", image.detail}});
  }
  return out;
}

}  // namespace

void testing::check_render(const Json& test) {
  const auto request = parse_request(api_of(test), test.at("request").dump(), conversion_options(test));
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const RenderedPrompt prompt = render_prompt(request->conversation, version_of(test));
  const Json& expected = test.at("expect");
  EXPECT_EQ(prompt_text(prompt.segments), expected.at("prompt"));
  EXPECT_EQ(images_json(prompt.images), expected.value("images", Json::array()));
  const auto placeholders = std::count_if(prompt.segments.begin(), prompt.segments.end(),
                                          [](const PromptSegment& s) { return s.kind == PromptSegment::Kind::kImage; });
  EXPECT_EQ(static_cast<size_t>(placeholders), prompt.images.size());
  // Our defaults render the same.
  ConversionOptions ours = conversion_options(test);
  const ConversionOptions defaults;
  ours.required_in_thinking = defaults.required_in_thinking;
  ours.extra_roles_and_blocks = defaults.extra_roles_and_blocks;
  ours.structured_output = defaults.structured_output;
  const auto again = parse_request(api_of(test), test.at("request").dump(), ours);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(prompt_text(render_prompt(again->conversation, version_of(test)).segments), expected.at("prompt"));
}

namespace {

TEST(Render, Vectors) { testing::for_each_case("render", 209, testing::check_render); }

TEST(Render, VectorIds) {
  if (testing::official_tokenizer("v4.1") == nullptr) GTEST_SKIP() << testing::official_tokenizer_missing();
  int compared = 0;
  testing::for_each_case("render", 209, [&](const Json& test) {
    if (!test.at("expect").contains("token_ids")) return;
    const auto request = parse_request(testing::api_of(test), test.at("request").dump(), testing::conversion_options(test));
    ASSERT_TRUE(request.has_value());
    const auto tokenizer = testing::official_tokenizer(test.at("model_version"));
    const auto ids = encode_prompt(*tokenizer, render_prompt(request->conversation, testing::version_of(test)).segments);
    ASSERT_TRUE(ids.has_value()) << ids.error().message();
    EXPECT_EQ(Json(*ids), test.at("expect").at("token_ids"));
    ++compared;
  });
  EXPECT_EQ(compared, 36);
}

TEST(Render, CheckpointEncoderVectors) {
  testing::for_each_case("render_encoder_mode", 14, [](const Json& test) {
    Conversation c;
    c.thinking = test.at("thinking_mode") == "thinking";
    if (test.contains("reasoning_effort"))
      c.effort = *parse_reasoning_effort(std::string_view(test["reasoning_effort"].get<std::string>()));
    for (const Json& in : test.at("messages")) {
      Message m;
      const std::string role = in.at("role");
      m.role = role == "user"        ? Message::Role::kUser
               : role == "assistant" ? Message::Role::kAssistant
               : role == "tool"      ? Message::Role::kTool
               : role == "developer" ? Message::Role::kDeveloper
                                     : Message::Role::kSystem;
      m.content = in.at("content");
      if (in.contains("reasoning_content")) m.reasoning = in["reasoning_content"].get<std::string>();
      for (const Json& call : in.value("tool_calls", Json::array())) {
        m.tool_calls.push_back({call["id"], call["function"]["name"], call["function"]["arguments"]});
      }
      m.tool_call_id = in.value("tool_call_id", "");
      m.task = in.value("task", "");
      m.prefix = in.value("wo_eos", false);
      c.messages.push_back(std::move(m));
    }
    const RenderedPrompt prompt = render_checkpoint_prompt(c, testing::version_of(test), test.value("drop_thinking", true));
    EXPECT_EQ(prompt_text(prompt.segments), test.at("expect").at("prompt"));
  });
}

std::vector<std::string> specials(const RenderedPrompt& prompt) {
  std::vector<std::string> out;
  for (const PromptSegment& s : prompt.segments) {
    if (s.kind != PromptSegment::Kind::kText) out.push_back(s.text);
  }
  return out;
}

// spec §5 rule 7, in every field that a caller controls.
TEST(Render, CallersTextNeverMakesSpecialTokens) {
  const Json special_tokens = testing::read_vectors("special_tokens");
  const auto conversation = [](const std::string& t) {
    Conversation c;
    c.thinking = true;
    c.tools = {{.name = t, .description = t, .parameters = prompt_json(Json{{"type", "object"}, {t, t}})}};
    c.messages = {Message::System(t), Message::User(t), Message::Assistant(t, t), Message::User(t)};
    c.messages[2].tool_calls = {{t, t, Json{{t, t}, {"n", Json::array({t})}}.dump()}, {t, t, t}};
    Message result{.role = Message::Role::kTool};
    result.content = t;
    c.messages.insert(c.messages.begin() + 3, result);
    Message reminder{.role = Message::Role::kLatestReminder};
    reminder.content = t;
    c.messages.push_back(reminder);
    return c;
  };
  const auto nano = testing::nano_tokenizer();
  for (const ModelVersion version : {ModelVersion::kV4, ModelVersion::kV4_1}) {
    const std::vector<std::string> expected = specials(render_prompt(conversation("x"), version));
    for (const Json& token : special_tokens.at("tokens")) {
      const std::string literal = token.value("both", token.value("v4.1", ""));
      const int64_t id = token.at("id");
      if (id >= 129271 && id <= 129278) continue;  // grounding: tokens in what the model wrote
      const RenderedPrompt prompt = render_prompt(conversation("a" + literal + literal), version);
      EXPECT_EQ(specials(prompt), expected) << literal;
      if (version == ModelVersion::kV4) continue;
      const auto ids = encode_prompt(*nano, prompt.segments);
      ASSERT_TRUE(ids.has_value()) << ids.error().message();
      EXPECT_EQ(static_cast<size_t>(std::count_if(ids->begin(), ids->end(), [&](int32_t i) { return nano->is_added(i); })),
                expected.size());
    }
  }
}

// CASES 6: the parser starts where the prompt ends.
TEST(Render, ParserStartsWhereThePromptEnds) {
  const auto stage_after = [](const std::string& prompt) {
    if (prompt.ends_with("<think>")) return ReasoningStage::kStart;
    if (prompt.ends_with("<｜Assistant｜></think>")) return ReasoningStage::kNone;
    return prompt.rfind("<think>") != std::string::npos && prompt.rfind("<think>") > prompt.rfind("</think>") + 1
               ? ReasoningStage::kReasoning
               : ReasoningStage::kContent;
  };
  testing::for_each_case("render", 209, [&](const Json& test) {
    const auto request = parse_request(testing::api_of(test), test.at("request").dump(), testing::conversion_options(test));
    ASSERT_TRUE(request.has_value());
    const std::string prompt = prompt_text(render_prompt(request->conversation, testing::version_of(test)).segments);
    const bool block_open = prompt.ends_with("<｜DSML｜ calls>\n") || prompt.ends_with("<｜DSML｜tool_calls>\n");
    EXPECT_EQ(request->parsing.tool_call_initial_stage, block_open);
    if (block_open) return;
    if (prompt.find("## Tools") != std::string::npos) return;
    EXPECT_EQ(request->parsing.reasoning_initial_stage, stage_after(prompt));
  });
}

}  // namespace
}  // namespace deepinfer
