// From the fields of each format to the form that the engine enforces (spec/protocol §14).

#include <gtest/gtest.h>

#include "protocol/api.h"
#include "protocol/json_input.h"
#include "protocol/vectors.h"

namespace deepinfer {
namespace {

using grammar::DsmlSpec;

constexpr int32_t kThinkEnd = 4;

/// A request with thinking off and a prompt that mentions JSON.
Json body_of(Api api, const Json& more) {
  Json body{{"model", "m"}};
  if (api == Api::kResponses) {
    body["input"] = "json";
    body["reasoning"] = {{"effort", "none"}};
  } else if (api == Api::kCompletions) {
    body["prompt"] = "json";
  } else {
    body["messages"] = Json::array({{{"role", "user"}, {"content", "json"}}});
    body["thinking"] = {{"type", "disabled"}};
  }
  for (const auto& [key, value] : more.items()) body[key] = value;
  return body;
}

GenerationPolicy policy() {
  GenerationPolicy p;
  p.grammar = true;
  p.think_end = kThinkEnd;
  return p;
}

/// The form of a request, which must be valid.
std::optional<StructuredOutput> form_of(Api api, const Json& more, const GenerationPolicy& p = policy()) {
  const std::string body = body_of(api, more).dump();
  if (api == Api::kCompletions) {
    const auto request = parse_completion_request(body);
    EXPECT_TRUE(request.has_value()) << request.error().message;
    return to_engine_request(*request, {1, 2}, p)->structured_output;
  }
  const auto request = parse_request(api, body);
  EXPECT_TRUE(request.has_value()) << request.error().message;
  if (!request.has_value()) return std::nullopt;
  const auto engine = to_engine_request(*request, {1, 2}, p);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return engine->structured_output;
}

std::string error_of(Api api, const Json& more) {
  const std::string body = body_of(api, more).dump();
  if (api == Api::kCompletions) {
    const auto request = parse_completion_request(body);
    return request.has_value() ? "" : request.error().message;
  }
  const auto request = parse_request(api, body);
  return request.has_value() ? "" : request.error().message;
}

template <typename Spec>
Spec spec_of(const std::optional<StructuredOutput>& form) {
  if (form.has_value() && std::holds_alternative<Spec>(form->form)) return std::get<Spec>(form->form);
  ADD_FAILURE() << "another form, or none";
  return Spec{};
}

const Json kSchema{{"type", "object"}, {"properties", {{"zebra", {{"type", "string"}}}, {"ant", {{"type", "integer"}}}}}};
// As text: keys in the order of the request.
const char* const kSchemaText = R"({"type":"object","properties":{"zebra":{"type":"string"},"ant":{"type":"integer"}}})";

TEST(StructuredOutput, SchemasOfEveryFormat) {
  struct Case {
    Api api;
    Json with, strict, loose;
  };
  const auto chat = [](const Json& more) {
    Json schema{{"name", "x"}, {"schema", kSchema}};
    schema.update(more);
    return Json{{"response_format", {{"type", "json_schema"}, {"json_schema", schema}}}};
  };
  const auto responses = [](const Json& more) {
    Json format{{"type", "json_schema"}, {"name", "x"}, {"schema", kSchema}};
    format.update(more);
    return Json{{"text", {{"format", format}}}};
  };
  const auto messages = [](const Json& more) {
    Json format{{"type", "json_schema"}, {"schema", kSchema}};
    format.update(more);
    return Json{{"output_config", {{"format", format}}}};
  };
  const Json none = Json::object(), strict{{"strict", true}}, loose{{"strict", false}};
  for (const Case& c :
       {Case{Api::kChat, chat(none), chat(strict), chat(loose)}, Case{Api::kCompletions, chat(none), chat(strict), chat(loose)},
        Case{Api::kResponses, responses(none), responses(strict), responses(loose)},
        Case{Api::kMessages, messages(none), messages(strict), messages(loose)}}) {
    const auto form = form_of(c.api, c.with);
    EXPECT_EQ(spec_of<grammar::JsonSchemaSpec>(form).schema, kSchemaText);
    EXPECT_TRUE(spec_of<grammar::JsonSchemaSpec>(form).strict) << "nothing is dropped in silence";
    EXPECT_FALSE(form->start_after.has_value());
    EXPECT_TRUE(spec_of<grammar::JsonSchemaSpec>(form_of(c.api, c.strict)).strict);
    EXPECT_FALSE(spec_of<grammar::JsonSchemaSpec>(form_of(c.api, c.loose)).strict);
  }
  EXPECT_EQ(spec_of<grammar::JsonSchemaSpec>(
                form_of(Api::kMessages, {{"output_format", {{"type", "json_schema"}, {"schema", kSchema}}}}))
                .schema,
            kSchemaText);
  for (const Api api : {Api::kChat, Api::kCompletions})
    spec_of<grammar::JsonObjectSpec>(form_of(api, {{"response_format", {{"type", "json_object"}}}}));
  spec_of<grammar::JsonObjectSpec>(form_of(Api::kResponses, {{"text", {{"format", {{"type", "json_object"}}}}}}));
  EXPECT_FALSE(form_of(Api::kChat, {{"response_format", {{"type", "text"}}}}).has_value());
  EXPECT_FALSE(form_of(Api::kChat, Json::object()).has_value());
}

TEST(StructuredOutput, FieldsOfVllmInEveryFormat) {
  for (const Api api : {Api::kChat, Api::kCompletions, Api::kResponses, Api::kMessages}) {
    const auto with = [&](const Json& fields) { return form_of(api, {{"structured_outputs", fields}}); };
    EXPECT_EQ(spec_of<grammar::JsonSchemaSpec>(with({{"json", kSchema}})).schema, kSchemaText);
    EXPECT_EQ(spec_of<grammar::JsonSchemaSpec>(with({{"json", kSchemaText}})).schema, kSchemaText);
    EXPECT_EQ(spec_of<grammar::RegexSpec>(with({{"regex", "a+"}})).pattern, "a+");
    EXPECT_EQ(spec_of<grammar::EbnfSpec>(with({{"grammar", "root ::= \"a\""}})).text, "root ::= \"a\"");
    EXPECT_EQ(spec_of<grammar::ChoiceSpec>(with({{"choice", {"a", "b"}}})).choices, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(spec_of<grammar::JsonSchemaSpec>(with({{"json_object", true}})).schema, R"({"type":"object"})");
    EXPECT_EQ(spec_of<grammar::JsonSchemaSpec>(with({{"json", kSchema}, {"disable_any_whitespace", true}})).space,
              grammar::JsonSpace::kCompact);
    EXPECT_EQ(spec_of<grammar::JsonSchemaSpec>(form_of(api, {{"guided_json", kSchema}})).schema, kSchemaText);
    EXPECT_EQ(spec_of<grammar::RegexSpec>(form_of(api, {{"guided_regex", "a+"}})).pattern, "a+");
    EXPECT_EQ(spec_of<grammar::EbnfSpec>(form_of(api, {{"guided_grammar", "g"}})).text, "g");
    EXPECT_EQ(spec_of<grammar::ChoiceSpec>(form_of(api, {{"guided_choice", {"x"}}})).choices, std::vector<std::string>{"x"});
    const std::string name = std::string(api_name(api));
    const auto error = [&](const Json& fields) { return error_of(api, {{"structured_outputs", fields}}); };
    EXPECT_EQ(error(Json::object()), "structured_outputs: one of json, regex, choice, grammar and json_object is required")
        << name;
    EXPECT_EQ(error({{"regex", "a"}, {"json", kSchema}}),
              "structured_outputs.regex: excludes structured_outputs.json: one format at a time");
    EXPECT_EQ(error({{"structural_tag", "x"}}), "structured_outputs.structural_tag: is not supported");
    EXPECT_EQ(error({{"choice", Json::array()}}), "structured_outputs.choice: at least one choice is required");
    EXPECT_EQ(error({{"choice", {1}}}), "structured_outputs.choice[0]: expected a string, got a number 1");
    EXPECT_EQ(error({{"regex", 5}}), "structured_outputs.regex: expected a string, got a number 5");
    EXPECT_EQ(error({{"json", 5}}), "structured_outputs.json: expected a JSON Schema, got a number 5");
    EXPECT_EQ(error_of(api, {{"guided_regex", "a"}, {"structured_outputs", {{"grammar", "g"}}}}),
              "structured_outputs.grammar: excludes guided_regex: one format at a time");
  }
  EXPECT_EQ(error_of(Api::kChat, {{"response_format", {{"type", "json_object"}}}, {"structured_outputs", {{"regex", "a"}}}}),
            "structured_outputs.regex: excludes response_format: one format at a time");
  EXPECT_EQ(error_of(Api::kMessages, {{"output_format", {{"type", "json_schema"}, {"schema", kSchema}}},
                                      {"output_config", {{"format", {{"type", "json_schema"}, {"schema", kSchema}}}}}}),
            "output_format: excludes output_config.format: one format at a time");
}

Json tool(Api api, const char* name, std::optional<bool> strict) {
  Json function{{"name", name}};
  function[api == Api::kMessages ? "input_schema" : "parameters"] = kSchema;
  if (strict.has_value()) function["strict"] = *strict;
  if (api == Api::kChat) return {{"type", "function"}, {"function", function}};
  if (api == Api::kResponses) function["type"] = "function";
  return function;
}

/// In Messages `any` is as `auto` (spec §10), and a call is certain where a tool is named.
Json required(Api api) { return api == Api::kMessages ? Json{{"type", "tool"}, {"name", "f"}} : Json("required"); }

TEST(StructuredOutput, ToolsOfEveryFormat) {
  for (const Api api : {Api::kChat, Api::kResponses, Api::kMessages}) {
    const Json plain = Json::array({tool(api, "f", std::nullopt), tool(api, "g", false)});
    const Json strict = Json::array({tool(api, "f", true), tool(api, "g", false)});
    EXPECT_FALSE(form_of(api, {{"tools", plain}}).has_value()) << "nothing was asked for";
    const auto automatic = form_of(api, {{"tools", strict}});
    const DsmlSpec a = spec_of<DsmlSpec>(automatic);
    EXPECT_EQ(a.mode, DsmlSpec::Mode::kAuto);
    ASSERT_EQ(a.tools.size(), 2u);
    EXPECT_EQ(a.tools[0].name, "f");
    EXPECT_TRUE(a.tools[0].strict);
    EXPECT_FALSE(a.tools[1].strict);
    EXPECT_TRUE(a.parallel);
    EXPECT_FALSE(a.answer.has_value());
    EXPECT_EQ(Json::parse(a.tools[0].parameters), kSchema);

    const DsmlSpec r = spec_of<DsmlSpec>(form_of(api, {{"tools", plain}, {"tool_choice", required(api)}}));
    EXPECT_EQ(r.mode, DsmlSpec::Mode::kInside) << "the prompt has opened the block";
    EXPECT_FALSE(r.tools[0].strict);

    // After thinking the model has to open it.
    Json thinking{{"tools", plain}, {"tool_choice", required(api)}};
    if (api == Api::kResponses) {
      thinking["reasoning"] = {{"effort", "high"}};
    } else {
      thinking["thinking"] = {{"type", "enabled"}};
    }
    const auto later = form_of(api, thinking);
    EXPECT_EQ(spec_of<DsmlSpec>(later).mode, DsmlSpec::Mode::kRequired);
    EXPECT_EQ(later->start_after, kThinkEnd);

    // A format beside tools: an answer in it, or calls.
    const Json format{{"regex", "a+"}};
    const DsmlSpec both = spec_of<DsmlSpec>(form_of(api, {{"tools", plain}, {"structured_outputs", format}}));
    EXPECT_EQ(both.mode, DsmlSpec::Mode::kAuto);
    EXPECT_EQ(both.answer, grammar::AnswerSpec(grammar::RegexSpec{"a+"}));
    const DsmlSpec& calls =
        spec_of<DsmlSpec>(form_of(api, {{"tools", plain}, {"structured_outputs", format}, {"tool_choice", required(api)}}));
    EXPECT_FALSE(calls.answer.has_value());
    GenerationPolicy old = policy();
    old.version = ModelVersion::kV4;
    EXPECT_TRUE(spec_of<DsmlSpec>(form_of(api, {{"tools", strict}}, old)).v4);
  }
  const Json two = Json::array({tool(Api::kChat, "f", true), tool(Api::kChat, "g", true)});
  const auto named = form_of(
      Api::kChat,
      {{"tools", two}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "g"}}}}}, {"parallel_tool_calls", false}});
  ASSERT_EQ(spec_of<DsmlSpec>(named).tools.size(), 1u);
  EXPECT_EQ(spec_of<DsmlSpec>(named).tools[0].name, "g");
  EXPECT_FALSE(spec_of<DsmlSpec>(named).parallel);
  const auto none = form_of(Api::kChat, {{"tools", two}, {"tool_choice", "none"}, {"structured_outputs", {{"regex", "a"}}}});
  EXPECT_EQ(spec_of<grammar::RegexSpec>(none).pattern, "a");
}

