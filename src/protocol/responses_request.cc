// OpenAI Responses to the neutral form (spec/protocol §11). Stateless: a response is never looked up.

#include <algorithm>
#include <unordered_map>

#include "protocol/api.h"
#include "protocol/responses_tools.h"
#include "protocol/structured_fields.h"

namespace deepinfer {
namespace {

using Role = Message::Role;

constexpr std::string_view kUnsupportedDocument = "[Unsupported Document]";

/// Calls whose outputs are due, and those that have come.
struct CallGroup {
  struct Entry {
    ToolCall call;
    std::optional<Message> output;
  };
  std::vector<Entry> entries;
  size_t pending = 0;
};

/// In place: a request may have many pieces.
void append_line(std::optional<std::string>& to, const std::string& text) {
  if (to.has_value()) {
    *to += '\n';
    *to += text;
  } else {
    to = text;
  }
}

class ResponsesParser {
 public:
  ResponsesParser(const ObjectInput& in, const ConversionOptions& options) : in_(in), options_(options) {
    out_.api = Api::kResponses;
  }

  ApiResult<ConvertedRequest> run() {
    DI_API_ASSIGN(out_.model, in_.required_string("model"));
    DI_API_RETURN_IF_ERROR(parameters());
    DI_API_ASSIGN(const std::optional<ObjectInput> reasoning, in_.object("reasoning"));
    const Json* effort = reasoning.has_value() ? reasoning->find("effort") : nullptr;
    DI_API_RETURN_IF_ERROR(read_thinking(in_, effort, "reasoning.effort", options_, out_));
    DI_API_RETURN_IF_ERROR(text_format());
    DI_API_RETURN_IF_ERROR(read_structured_outputs(in_, options_, out_.conversation.response_format));
    DI_API_RETURN_IF_ERROR(tools());
    DI_API_RETURN_IF_ERROR(input());
    const auto mentions = [](const Message& m) { return mentions_json(m.content); };
    const std::vector<Message>& messages = out_.conversation.messages;
    if (out_.conversation.response_format.kind == ResponseFormat::Kind::kJsonObject &&
        std::none_of(messages.begin(), messages.end(), mentions)) {
      return Fail(
          ApiError::Invalid("Response input messages must contain the word 'json' to use text.format of type json_object"));
    }
    return finish_request(std::move(out_), options_);
  }

 private:
  ApiResult<void> parameters() {
    GenerationOptions& g = out_.generation;
    DI_API_RETURN_IF_ERROR(read_max_tokens(in_, "max_output_tokens", g));
    DI_API_RETURN_IF_ERROR(read_temperature(in_, g));
    DI_API_RETURN_IF_ERROR(read_extensions(in_, g));
    DI_API_ASSIGN(const std::optional<bool> stream, in_.boolean("stream"));
    out_.stream = stream.value_or(false);
    DI_API_ASSIGN(const std::optional<int64_t> top, in_.integer("top_logprobs", 0, kMaxLogprobs));
    DI_API_ASSIGN(const Json* include, in_.array("include", options_.max_messages));
    const bool wanted =
        include != nullptr && std::find(include->begin(), include->end(), "message.output_text.logprobs") != include->end();
    if (wanted || top.value_or(0) > 0) g.logprobs = top.value_or(0);
    DI_API_ASSIGN(const std::optional<bool> parallel, in_.boolean("parallel_tool_calls"));
    out_.conversation.parallel_tool_calls = parallel.value_or(true);
    for (const std::string_view field : {"previous_response_id", "conversation"}) {
      if (in_.find(field) != nullptr)
        out_.warnings.push_back(fmt::format("{}: ignored, responses are not stored: the history must be in input", field));
    }
    return {};
  }

  ApiResult<void> text_format() {
    DI_API_ASSIGN(const std::optional<ObjectInput> text, in_.object("text"));
    if (!text.has_value()) return {};
    DI_API_ASSIGN(const std::optional<ObjectInput> format, text->object("format"));
    if (!format.has_value()) return {};
    DI_API_ASSIGN(const std::string type, format->required_string("type"));
    ResponseFormat& out = out_.conversation.response_format;
    if (type == "text") return {};
    if (type == "json_object") {
      out.kind = ResponseFormat::Kind::kJsonObject;
      out.field = format->path();
      return {};
    }
    if (type != "json_schema")
      return Fail(ApiError::Field(format->at("type"), "expected text, json_object or json_schema, got {}", json_excerpt(type)));
    if (options_.structured_output == ConversionOptions::StructuredOutput::kIgnore) return {};
    DI_API_ASSIGN(out, read_json_schema(*format));
    return {};
  }

  ApiResult<void> tools() {
    DI_API_ASSIGN(const Json* list, in_.array("tools", options_.max_tools));
    DI_API_RETURN_IF_ERROR(tools_.read(list, options_));
    out_.custom_tool_names = tools_.custom_names();
    out_.conversation.tools = tools_.tools();
    DI_API_ASSIGN(const ChoiceOfTool choice, tool_choice());
    return apply_tool_choice(choice, options_, out_);
  }

