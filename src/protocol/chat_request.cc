// Chat Completions to the neutral form (spec/protocol §9).

#include <unordered_set>

#include "protocol/api.h"
#include "protocol/request_fields.h"
#include "protocol/structured_fields.h"

namespace deepinfer {
namespace {

using Role = Message::Role;

class ChatParser {
 public:
  ChatParser(const ObjectInput& in, const ConversionOptions& options) : in_(in), options_(options) { out_.api = Api::kChat; }

  ApiResult<ConvertedRequest> run() {
    DI_API_ASSIGN(out_.model, in_.required_string("model"));
    DI_API_RETURN_IF_ERROR(parameters());
    DI_API_RETURN_IF_ERROR(read_thinking(in_, in_.find("reasoning_effort"), "reasoning_effort", options_, out_));
    DI_API_RETURN_IF_ERROR(read_response_format(in_, options_, out_.conversation.response_format));
    DI_API_RETURN_IF_ERROR(read_structured_outputs(in_, options_, out_.conversation.response_format));
    DI_API_RETURN_IF_ERROR(tools());
    DI_API_RETURN_IF_ERROR(messages());
    DI_API_RETURN_IF_ERROR(check_results());
    if (out_.conversation.response_format.kind == ResponseFormat::Kind::kJsonObject && !mentions_) {
      return Fail(
          ApiError::Invalid("Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'."));
    }
    drop_empty_systems();
    return finish_request(std::move(out_), options_);
  }

 private:
  ApiResult<void> parameters() {
    GenerationOptions& g = out_.generation;
    DI_API_RETURN_IF_ERROR(read_max_tokens(in_, "max_tokens", g));
    if (!g.max_tokens.has_value()) DI_API_RETURN_IF_ERROR(read_max_tokens(in_, "max_completion_tokens", g));
    DI_API_RETURN_IF_ERROR(read_temperature(in_, g));
    DI_API_RETURN_IF_ERROR(read_openai_sampling(in_, options_, g));
    DI_API_ASSIGN(out_.parsing.stop_sequences, read_openai_stop(in_));
    DI_API_RETURN_IF_ERROR(read_stream(in_, out_.stream, out_.include_usage));
    DI_API_RETURN_IF_ERROR(read_extensions(in_, g));
    DI_API_ASSIGN(const std::optional<bool> logprobs, in_.boolean("logprobs"));
    DI_API_ASSIGN(const std::optional<int64_t> top, in_.integer("top_logprobs", 0, kMaxLogprobs));
    if (top.value_or(0) > 0 && !logprobs.value_or(false))
      return Fail(ApiError::Field("top_logprobs", "needs logprobs = true, got {}", *top));
    if (logprobs.value_or(false)) g.logprobs = top.value_or(0);
    DI_API_RETURN_IF_ERROR(read_prompt_logprobs(in_, out_.stream, g));
    DI_API_ASSIGN(const std::optional<bool> parallel, in_.boolean("parallel_tool_calls"));
    out_.conversation.parallel_tool_calls = parallel.value_or(true);
    return {};
  }

  ApiResult<void> tools() {
    DI_API_ASSIGN(const Json* list, in_.array("tools", options_.max_tools));
    DI_API_ASSIGN(const ChoiceOfTool choice, tool_choice());
    std::unordered_set<std::string> names;
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput tool, ObjectInput::Of((*list)[i], fmt::format("tools.{}", i)));
      DI_API_ASSIGN(const std::string type, tool.required_string("type"));
      if (type != "function") return Fail(ApiError::Field(tool.at("type"), "expected function, got {}", json_excerpt(type)));
      DI_API_ASSIGN(const std::optional<ObjectInput> function, tool.object("function"));
      if (!function.has_value()) return Fail(ApiError::Field(tool.at("function"), "an object is required"));
      DI_API_ASSIGN(std::string name, function->required_string("name"));
      if (!is_tool_name(name)) {
        return Fail(ApiError::Invalid("{}: expected 1-128 ASCII letters, digits, underscores or hyphens", function->at("name")));
      }
      if (!names.insert(name).second) return Fail(ApiError::Invalid("Tool names must be unique"));
      if (choice.choice == ToolChoice::kNone) continue;
      DI_API_ASSIGN(std::optional<std::string> description, function->string("description"));
      DI_API_ASSIGN(const std::optional<bool> strict, function->boolean("strict"));
      const Json* parameters = function->find("parameters");
      if (parameters != nullptr && !is_object_schema(*parameters))
        return Fail(ApiError::Invalid("{} must be a JSON Schema of type object", function->at("parameters")));
      out_.conversation.tools.push_back({.name = std::move(name),
                                         .description = std::move(description),
                                         .parameters = parameters != nullptr ? prompt_json(*parameters) : "{}",
                                         .strict = strict.value_or(false)});
    }
    return apply_tool_choice(choice, options_, out_);
  }