TEST(StructuredOutput, ContinuesAPrefixOrThinks) {
  const Json format{{"regex", "abc"}};
  const auto with = [&](const Json& assistant, const char* thinking) {
    Json message{{"role", "assistant"}, {"prefix", true}};
    message.update(assistant);
    return form_of(Api::kChat, {{"messages", Json::array({{{"role", "user"}, {"content", "q"}}, message})},
                                {"thinking", {{"type", thinking}}},
                                {"structured_outputs", format}});
  };
  const auto plain = with({{"content", "ab"}}, "disabled");
  EXPECT_EQ(plain->prefix, "ab");
  EXPECT_FALSE(plain->start_after.has_value());
  const auto thought = with({{"content", "ab"}, {"reasoning_content", "r"}}, "enabled");
  EXPECT_EQ(thought->prefix, "ab");
  EXPECT_FALSE(thought->start_after.has_value()) << "the thinking is over";
  const auto thinks = with({{"content", ""}, {"reasoning_content", "r"}}, "enabled");
  EXPECT_EQ(thinks->prefix, "");
  EXPECT_EQ(thinks->start_after, kThinkEnd);
}

TEST(StructuredOutput, AServerWithoutAGrammarRefusesByField) {
  const auto refused = [](Api api, const Json& more) {
    const auto request = parse_request(api, body_of(api, more).dump());
    EXPECT_TRUE(request.has_value()) << request.error().message;
    const auto engine = to_engine_request(*request, {1}, GenerationPolicy());
    return engine.has_value() ? "" : engine.error().message;
  };
  EXPECT_EQ(refused(Api::kChat, {{"structured_outputs", {{"regex", "a"}}}}),
            "structured_outputs.regex: regex is not supported by this server");
  EXPECT_EQ(refused(Api::kResponses, {{"text", {{"format", {{"type", "json_schema"}, {"schema", kSchema}}}}}}),
            "text.format.schema: json_schema is not supported by this server");
  EXPECT_EQ(refused(Api::kMessages, {{"structured_outputs", {{"choice", {"a"}}}}}),
            "structured_outputs.choice: choice is not supported by this server");
  EXPECT_EQ(refused(Api::kChat, {{"response_format", {{"type", "json_object"}}}}), "") << "the prompt asks for it";
}

}  // namespace
}  // namespace deepinfer