  ApiResult<ChoiceOfTool> tool_choice() {
    DI_API_ASSIGN(const std::optional<ChoiceOfTool> word, read_tool_choice_word(in_, "tool"));
    if (word.has_value()) return *word;
    DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of(*in_.find("tool_choice"), "tool_choice"));
    DI_API_ASSIGN(const std::string type, in.required_string("type"));
    if (type.starts_with("web_search")) {
      if (!options_.responses_web_search_ignored) return Fail(ApiError::Invalid("Server tools are not supported"));
      return ChoiceOfTool{};
    }
    if (type != "function" && type != "custom")
      return Fail(ApiError::Field("tool_choice.type", "expected function or custom, got {}", json_excerpt(type)));
    DI_API_ASSIGN(std::string name, in.required_string("name"));
    DI_API_ASSIGN(const std::optional<std::string> space, in.string("namespace"));
    if (space.has_value()) name = tools_.member_name(*space, name);
    return ChoiceOfTool{ToolChoice::kRequired, std::move(name)};
  }

  ApiResult<void> input() {
    DI_API_ASSIGN(const std::optional<std::string> instructions, in_.string("instructions"));
    const Json* input = in_.find("input");
    if (input == nullptr && instructions.value_or("").empty())
      return Fail(ApiError::Invalid("Either input or instructions must be provided"));
    std::vector<Message>& out = out_.conversation.messages;
    if (!instructions.value_or("").empty()) out.push_back(Message::System(*instructions));
    if (input == nullptr) return {};
    if (input->is_string()) {
      out.push_back(Message::User(input->get<std::string>()));
      return {};
    }
    DI_API_ASSIGN(const Json* items, in_.array("input", options_.max_messages));
    if (items->empty()) return Fail(ApiError::Invalid("Input items array must not be empty"));
    for (size_t i = 0; i < items->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of((*items)[i], fmt::format("input[{}]", i)));
      DI_API_RETURN_IF_ERROR(item(in));
    }
    return nothing_pending();
  }

  ApiResult<void> item(const ObjectInput& in) {
    DI_API_ASSIGN(const std::optional<std::string> given, in.string("type"));
    const std::string type = given.value_or("message");
    if (type == "message") return message(in);
    if (type == "reasoning") return reasoning(in);
    if (type == "function_call" || type == "custom_tool_call") return call(in, type == "custom_tool_call");
    if (type == "function_call_output" || type == "custom_tool_call_output") return output(in);
    return {};
  }

  ApiResult<void> nothing_pending() const {
    if (group_.pending == 0) return {};
    for (const CallGroup::Entry& entry : group_.entries) {
      if (!entry.output.has_value()) return Fail(ApiError::Invalid("No tool output found for tool call {}.", entry.call.id));
    }
    return {};
  }

  ApiResult<void> message(const ObjectInput& in) {
    DI_API_RETURN_IF_ERROR(nothing_pending());
    DI_API_ASSIGN(const std::string role, in.required_string("role"));
    Message m;
    if (role == "user" || role == "developer") {
      m.role = Role::kUser;
    } else if (role == "system") {
      m.role = Role::kSystem;
    } else if (role == "assistant") {
      m.role = Role::kAssistant;
    } else {
      return Fail(ApiError::Field(in.at("role"), "expected user, assistant, system or developer, got {}", json_excerpt(role)));
    }
    DI_API_RETURN_IF_ERROR(content(in, "content", m));
    if (!m.images.empty() && m.role == Role::kSystem) return Fail(ApiError::Invalid("Image in system message is unsupported"));
    if (!m.images.empty() && m.role == Role::kAssistant)
      return Fail(ApiError::Invalid("Image in assistant message is unsupported"));
    std::vector<Message>& out = out_.conversation.messages;
    if (m.role != Role::kAssistant) {
      thought_.reset();
      out.push_back(std::move(m));
      return {};
    }
    if (!out.empty() && out.back().role == Role::kAssistant && out.back().tool_calls.empty()) {
      Message& last = out.back();
      if (!last.content.empty() && !m.content.empty()) last.content += "\n\n";
      last.content += m.content;
    } else {
      out.push_back(std::move(m));
    }
    attach_reasoning(out.back());
    return {};
  }

