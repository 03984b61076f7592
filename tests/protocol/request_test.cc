// Requests of every format to the neutral form: the conformance vectors, limits, and hostile input.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "protocol/vector_checks.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

}  // namespace

void testing::check_reject(const Json& test) {
  ConversionOptions options = conversion_options(test);
  const auto request = parse_request(api_of(test), test.at("request").dump(), options);
  ASSERT_FALSE(request.has_value());
  const Json& expected = test.at("expect");
  EXPECT_EQ(request.error().status, expected.at("status"));
  Json error = Json::parse(error_body(api_of(test), request.error())).at("error");
  const Json& wanted = expected.at("body").at("error");
  // A published text may go on with the value, and then says which field it is about.
  const std::string text = wanted.at("message"), got = error.at("message");
  if (got.starts_with(text + ", ")) {
    ASSERT_TRUE(error.at("param").is_string()) << got;
    EXPECT_NE(got.find(error.at("param").get<std::string>()), std::string::npos) << got;
    error["message"] = text;
    error["param"] = wanted.at("param");
  }
  EXPECT_EQ(error, wanted);
}

void testing::check_settings(const Json& test) {
  const auto request = parse_request(api_of(test), test.at("request").dump(), conversion_options(test));
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const Json& expected = test.at("expect");
  const Conversation& c = request->conversation;
  const GenerationOptions& g = request->generation;
  EXPECT_EQ(c.thinking, expected.at("thinking_mode"));
  EXPECT_EQ(c.thinking ? Json(c.effort.name()) : Json(nullptr), expected.at("reasoning_effort"));
  constexpr const char* kChoices[] = {"auto", "none", "required"};
  EXPECT_EQ(kChoices[static_cast<int>(c.tool_choice)], expected.at("tool_choice"));
  Json names = Json::array();
  for (const Tool& tool : c.tools) names.push_back(tool.name);
  EXPECT_EQ(names, expected.at("tool_names"));
  EXPECT_EQ(c.response_format.kind == ResponseFormat::Kind::kJsonObject ? "json_object" : "text", expected.at("response_format"));
  EXPECT_EQ(request->stream, expected.at("stream"));
  EXPECT_EQ(request->model, expected.at("model"));
  Json inference = Json::object();
  if (g.max_tokens.has_value()) inference["max_tokens"] = *g.max_tokens;
  if (g.temperature.has_value()) inference["temperature"] = *g.temperature;
  if (g.top_p.has_value()) inference["top_p"] = *g.top_p;
  if (g.thinking_budget_tokens.has_value()) inference["thinking_budget_tokens"] = *g.thinking_budget_tokens;
  if (g.disable_parallel_tool_use.has_value()) inference["disable_parallel_tool_use"] = *g.disable_parallel_tool_use;
  EXPECT_EQ(inference, expected.at("inference"));
  const ParsingOptions& p = request->parsing;
  const Json stages[] = {nullptr, "start", "reasoning", "content"};
  const Json parsing{{"parse_tool_calls", p.parse_tool_calls},
                     {"tool_call_initial_stage", p.tool_call_initial_stage},
                     {"parse_json_output", p.parse_json_output},
                     {"reasoning_initial_stage", stages[static_cast<int>(p.reasoning_initial_stage)]},
                     {"stop_sequences", p.stop_sequences}};
  EXPECT_EQ(parsing, expected.at("parsing"));
  if (expected.contains("custom_tool_names")) {
    EXPECT_EQ(Json(request->custom_tool_names), expected.at("custom_tool_names"));
  }
}

