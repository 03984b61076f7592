// Completions: chunks and the final object, above all their log-probs.

#include <gtest/gtest.h>

#include "protocol/api.h"
#include "protocol/engine_output.h"
#include "protocol/json_input.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

using testing::output_of;

TEST(Completions, SeveralPromptsAndChoices) {
  const auto tokenizer = testing::nano_tokenizer();
  auto request = parse_completion_request(R"({"model":"m","prompt":["ab","cd"],"n":2,"echo":true,"logprobs":1,"stream":true})");
  ASSERT_TRUE(request.has_value());
  std::vector<std::vector<int32_t>> ids;
  for (const auto& prompt : request->prompts) ids.push_back(*encode_completion_prompt(*tokenizer, prompt));
  const auto stream = make_completion_stream(*request, {.id = "cmpl-1", .created = 5, .system_fingerprint = {}}, tokenizer, ids);
  ServerEvents events;
  const auto push = [&](const Output& o, int64_t prompt) {
    for (ServerEvent& e : stream->push(o, 9, prompt)) events.push_back(std::move(e));
  };
  for (int64_t prompt = 0; prompt < 2; ++prompt) {
    for (int64_t index = 0; index < 2; ++index) {
      Output o = output_of(index, "x", {7});
      o.logprobs.push_back({.chosen = {7, -1.0f, 1}, .top = {{7, -1.0f, 1}}});
      push(o, prompt);
      push(output_of(index, "", {1}, FinishReason::kStop), prompt);
    }
  }
  EXPECT_TRUE(stream->done());
  const Json body = Json::parse(stream->body());
  ASSERT_EQ(body["choices"].size(), 4u);
  EXPECT_EQ(body["choices"][3]["text"], "cdx");
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 20);
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);
  EXPECT_EQ(body["choices"][0]["logprobs"]["token_logprobs"].back(), -1.0);
  EXPECT_EQ(body["choices"][0]["logprobs"]["token_logprobs"].front(), nullptr);
  std::string streamed;
  for (const ServerEvent& e : events) {
    if (e.data != "[DONE]" && Json::parse(e.data)["choices"][0]["index"] == 3)
      streamed += Json::parse(e.data)["choices"][0]["text"];
  }
  EXPECT_EQ(streamed, "cdx");
  EXPECT_EQ(events.back().data, "[DONE]");
}

// vLLM's field, beside OpenAI's log-probs of an echoed prompt: each has as many alternatives as it asked for.
TEST(Completions, PromptLogprobs) {
  const auto tokenizer = testing::nano_tokenizer();
  const auto request =
      parse_completion_request(R"({"model":"m","prompt":"The fox went","n":2,"echo":true,"logprobs":1,"prompt_logprobs":2})");
  ASSERT_TRUE(request.has_value());
  const std::vector<int32_t> ids = *encode_completion_prompt(*tokenizer, request->prompts[0]);
  EXPECT_EQ(to_engine_request(*request, ids, GenerationPolicy{})->prompt_logprobs, 2);
  const auto stream =
      make_completion_stream(*request, {.id = "cmpl-1", .created = 5, .system_fingerprint = {}}, tokenizer, {ids});
  for (int64_t index = 0; index < 2; ++index) {
    Output o = output_of(index, "x", {7}, FinishReason::kLength);
    for (size_t i = 1; i < ids.size() && index == 0; ++i)
      o.prompt_logprobs.push_back({.chosen = {ids[i], -2.0f, 3}, .top = {{7, -1.0f, 1}, {8, -1.5f, 2}}});
    o.logprobs.push_back({.chosen = {7, -1.0f, 1}, .top = {}});
    stream->push(o, 9, 0);
  }
  const Json body = Json::parse(stream->body());
  for (const Json& choice : body["choices"]) {
    const Json& prompt = choice["prompt_logprobs"];
    ASSERT_EQ(prompt.size(), ids.size()) << choice;
    EXPECT_EQ(prompt[0], nullptr);
    const Json& second = prompt[1];
    ASSERT_EQ(second.size(), 3u) << second;
    EXPECT_EQ(second[std::to_string(ids[1])]["rank"], 3);
    EXPECT_EQ(second[std::to_string(ids[1])]["decoded_token"], tokenizer->token_bytes(ids[1]));
    EXPECT_EQ(second["7"]["logprob"], -1.0);
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][1].size(), 1u);
  }
}