  ApiResult<void> reasoning(const ObjectInput& in) {
    DI_API_RETURN_IF_ERROR(nothing_pending());
    DI_API_ASSIGN(const Json* parts, in.array("content", options_.max_messages));
    std::optional<std::string> text;
    for (size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput part, ObjectInput::Of((*parts)[i], fmt::format("{}.content[{}]", in.path(), i)));
      DI_API_ASSIGN(const std::string t, part.required_string("text"));
      append_line(text, t);
    }
    if (text.has_value()) append_line(thought_, *text);
    return {};
  }

  void attach_reasoning(Message& m) {
    if (!thought_.has_value()) return;
    append_line(m.reasoning, *thought_);
    thought_.reset();
  }

  ApiResult<std::string> call_id(const ObjectInput& in) {
    DI_API_ASSIGN(std::string id, in.required_string("call_id"));
    if (id.empty()) {
      return Fail(ApiError::Invalid(
          "Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty string instead.",
          in.at("call_id")));
    }
    return id;
  }

  ApiResult<void> call(const ObjectInput& in, bool custom) {
    DI_API_ASSIGN(std::string id, call_id(in));
    if (!answered_.emplace(id, false).second) return Fail(ApiError::Invalid("Duplicate 'call_id': {}.", id));
    DI_API_ASSIGN(std::string name, in.required_string("name"));
    DI_API_ASSIGN(const std::optional<std::string> space, in.string("namespace"));
    if (space.has_value()) name = tools_.member_name(*space, name);
    std::string arguments;
    if (custom) {
      DI_API_ASSIGN(const std::string text, in.required_string("input"));
      arguments = wire_json(Json{{"input", text}});
    } else {
      DI_API_ASSIGN(arguments, in.required_string("arguments"));
    }
    places_[id] = group_.entries.size();
    group_.entries.push_back({ToolCall{std::move(id), std::move(name), std::move(arguments)}, {}});
    ++group_.pending;
    return {};
  }

  ApiResult<void> output(const ObjectInput& in) {
    DI_API_ASSIGN(const std::string id, call_id(in));
    const auto known = answered_.find(id);
    if (known == answered_.end()) return Fail(ApiError::Invalid("No tool call found for tool output with call_id {}.", id));
    if (known->second) return Fail(ApiError::Invalid("Duplicate tool output for call_id: {}.", id));
    known->second = true;
    Message m{.role = Role::kTool};
    m.tool_call_id = id;
    DI_API_RETURN_IF_ERROR(content(in, "output", m));
    group_.entries[places_[id]].output = std::move(m);
    if (--group_.pending == 0) close_group();
    return {};
  }

  /// Calls by id to the last assistant message, then their results.
  void close_group() {
    std::vector<CallGroup::Entry> entries = std::move(group_.entries);
    group_ = {};
    places_.clear();
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.call.id < b.call.id; });
    std::vector<Message>& out = out_.conversation.messages;
    if (out.empty() || out.back().role != Role::kAssistant) out.push_back(Message::Assistant(""));
    attach_reasoning(out.back());
    for (CallGroup::Entry& entry : entries) out.back().tool_calls.push_back(std::move(entry.call));
    for (CallGroup::Entry& entry : entries) out.push_back(std::move(*entry.output));
  }

  ApiResult<void> content(const ObjectInput& in, std::string_view key, Message& m) {
    const Json* value = in.find(key);
    if (value == nullptr) return Fail(ApiError::Field(in.at(key), "a string or an array is required"));
    if (value->is_string()) {
      m.content = value->get<std::string>();
      return {};
    }
    DI_API_ASSIGN(const Json* blocks, in.array(key, options_.max_messages));
    ContentBuilder builder;
    for (size_t i = 0; i < blocks->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput block, ObjectInput::Of((*blocks)[i], fmt::format("{}[{}]", in.at(key), i)));
      DI_API_ASSIGN(const std::string type, block.required_string("type"));
      if (type == "input_text" || type == "output_text") {
        DI_API_ASSIGN(const std::string text, block.required_string("text"));
        builder.text(text);
      } else if (type == "input_image") {
        DI_API_ASSIGN(ImageRef image, this->image(block));
        builder.image(std::move(image));
      } else if (type == "input_file") {
        builder.text(kUnsupportedDocument);
      } else {
        return Fail(ApiError::Invalid("Unsupported content block"));
      }
    }
    builder.finish(m);
    return {};
  }

  ApiResult<ImageRef> image(const ObjectInput& block) {
    DI_API_ASSIGN(const std::optional<std::string> url, block.string("image_url"));
    DI_API_ASSIGN(const std::optional<std::string> file, block.string("file_id"));
    const bool has_url = !url.value_or("").empty();
    const bool has_file = !file.value_or("").empty();
    if (has_url && has_file)
      return Fail(ApiError::Invalid("{}: input_image cannot have both image_url and file_id", block.path()));
    if (has_file) {
      return Fail(ApiError::Invalid("{}: file_id is not supported. Pass the image as a base64 data url instead.", block.path()));
    }
    if (!has_url) return Fail(ApiError::Invalid("{}: input_image must have image_url or file_id", block.path()));
    DI_API_ASSIGN(ImageRef image, read_image_url(*url, block.at("image_url")));
    DI_API_ASSIGN(image.detail, read_detail(block));
    return image;
  }

  const ObjectInput& in_;
  const ConversionOptions& options_;
  ConvertedRequest out_;
  ResponsesTools tools_;
  CallGroup group_;
  std::unordered_map<std::string, size_t> places_;  ///< of the group's calls
  std::unordered_map<std::string, bool> answered_;  ///< every call of the input
  std::optional<std::string> thought_;              ///< reasoning that waits for its message or call
};

}  // namespace

ApiResult<ConvertedRequest> parse_responses_request(std::string_view body, const ConversionOptions& options) {
  DI_API_ASSIGN(const Json json, parse_json(body, json_limits(options)));
  DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of(json, ""));
  return ResponsesParser(in, options).run();
}

}  // namespace deepinfer