namespace {

TEST(Requests, RejectVectors) { testing::for_each_case("reject", 95, testing::check_reject); }

TEST(Requests, SettingsVectors) { testing::for_each_case("settings", 18, testing::check_settings); }

Json chat(Json more = Json::object()) {
  Json request{{"model", "m"}, {"messages", Json::array({Json{{"role", "user"}, {"content", "json"}}})}};
  for (auto& [key, value] : more.items()) request[key] = value;
  return request;
}

std::string chat_error(const Json& more) {
  const auto request = parse_chat_request(chat(more).dump());
  return request.has_value() ? "" : request.error().message;
}

TEST(Requests, ErrorsNameFieldValueAndLimit) {
  const std::pair<Json, const char*> cases[] = {
      {{{"max_tokens", "x"}}, "max_tokens: expected a whole number, got a string \"x\""},
      {{{"max_tokens", -1}}, "max_tokens: expected a whole number from 0 to 4294967295, got -1"},
      {{{"max_tokens", 1.5}}, "max_tokens: expected a whole number from 0 to 4294967295, got 1.5"},
      {{{"max_tokens", 1e300}}, "max_tokens: expected a whole number from 0 to 4294967295, got 1e+300"},
      {{{"max_tokens", 18446744073709551615u}},
       "max_tokens: expected a whole number from 0 to 4294967295, got 18446744073709551615"},
      {{{"stream", 1}}, "stream: expected true or false, got a number 1"},
      {{{"n", 129}}, "n: expected a whole number from 1 to 128, got 129"},
      {{{"top_logprobs", 21}}, "top_logprobs: expected a whole number from 0 to 20, got 21"},
      {{{"top_logprobs", 2}}, "top_logprobs: needs logprobs = true, got 2"},
      {{{"min_p", 2}}, "min_p: expected a number from 0 to 1, got 2"},
      {{{"top_k", 1e9}}, "top_k: expected a whole number from -1 to 2147483647, got 1000000000.0"},
      {{{"logit_bias", {{"x", 1}}}}, "logit_bias: keys are token ids, got \"x\""},
      {{{"logit_bias", {{"5", 101}}}}, "logit_bias.5: expected a number from -100 to 100, got 101"},
      {{{"reasoning_effort", "extreme"}},
       "reasoning_effort: must be minimal, low, medium, high, xhigh, max, ultra or a whole number"
       " from 1 to 100, got \"extreme\""},
      {{{"reasoning_effort", 0}}, "reasoning_effort: must be a whole number from 1 to 100 or a name, got 0"},
      {{{"reasoning_effort", 101}}, "reasoning_effort: must be a whole number from 1 to 100 or a name, got 101"},
      {{{"allowed_token_ids", Json::array()}}, "allowed_token_ids: at least one token id is required"},
      {{{"allowed_token_ids", {-1}}}, "allowed_token_ids[0]: expected a token id, got a number -1"},
      {{{"bad_words", {"a", 5}}}, "bad_words[1]: expected a string, got a number 5"},
      {{{"bad_words", {"a", " "}}}, "bad_words[1]: must not be empty"},
      {{{"bad_words", {std::string(1025, 'x')}}}, "bad_words[0]: has 1025 bytes, the limit is 1024"},
      {{{"prompt_logprobs", 1}, {"stream", true}}, "prompt_logprobs: not available with stream = true, got 1"},
      {{{"truncate_prompt_tokens", 0}}, "truncate_prompt_tokens: expected -1 or at least 1, got 0"},
      {{{"cache_class", "gold"}}, "cache_class: expected chat, agent or pinned, got \"gold\""},
      {{{"cache_salt", std::string(257, 'x')}}, "cache_salt: has 257 bytes, the limit is 256"},
      {{{"response_format", {{"type", "xml"}}}},
       "response_format.type: expected text, json_object, json_schema, regex or grammar, got \"xml\""},
      {{{"messages", 5}}, "messages: expected an array, got a number 5"},
      {{{"messages", {5}}}, "messages[0]: expected an object, got a number 5"},
      {{{"messages", {{{"role", "robot"}, {"content", "x"}}}}},
       "messages[0].role: expected system, user, assistant, tool or latest_reminder, got \"robot\""},
      {{{"messages", {{{"role", "user"}}}}}, "messages[0].content: a string or an array is required"},
  };
  for (const auto& [more, message] : cases) EXPECT_EQ(chat_error(more), message) << more.dump();
}

TEST(Requests, EveryParameterArrives) {
  const auto request = parse_chat_request(
      chat({{"max_completion_tokens", 7},
            {"temperature", 0.25},
            {"top_p", 0.5},
            {"top_k", 40},
            {"min_p", 0.1},
            {"repetition_penalty", 1.1},
            {"presence_penalty", -2},
            {"frequency_penalty", 2},
            {"seed", 9},
            {"n", 3},
            {"logprobs", true},
            {"top_logprobs", 5},
            {"logit_bias", {{"12", -100}, {"7", 0.5}}},
            {"stop", {"a", "b"}},
            {"stream", true},
            {"stream_options", {{"include_usage", true}}},
            {"reasoning_effort", 37},
            {"priority", -3},
            {"cache_salt", "tenant"},
            {"cache_class", "agent"},
            {"min_tokens", 2},
            {"stop_token_ids", {5, 6}},
            {"allowed_token_ids", {5, 6, 7}},
            {"bad_words", {"fox", " den"}},
            {"truncate_prompt_tokens", 2},
            {"ignore_eos", true},
            {"deadline", 2.5},
            {"parallel_tool_calls", false},
            {"thinking", {{"type", "enabled"}, {"budget_tokens", 100}}},
            {"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"strict", true}, {"schema", {{"type", "object"}}}}}}}})
          .dump());
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const GenerationOptions& g = request->generation;
  EXPECT_EQ(g.max_tokens, 7);
  EXPECT_EQ(g.temperature, 0.25);
  EXPECT_EQ(g.top_k, 40);
  EXPECT_EQ(g.logprobs, 5);
  EXPECT_EQ(g.logit_bias, (std::vector<std::pair<int32_t, float>>{{12, -100.0f}, {7, 0.5f}}));
  EXPECT_EQ(g.allowed_token_ids, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(g.bad_words, (std::vector<std::string>{"fox", " den"}));
  EXPECT_EQ(g.truncate_prompt_tokens, 2);
  EXPECT_EQ(g.thinking_budget_tokens, 100);
  EXPECT_EQ(request->conversation.effort.value(), 37);
  EXPECT_FALSE(request->conversation.parallel_tool_calls);
  const ResponseFormat& format = request->conversation.response_format;
  EXPECT_EQ(format.kind, ResponseFormat::Kind::kJsonSchema);
  EXPECT_EQ(format.definition, R"({"type":"object"})");
  EXPECT_TRUE(format.strict);
  EXPECT_FALSE(request->parsing.parse_json_output) << "a schema is enforced: there is no fence to look for";
  EXPECT_TRUE(request->parsing.enforced_form);

  GenerationPolicy policy;
  const auto refused = to_engine_request(*request, {1, 2, 3}, policy);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "response_format.json_schema.schema: json_schema is not supported by this server");
  policy.grammar = true;
  policy.think_end = 4;
  policy.honour_sampling_in_thinking = true;
  const auto engine = to_engine_request(*request, {1, 2, 3}, policy);
  ASSERT_TRUE(engine.has_value());
  EXPECT_EQ(engine->max_tokens, 7);
  EXPECT_EQ(engine->n, 3);
  EXPECT_EQ(engine->seed, 9u);
  EXPECT_EQ(engine->sampling.temperature, 0.25f);
  EXPECT_EQ(engine->sampling.top_k, 40);
  EXPECT_EQ(engine->sampling.presence_penalty, -2.0f);
  EXPECT_EQ(engine->sampling.min_tokens, 2);
  EXPECT_EQ(engine->sampling.stop_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(engine->priority, -3);
  EXPECT_EQ(engine->cache_salt, "tenant");
  EXPECT_EQ(engine->cache_class, "agent");
  EXPECT_EQ(engine->deadline, 2.5);
  EXPECT_EQ(engine->logprobs, 5);
  EXPECT_TRUE(engine->ignore_eos);
  EXPECT_TRUE(engine->stop.empty());
  EXPECT_FALSE(engine->skip_special_tokens);
}

// spec §6.
TEST(Requests, GenerationDefaults) {
  const auto engine = [](const Json& more, size_t prompt, GenerationPolicy policy = {}) {
    const auto request = parse_chat_request(chat(more).dump());
    EXPECT_TRUE(request.has_value());
    return to_engine_request(*request, std::vector<int32_t>(prompt, 5), policy);
  };
  const Json off{{"thinking", {{"type", "disabled"}}}};
  EXPECT_EQ(engine(off, 10)->max_tokens, 8192);
  EXPECT_EQ(engine({}, 10)->max_tokens, 65536);
  EXPECT_EQ(engine(off, 10, {.max_model_len = 100})->max_tokens, 90);
  EXPECT_EQ(engine({{"temperature", 0}, {"top_p", 0.5}, {"presence_penalty", 1}}, 10)->sampling.temperature, 1.0f);
  EXPECT_EQ(engine({{"top_p", 0.5}}, 10)->sampling.top_p, 0.95f);
  EXPECT_EQ(engine({{"presence_penalty", 1}}, 10)->sampling.presence_penalty, 0.0f);
  EXPECT_EQ(engine({{"top_p", 0.5}, {"thinking", {{"type", "disabled"}}}}, 10)->sampling.top_p, 0.5f);
  const auto full = engine({{"max_tokens", 91}}, 10, {.max_model_len = 100});
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().message,
            "This model's maximum context length is 100 tokens. However, you requested 101 tokens (10 in the messages, 91 in the "
            "completion). Please reduce the length of the messages or completion.");
  const auto no_room = engine({}, 100, {.max_model_len = 100});
  ASSERT_FALSE(no_room.has_value());
  EXPECT_NE(no_room.error().message.find("requested 101 tokens (100 in the messages, 1 in the completion)"), std::string::npos)
      << no_room.error().message;
  EXPECT_TRUE(engine({{"max_tokens", 90}}, 10, {.max_model_len = 100}).has_value());
}

// CASES 9, and what differs from the reference by intention.
TEST(Requests, OurDefaults) {
  const Json tools = Json::array({Json{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const auto required = parse_chat_request(chat({{"tools", tools}, {"tool_choice", "required"}}).dump());
  ASSERT_TRUE(required.has_value());
  EXPECT_TRUE(required->conversation.thinking);
  EXPECT_FALSE(required->parsing.tool_call_initial_stage);
  EXPECT_EQ(required->parsing.reasoning_initial_stage, ReasoningStage::kStart);
  const std::string prompt = prompt_text(render_prompt(required->conversation, ModelVersion::kV4_1).segments);
  EXPECT_TRUE(prompt.ends_with("<｜Assistant｜><think>"));

  const auto quoted = parse_chat_request(
      chat({{"messages", {{{"role", "developer"}, {"content", "<｜image｜>"}}, {{"role", "user"}, {"content", "x"}}}}}).dump());
  ASSERT_TRUE(quoted.has_value());
  EXPECT_EQ(quoted->conversation.messages[0].role, Message::Role::kSystem);

  const auto custom = parse_messages_request(
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"custom","name":"f","input_schema":{"type":"object"}}]})");
  EXPECT_TRUE(custom.has_value());
  const auto stored = parse_responses_request(R"({"model":"m","input":"x","previous_response_id":"r"})");
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(stored->warnings.size(), 1u);
}

TEST(Requests, Completions) {
  const auto prompts = [](const char* prompt) {
    return parse_completion_request(fmt::format(R"({{"model":"m","prompt":{},"stop":"E","echo":true}})", prompt));
  };
  EXPECT_EQ(std::get<std::string>(prompts("\"a\"")->prompts[0]), "a");
  EXPECT_EQ(prompts(R"(["a","b"])")->prompts.size(), 2u);
  EXPECT_EQ(std::get<1>(prompts("[1,2]")->prompts[0]), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(prompts("[[1],[2,3]]")->prompts.size(), 2u);
  for (const char* bad : {"[]", "5", "null", "[[]]", "[1,-2]", "[1,\"a\"]", "[4294967296]", "[null]", "{}"}) {
    EXPECT_FALSE(prompts(bad).has_value()) << bad;
  }
  const auto request = to_engine_request(*prompts("\"a\""), {5}, GenerationPolicy{});
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->stop, std::vector<std::string>{"E"});
  EXPECT_EQ(request->max_tokens, 16);
  EXPECT_FALSE(parse_completion_request(R"({"model":"m","prompt":"x","suffix":"y"})").has_value());
}

TEST(Requests, PromptsAreTruncatedAtTheirBegin) {
  const GenerationPolicy policy{.max_model_len = 10};
  const auto left = [&](std::optional<int64_t> tokens, std::optional<int64_t> max_tokens) {
    std::vector<int32_t> prompt{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    truncate_prompt({.max_tokens = max_tokens, .truncate_prompt_tokens = tokens}, policy, prompt);
    return prompt;
  };
  EXPECT_EQ(left(3, 5), (std::vector<int32_t>{9, 10, 11}));
  EXPECT_EQ(left({}, 5).size(), 12u);
  EXPECT_EQ(left(100, 5).size(), 12u) << "the engine says that it does not fit";
  EXPECT_EQ(left(-1, 4), (std::vector<int32_t>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(left(-1, {}).size(), 9u);
  EXPECT_EQ(left(-1, 20).size(), 1u);
}

TEST(Json, Format) {
  testing::for_each_case("json_format", 23, [](const Json& test) {
    const auto value = parse_json(test.at("input_json").get<std::string>());
    ASSERT_TRUE(value.has_value());
    EXPECT_EQ(prompt_json(*value), test.at("expect"));
  });
}

TEST(Json, Limits) {
  const auto error = [](const std::string& text, const JsonLimits& limits = {}) {
    const auto value = parse_json(text, limits);
    return value.has_value() ? "" : value.error().message;
  };
  EXPECT_EQ(error("[[[]]]", {.max_depth = 3}), "");
  EXPECT_EQ(error("[[[]]]", {.max_depth = 2}), "the body is nested more than 2 levels deep");
  EXPECT_EQ(error(std::string(1'000'000, '[')), "the body is nested more than 128 levels deep");
  EXPECT_EQ(error("[1,2,3]", {.max_values = 3}), "the body has more than 3 JSON values");
  EXPECT_EQ(error("[1,2]", {.max_bytes = 4}), "the body has 5 bytes, the limit is 4");
  EXPECT_EQ(parse_json("[1,2]", {.max_bytes = 4}).error().status, 413);
  // The last of equal keys wins, at the place of the first, in small objects and in large ones.
  EXPECT_EQ(prompt_json(*parse_json(R"({"a":1,"b":2,"a":3})")), R"({"a": 3, "b": 2})");
  std::string large = "{";
  for (int i = 0; i < 100; ++i) large += fmt::format("\"k{}\":{},", i, i);
  const auto value = parse_json(large + R"("k3":"x","k99":"y","k3":["z"]})");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->size(), 100u);
  EXPECT_EQ((*value)["k3"], Json::array({"z"}));
  EXPECT_EQ((*value)["k99"], "y");
  EXPECT_EQ(value->begin().key(), "k0");
  for (const std::string bad : {"\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\xff\"", "\"\xed\xa0\x80\"",
                                "\"\xc0\x80\"", "1e999", "01", "nul", "{\"a\":1,}", "[1] x", "", "\"a", "\"\n\"", "NaN", "'a'"}) {
    EXPECT_NE(error(bad), "") << bad;
    EXPECT_EQ(error(bad).find('\n'), std::string::npos);
  }
}

// A hundred thousand keys are read in linear time.
TEST(Json, ManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += fmt::format("\"{}\":0,", i);
  text += "\"x\":0}";
  const auto value = parse_json(text);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->size(), 200'001u);
}

// y_ files must be read, n_ files must not; none may do worse than an error.
TEST(Json, PublicTestSuite) {
  const std::filesystem::path folder = testing::shared_dir() + "/vectors/public/json-test-suite/test_parsing";
  if (testing::shared_dir().empty() || !std::filesystem::exists(folder))
    GTEST_SKIP() << "the suite is read from the shared folder ($DEEPINFER_SHARED), which is absent";
  int accepted = 0;
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const std::string text = file_text(entry.path());
    SCOPED_TRACE(name);
    const auto value = parse_json(text);
    if (name.starts_with("y_")) {
      EXPECT_TRUE(value.has_value()) << value.error().message;
      ++accepted;
    } else if (name.starts_with("n_")) {
      EXPECT_FALSE(value.has_value());
      ++refused;
    }
    // As a body, and as a value at places that take anything.
    for (const Api api : {Api::kChat, Api::kMessages, Api::kResponses}) (void)parse_request(api, text);
    (void)parse_completion_request(text);
    const auto nested = parse_chat_request(R"({"model":"m","messages":[{"role":"user","content":"x"}],"metadata":)" + text + "}");
    if (name.starts_with("y_")) {
      EXPECT_TRUE(nested.has_value());
    } else if (name.starts_with("n_")) {
      EXPECT_FALSE(nested.has_value());
    }
  }
  EXPECT_EQ(accepted, 95);
  EXPECT_EQ(refused, 188);
}

TEST(Requests, CountTokensBody) { EXPECT_EQ(count_tokens_body(12), R"({"input_tokens":12})"); }

/// A field, a value outside its range, and what the error says about it.
struct OutOfRange {
  Api api;
  const char *field, *value;
  std::vector<const char*> words;  ///< value and limit
};

TEST(Errors, RangesNameFieldValueAndLimit) {
  const std::string sixteen = R"(["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])";
  const std::string long_stop = "[\"" + std::string(1025, 'x') + "\"]";
  const OutOfRange cases[] = {
      {Api::kChat, "temperature", "3", {"got 3", "[0, 2]"}},
      {Api::kChat, "temperature", "-0.5", {"got -0.5", "[0, 2]"}},
      {Api::kMessages, "temperature", "2.5", {"got 2.5", "[0, 2]"}},
      {Api::kResponses, "temperature", "1e300", {"got 1e+300", "[0, 2]"}},
      {Api::kCompletions, "temperature", "2.01", {"got 2.01", "[0, 2]"}},
      {Api::kChat, "top_p", "0", {"got 0", "(0, 1]"}},
      {Api::kMessages, "top_p", "1.5", {"got 1.5", "(0, 1]"}},
      {Api::kChat, "frequency_penalty", "-2.5", {"got -2.5", "[-2, 2]"}},
      {Api::kCompletions, "presence_penalty", "3", {"got 3", "[-2, 2]"}},
      {Api::kChat, "seed", "-1", {"got -1", "[0, 2^63)"}},
      {Api::kChat, "seed", "1e40", {"got 1e+40", "[0, 2^63)"}},
      {Api::kChat, "max_tokens", "0", {"got 0", "greater than zero"}},
      {Api::kChat, "max_completion_tokens", "0", {"got 0", "greater than zero"}},
      {Api::kResponses, "max_output_tokens", "0", {"got 0", "greater than zero"}},
      {Api::kMessages, "max_tokens", "-1", {"got -1", "from 0 to 4294967295"}},
      {Api::kChat, "n", "0", {"got 0", "from 1 to"}},
      {Api::kCompletions, "n", "1000000", {"got 1000000", "from 1 to"}},
      {Api::kChat, "top_k", "-2", {"got -2", "from -1 to 2147483647"}},
      {Api::kChat, "min_p", "1.1", {"got 1.1", "from 0 to 1"}},
      {Api::kChat, "repetition_penalty", "0", {"got 0", "from 1e-06 to 100"}},
      {Api::kChat, "min_tokens", "-1", {"got -1", "from 0 to"}},
      {Api::kChat, "priority", "99999999999", {"got 99999999999", "from -2147483648 to 2147483647"}},
      {Api::kChat, "deadline", "0", {"got 0", "from 0.001 to 1000000"}},
      {Api::kChat, "stop", sixteen.c_str(), {"17", "16"}},
      {Api::kCompletions, "stop", long_stop.c_str(), {"1025", "1024"}},
      {Api::kMessages, "stop_sequences", sixteen.c_str(), {"got 17", "at most 16"}},
      {Api::kMessages, "stop_sequences", R"(["a",""])", {"[1] is \"\"", "non-empty"}},
      {Api::kMessages, "stop_sequences", long_stop.c_str(), {"1025", "1024"}},
      {Api::kChat, "logit_bias", R"({"5":101})", {"got 101", "from -100 to 100"}},
      {Api::kChat, "prompt_logprobs", "21", {"got 21", "from 0 to 20"}},
      {Api::kMessages, "truncate_prompt_tokens", "-2", {"got -2", "from -1 to"}},
  };
  for (const OutOfRange& c : cases) {
    Json body{{"model", "m"}, {"max_tokens", 5}};
    if (c.api == Api::kCompletions) {
      body["prompt"] = "x";
    } else {
      body[c.api == Api::kResponses ? "input" : "messages"] = Json::array({Json{{"role", "user"}, {"content", "x"}}});
    }
    if (std::string_view(c.field).starts_with("max_")) body.erase("max_tokens");
    body[c.field] = Json::parse(c.value);
    const auto error_of = [](const auto& request) { return request ? std::nullopt : std::optional<ApiError>(request.error()); };
    const std::optional<ApiError> error = c.api == Api::kCompletions ? error_of(parse_completion_request(body.dump()))
                                                                     : error_of(parse_request(c.api, body.dump()));
    ASSERT_TRUE(error.has_value()) << c.field << " " << c.value;
    EXPECT_EQ(error->status, 400);
    EXPECT_TRUE(error->param.value_or("").starts_with(c.field)) << c.field << ": " << error->param.value_or("-");
    for (const char* word : c.words) EXPECT_NE(error->message.find(word), std::string::npos) << c.field << ": " << error->message;
    EXPECT_NE(error->message.find(c.field), std::string::npos) << error->message;
    EXPECT_LT(error->message.size(), 300u);
  }
}

TEST(Errors, Bodies) {
  const ApiError error = ApiError::Field("a.b", "is {}", 5);
  EXPECT_EQ(error_body(Api::kChat, error),
            R"({"error":{"message":"a.b: is 5","type":"invalid_request_error","param":"a.b","code":"invalid_request_error"}})");
  EXPECT_EQ(
      error_body(Api::kMessages, ApiError::From(Status::Unavailable("the queue is full"))),
      R"({"type":"error","error":{"message":"the queue is full","type":"rate_limit_error","param":null,"code":"rate_limit_error"}})");
  EXPECT_EQ(ApiError::From(Status::OutOfRange("logit_bias has token id 9, must be from 0 to 7")).param, "logit_bias");
  EXPECT_EQ(ApiError::From(Status::OutOfRange("logit_biases")).param, std::nullopt);
  EXPECT_EQ(ApiError::From(Status::Internal("x")).status, 500);
  EXPECT_EQ(ApiError::From(Status::OutOfRange("x")).status, 400);
  EXPECT_EQ(ApiError::From(Status::ResourceExhausted("x")).status, 503);
  EXPECT_EQ(ApiError::From(Status::FailedPrecondition("x")).status, 503);
  EXPECT_EQ(Json::parse(error_body(Api::kChat, ApiError::Invalid("{}", "\xff\n")))["error"]["message"], "\uFFFD\n");
}

}  // namespace
}  // namespace deepinfer
