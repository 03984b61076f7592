#include "protocol/vectors.h"

#include <fstream>

#include "testing/paths.h"

namespace deepinfer::testing {

Json read_vectors(const std::string& name) {
  std::ifstream file(source_dir() + "/tests/data/protocol/" + name + ".json");
  EXPECT_TRUE(file.good()) << name;
  return Json::parse(file);
}

void for_each_case(const std::string& name, size_t expected, const std::function<void(const Json&)>& test) {
  const Json data = read_vectors(name);
  for (const Json& one : data.at("cases")) {
    SCOPED_TRACE(name + ": " + one.at("id").get<std::string>());
    test(one);
  }
  EXPECT_EQ(data.at("cases").size(), expected);
}

Api api_of(const Json& test) {
  const std::string api = test.at("api");
  return api == "chat" ? Api::kChat : api == "messages" ? Api::kMessages : Api::kResponses;
}

ModelVersion version_of(const Json& test) { return test.at("model_version") == "v4" ? ModelVersion::kV4 : ModelVersion::kV4_1; }

ConversionOptions conversion_options(const Json& test) {
  ConversionOptions options = ConversionOptions::Reference();
  options.reject_image_placeholder = test.value("confidence", "") == "reference-0.1";
  const Json given = test.value("options", Json::object());
  options.default_thinking = given.value("default_thinking_mode", true);
  options.messages_web_search_ignored = given.value("messages_web_search", "reject") == "ignore";
  options.responses_web_search_ignored = given.value("responses_web_search", "ignore") == "ignore";
  return options;
}

ParsingOptions parsing_options(const Json& options) {
  ParsingOptions out;
  out.parse_tool_calls = options.value("parse_tool_calls", false);
  out.tool_call_initial_stage = options.value("tool_call_initial_stage", false);
  out.parse_json_output = options.value("parse_json_output", false);
  const auto stage = options.find("reasoning_initial_stage");
  if (stage != options.end() && stage->is_string()) {
    out.reasoning_initial_stage = *stage == "start"       ? ReasoningStage::kStart
                                  : *stage == "reasoning" ? ReasoningStage::kReasoning
                                                          : ReasoningStage::kContent;
  }
  out.stop_sequences = options.value("stop_sequences", std::vector<std::string>());
  return out;
}

ModelFinish model_finish(const Json& name) {
  if (name.is_null()) return ModelFinish::kEndOfStream;
  return name == "stop" ? ModelFinish::kStop : name == "length" ? ModelFinish::kLength : ModelFinish::kContentFilter;
}

ReadOutput read_output(const ParsingOptions& options, const std::vector<std::string>& chunks, const Json& finish) {
  OutputReader reader(options, nullptr);
  std::vector<OutputEvent> events;
  for (const std::string& chunk : chunks) reader.push({.text = chunk, .tokens = 1}, events);
  reader.push({.finish = model_finish(finish)}, events);
  ReadOutput out;
  out.completion_tokens = reader.completion_tokens();
  constexpr const char* kNames[] = {"text", "reasoning", "tool_call", "tool_arguments"};
  constexpr const char* kReasons[] = {"stop", "stop_sequence", "tool_calls", "length", "content_filter", "end_of_stream"};
  for (const OutputEvent& event : events) {
    if (event.kind == OutputEvent::Kind::kFinish) {
      out.items.push_back({{"type", "finish"},
                           {"reason", kReasons[static_cast<int>(event.finish)]},
                           {"stop_sequence", event.stop_sequence.has_value() ? Json(*event.stop_sequence) : Json(nullptr)}});
    } else if (event.kind == OutputEvent::Kind::kToolCall) {
      out.items.push_back({{"type", "tool_call"}, {"name", event.text}});
    } else {
      EXPECT_TRUE(event.kind == OutputEvent::Kind::kToolArguments || !event.text.empty());
      if (event.text.empty()) continue;
      const char* const type = kNames[static_cast<int>(event.kind)];
      if (!out.items.empty() && out.items.back()["type"] == type) {
        out.items.back()["text"].get_ref<std::string&>() += event.text;
      } else {
        out.items.push_back({{"type", type}, {"text", event.text}});
      }
    }
  }
  return out;
}

std::vector<size_t> character_borders(const std::string& text) {
  std::vector<size_t> borders;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) borders.push_back(i);
  }
  return borders;
}

}  // namespace deepinfer::testing