// The engine tells the log-probs of a prompt once, for all choices.
TEST(Completions, EchoedPromptLogprobsOfEveryChoice) {
  const auto tokenizer = testing::nano_tokenizer();
  const auto request = parse_completion_request(R"({"model":"m","prompt":"The fox went","n":2,"echo":true,"logprobs":1})");
  ASSERT_TRUE(request.has_value());
  const std::vector<int32_t> ids = *encode_completion_prompt(*tokenizer, request->prompts[0]);
  ASSERT_GE(ids.size(), 3u);
  const auto stream =
      make_completion_stream(*request, {.id = "cmpl-1", .created = 5, .system_fingerprint = {}}, tokenizer, {ids});
  for (int64_t index = 0; index < 2; ++index) {
    Output o = output_of(index, " home", {7}, FinishReason::kLength);
    if (index == 0) {
      for (size_t i = 1; i < ids.size(); ++i) o.prompt_logprobs.push_back({.chosen = {ids[i], -2.0f, 1}, .top = {}});
    }
    o.logprobs.push_back({.chosen = {7, -1.0f, 1}, .top = {}});
    stream->push(o, 9, 0);
  }
  const Json body = Json::parse(stream->body());
  for (const Json& choice : body["choices"]) {
    const Json& logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), ids.size() + 1) << choice;
    EXPECT_EQ(logprobs["token_logprobs"][1], -2.0);
    EXPECT_EQ(logprobs["token_logprobs"].back(), -1.0);
    // Offsets are places in the text, which does not show the token that begins it.
    const auto text = choice["text"].get<std::string>();
    for (size_t i = 1; i < ids.size(); ++i) {
      EXPECT_EQ(text.substr(logprobs["text_offset"][i], tokenizer->token_bytes(ids[i]).size()), logprobs["tokens"][i]);
    }
    EXPECT_EQ(text.substr(logprobs["text_offset"].back()), " home");
  }
}

// No token at all: the prompt is scored, which is how some evaluations ask.
TEST(Completions, EchoAlone) {
  const auto tokenizer = testing::nano_tokenizer();
  EXPECT_FALSE(parse_completion_request(R"({"model":"m","prompt":"ab","max_tokens":0})").has_value());
  const auto request = parse_completion_request(R"({"model":"m","prompt":[5,6,7],"max_tokens":0,"echo":true,"logprobs":0})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const auto engine = to_engine_request(*request, {5, 6, 7}, {});
  ASSERT_TRUE(engine.has_value());
  EXPECT_EQ(engine->max_tokens, 1) << "the least that the engine makes";
  const auto stream =
      make_completion_stream(*request, {.id = "cmpl-1", .created = 5, .system_fingerprint = {}}, tokenizer, {{5, 6, 7}});
  Output o = output_of(0, "x", {8}, FinishReason::kStop);
  for (const int32_t id : {6, 7}) o.prompt_logprobs.push_back({.chosen = {id, -2.0f, 1}, .top = {}});
  o.logprobs.push_back({.chosen = {8, -1.0f, 1}, .top = {}});
  stream->push(o, 9, 0);
  const Json body = Json::parse(stream->body());
  const std::vector<int32_t> ids = {5, 6, 7};
  EXPECT_EQ(body["choices"][0]["text"], tokenizer->decode(ids));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][0]["logprobs"]["token_logprobs"], Json::array({nullptr, -2.0, -2.0}));
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
}

// Tokens that are parts of characters: told apart by their bytes, and counted where their character is.
TEST(Completions, LogprobsOfPartsOfCharacters) {
  const auto tokenizer = testing::nano_tokenizer();
  const std::vector<int32_t> ids = tokenizer->encode("\U0001F980\u00e9x");
  ASSERT_EQ(ids.size(), 7u) << "bytes, in the small vocabulary";
  const auto request = parse_completion_request(R"({"model":"m","prompt":"a","logprobs":2})");
  const auto stream =
      make_completion_stream(*request, {.id = "cmpl-1", .created = 5, .system_fingerprint = {}}, tokenizer, {{5}});
  Output o = output_of(0, "\U0001F980\u00e9x", ids, FinishReason::kLength);
  for (const int32_t id : ids) o.logprobs.push_back({.chosen = {id, -1.0f, 1}, .top = {{id, -1.0f, 1}, {ids[1], -2.0f, 2}}});
  stream->push(o, 9, 0);
  const Json logprobs = Json::parse(stream->body())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"],
            Json::array({"bytes:\\xf0", "bytes:\\x9f", "bytes:\\xa6", "bytes:\\x80", "bytes:\\xc3", "bytes:\\xa9", "x"}));
  EXPECT_EQ(logprobs["text_offset"], Json::array({0, 1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(logprobs["top_logprobs"][0], Json::object({{"bytes:\\xf0", -1.0}, {"bytes:\\x9f", -2.0}}));
  EXPECT_EQ(logprobs["top_logprobs"][1], Json::object({{"bytes:\\x9f", -1.0}})) << "the better one stays";
}

}  // namespace
}  // namespace deepinfer