  ApiResult<ChoiceOfTool> tool_choice() {
    DI_API_ASSIGN(const std::optional<ChoiceOfTool> word, read_tool_choice_word(in_, "function"));
    if (word.has_value()) return *word;
    DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of(*in_.find("tool_choice"), "tool_choice"));
    DI_API_ASSIGN(const std::string type, in.required_string("type"));
    if (type != "function") return Fail(ApiError::Field("tool_choice.type", "expected function, got {}", json_excerpt(type)));
    DI_API_ASSIGN(const std::optional<ObjectInput> function, in.object("function"));
    if (!function.has_value()) return Fail(ApiError::Field("tool_choice.function", "an object is required"));
    DI_API_ASSIGN(std::string name, function->required_string("name"));
    return ChoiceOfTool{ToolChoice::kRequired, std::move(name)};
  }

  ApiResult<void> messages() {
    DI_API_ASSIGN(const Json* list, in_.array("messages", options_.max_messages));
    if (list == nullptr) return Fail(ApiError::Field("messages", "an array is required"));
    if (list->empty()) return Fail(ApiError::Invalid("Empty input messages"));
    for (size_t i = 0; i < list->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of((*list)[i], fmt::format("messages[{}]", i)));
      DI_API_ASSIGN(Message m, message(in, i, i + 1 == list->size()));
      mentions_ = mentions_ || mentions_json(m.content);
      out_.conversation.messages.push_back(std::move(m));
    }
    return {};
  }

  ApiResult<Message> message(const ObjectInput& in, size_t index, bool last) {
    DI_API_ASSIGN(const std::string role, in.required_string("role"));
    Message m;
    if (role == "system" || (role == "developer" && options_.extra_roles_and_blocks)) {
      m.role = Role::kSystem;
    } else if (role == "user") {
      m.role = Role::kUser;
    } else if (role == "assistant") {
      m.role = Role::kAssistant;
    } else if (role == "tool") {
      m.role = Role::kTool;
      DI_API_ASSIGN(m.tool_call_id, in.required_string("tool_call_id"));
    } else if (role == "latest_reminder") {
      m.role = Role::kLatestReminder;
      DI_API_ASSIGN(m.content, in.required_string("content"));
      return m;
    } else {
      return Fail(ApiError::Field(in.at("role"), "expected system, user, assistant, tool or latest_reminder, got {}",
                                  json_excerpt(role)));
    }
    DI_API_ASSIGN(const bool present, content(in, m));
    if (m.role == Role::kAssistant) {
      DI_API_RETURN_IF_ERROR(assistant(in, index, last, present, m));
    } else if (!present) {
      return Fail(ApiError::Field(in.at("content"), "a string or an array is required"));
    }
    return m;
  }

  ApiResult<void> assistant(const ObjectInput& in, size_t index, bool last, bool has_content, Message& m) {
    DI_API_ASSIGN(m.reasoning, in.string("reasoning_content"));
    DI_API_ASSIGN(const std::optional<bool> prefix, in.boolean("prefix"));
    DI_API_ASSIGN(const Json* calls, in.array("tool_calls", options_.max_messages));
    m.prefix = last && prefix.value_or(false) && calls == nullptr;
    if (calls == nullptr) {
      if (!has_content && !(m.prefix && m.reasoning.has_value()))
        return Fail(ApiError::Invalid("Invalid assistant message: content or tool_calls must be set"));
      return {};
    }
    if (calls->empty()) {
      return Fail(
          ApiError::Invalid("Invalid 'messages[{}].tool_calls': empty array. Expected an array with minimum length 1, but got an "
                            "empty array instead.",
                            index));
    }
    std::unordered_set<std::string> ids;
    for (size_t i = 0; i < calls->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput call, ObjectInput::Of((*calls)[i], fmt::format("messages[{}].tool_calls[{}]", index, i)));
      DI_API_ASSIGN(std::string id, call.required_string("id"));
      DI_API_ASSIGN(const std::optional<std::string> type, call.string("type"));
      if (type.value_or("function") != "function")
        return Fail(ApiError::Field(call.at("type"), "expected function, got {}", json_excerpt(*type)));
      DI_API_ASSIGN(const std::optional<ObjectInput> function, call.object("function"));
      if (!function.has_value()) return Fail(ApiError::Field(call.at("function"), "an object is required"));
      DI_API_ASSIGN(std::string name, function->required_string("name"));
      DI_API_ASSIGN(std::string arguments, function->required_string("arguments"));
      if (!ids.insert(id).second)
        return Fail(ApiError::Invalid("Duplicate value for 'tool_call_id' of {} in message[{}]", id, index));
      m.tool_calls.push_back({std::move(id), std::move(name), std::move(arguments)});
    }
    return {};
  }

  /// False: there was none.
  ApiResult<bool> content(const ObjectInput& in, Message& m) {
    const Json* value = in.find("content");
    if (value == nullptr) return false;
    if (value->is_string()) {
      m.content = value->get<std::string>();
      return true;
    }
    if (!value->is_array()) return Fail(wrong_type(in.at("content"), "a string or an array", *value));
    DI_API_RETURN_IF_ERROR(in.array("content", options_.max_messages));
    ContentBuilder builder;
    for (size_t i = 0; i < value->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput block, ObjectInput::Of((*value)[i], fmt::format("{}[{}]", in.at("content"), i)));
      DI_API_RETURN_IF_ERROR(add_block(block, builder));
    }
    if (builder.has_images() && m.role == Role::kSystem) return Fail(ApiError::Invalid("Image in system message is unsupported"));
    if (builder.has_images() && m.role == Role::kAssistant)
      return Fail(ApiError::Invalid("Image in assistant message is unsupported"));
    builder.finish(m);
    return true;
  }

  ApiResult<void> add_block(const ObjectInput& block, ContentBuilder& builder) {
    DI_API_ASSIGN(const std::string type, block.required_string("type"));
    if (type == "text") {
      DI_API_ASSIGN(const std::string text, block.required_string("text"));
      builder.text(text);
    } else if (type == "image_url") {
      DI_API_ASSIGN(const std::optional<ObjectInput> in, block.object("image_url"));
      if (!in.has_value()) return Fail(ApiError::Field(block.at("image_url"), "an object is required"));
      DI_API_ASSIGN(const std::string url, in->required_string("url"));
      DI_API_ASSIGN(ImageRef image, read_image_url(url, in->at("url")));
      DI_API_ASSIGN(image.detail, read_detail(*in));
      builder.image(std::move(image));
    } else if (type == "file") {
      DI_API_ASSIGN(const std::optional<ObjectInput> nested, block.object("file"));
      const ObjectInput& file = nested.has_value() ? *nested : block;
      if (file.find("file_id") != nullptr) {
        return Fail(
            ApiError::Invalid("{}: file_id is not supported. Pass the image as a base64 data url instead.", block.path()));
      }
      DI_API_ASSIGN(const std::optional<std::string> data, file.string("file_data"));
      if (!data.has_value()) return Fail(ApiError::Invalid("{}: file must have file_data", block.path()));
      DI_API_ASSIGN(ImageRef image, read_image_url(*data, file.at("file_data")));
      builder.image(std::move(image));
    } else {
      return Fail(ApiError::Field(block.at("type"), "expected text, image_url or file, got {}", json_excerpt(type)));
    }
    return {};
  }

  /// Every call has its result in the messages right after it, and there is no result without a call.
  ApiResult<void> check_results() {
    constexpr std::string_view kMust =
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.";
    const std::vector<Message>& messages = out_.conversation.messages;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == Role::kTool) {
        return Fail(ApiError::Invalid("Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"));
      }
      if (messages[i].tool_calls.empty()) continue;
      std::unordered_set<std::string_view> due;
      for (const ToolCall& call : messages[i].tool_calls) due.insert(call.id);
      std::unordered_set<std::string_view> seen;
      const size_t end = i + messages[i].tool_calls.size();
      while (i < end) {
        ++i;
        if (i >= messages.size() || messages[i].role != Role::kTool)
          return Fail(ApiError::Invalid("{} (insufficient tool messages following tool_calls message)", kMust));
        const std::string& id = messages[i].tool_call_id;
        if (!due.contains(id)) return Fail(ApiError::Invalid("{} Unexpected tool_call_id: {}", kMust, id));
        if (!seen.insert(id).second)
          return Fail(ApiError::Invalid("Duplicate value for 'tool_call_id' of {} in message[{}]", id, i));
      }
    }
    return {};
  }

  void drop_empty_systems() {
    std::erase_if(out_.conversation.messages, [](const Message& m) { return m.role == Role::kSystem && m.content.empty(); });
  }

  const ObjectInput& in_;
  const ConversionOptions& options_;
  ConvertedRequest out_;
  bool mentions_ = false;
};

}  // namespace

ApiResult<ConvertedRequest> parse_chat_request(std::string_view body, const ConversionOptions& options) {
  DI_API_ASSIGN(const Json json, parse_json(body, json_limits(options)));
  DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of(json, ""));
  return ChatParser(in, options).run();
}

ApiResult<ConvertedRequest> parse_request(Api api, std::string_view body, const ConversionOptions& options) {
  switch (api) {
    case Api::kChat:
      return parse_chat_request(body, options);
    case Api::kMessages:
      return parse_messages_request(body, options);
    case Api::kResponses:
      return parse_responses_request(body, options);
    case Api::kCompletions:
      break;
  }
  return Fail(ApiError::Http(500, "parse_request is for conversations"));
}

}  // namespace deepinfer
