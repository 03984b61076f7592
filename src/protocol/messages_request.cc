// Anthropic Messages to the neutral form (spec/protocol §10).

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "protocol/api.h"
#include "protocol/request_fields.h"
#include "protocol/structured_fields.h"

namespace deepinfer {
namespace {

using Role = Message::Role;

constexpr std::string_view kUnsupportedDocument = "[Unsupported Document]";

class MessagesParser {
 public:
  MessagesParser(const ObjectInput& in, const ConversionOptions& options) : in_(in), options_(options) {
    out_.api = Api::kMessages;
  }

  ApiResult<ConvertedRequest> run() {
    DI_API_ASSIGN(out_.model, in_.required_string("model"));
    DI_API_RETURN_IF_ERROR(parameters());
    DI_API_ASSIGN(const std::optional<ObjectInput> config, in_.object("output_config"));
    const Json* effort = config.has_value() ? config->find("effort") : nullptr;
    DI_API_RETURN_IF_ERROR(read_thinking(in_, effort, "output_config.effort", options_, out_));
    DI_API_RETURN_IF_ERROR(output_format());
    DI_API_RETURN_IF_ERROR(read_structured_outputs(in_, options_, out_.conversation.response_format));
    DI_API_RETURN_IF_ERROR(tools());
    DI_API_RETURN_IF_ERROR(system());
    DI_API_RETURN_IF_ERROR(messages());
    return finish_request(std::move(out_), options_);
  }

 private:
  ApiResult<void> parameters() {
    GenerationOptions& g = out_.generation;
    DI_API_RETURN_IF_ERROR(read_max_tokens(in_, "max_tokens", g));
    DI_API_RETURN_IF_ERROR(read_temperature(in_, g));
    DI_API_RETURN_IF_ERROR(read_extensions(in_, g));
    DI_API_ASSIGN(const std::optional<bool> stream, in_.boolean("stream"));
    out_.stream = stream.value_or(false);
    const Json* stops = in_.find("stop_sequences");
    if (stops == nullptr) return {};
    if (!stops->is_array()) return Fail(wrong_type("stop_sequences", "an array of strings", *stops));
    const std::string must = fmt::format("stop_sequences must contain at most {} non-empty strings", kMaxStopSequences);
    if (stops->size() > kMaxStopSequences) return Fail(ApiError::About("stop_sequences", "{}, got {}", must, stops->size()));
    for (size_t i = 0; i < stops->size(); ++i) {
      const Json& stop = (*stops)[i];
      if (!stop.is_string() || stop.get_ref<const std::string&>().empty())
        return Fail(ApiError::About("stop_sequences", "{}, [{}] is {}", must, i, json_excerpt(stop)));
      if (const size_t size = stop.get_ref<const std::string&>().size(); static_cast<int64_t>(size) > kMaxStopStringBytes) {
        return Fail(
            ApiError::About("stop_sequences", "{}, [{}] has {} bytes, the limit is {}", must, i, size, kMaxStopStringBytes));
      }
    }
    for (const Json& s : *stops) out_.parsing.stop_sequences.push_back(s.get<std::string>());
    return {};
  }

  /// output_config.format, or output_format, as it was called before.
  ApiResult<void> output_format() {
    if (options_.structured_output == ConversionOptions::StructuredOutput::kIgnore) return {};
    DI_API_ASSIGN(const std::optional<ObjectInput> config, in_.object("output_config"));
    std::optional<ObjectInput> format;
    if (config.has_value()) {
      DI_API_ASSIGN(format, config->object("format"));
    }
    DI_API_ASSIGN(std::optional<ObjectInput> older, in_.object("output_format"));
    if (format.has_value() && older.has_value())
      return Fail(ApiError::Field("output_format", "excludes output_config.format: one format at a time"));
    if (older.has_value()) format = std::move(older);
    if (!format.has_value()) return {};
    DI_API_ASSIGN(const std::string type, format->required_string("type"));
    if (type != "json_schema")
      return Fail(ApiError::Field(format->at("type"), "expected json_schema, got {}", json_excerpt(type)));
    DI_API_ASSIGN(out_.conversation.response_format, read_json_schema(*format));
    return {};
  }

  ApiResult<void> tools() {
    DI_API_ASSIGN(const Json* list, in_.array("tools", options_.max_tools));
    std::unordered_set<std::string> names;
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput tool, ObjectInput::Of((*list)[i], fmt::format("tools.{}", i)));
      DI_API_ASSIGN(const std::optional<std::string> type, tool.string("type"));
      if (type.has_value() && !(type == "custom" && options_.extra_roles_and_blocks)) {
        if (options_.messages_web_search_ignored && type->starts_with("web_search")) continue;
        return Fail(ApiError::Invalid("{}: server tools are not supported", tool.path()));
      }
      DI_API_ASSIGN(std::string name, tool.required_string("name"));
      if (!is_tool_name(name))
        return Fail(ApiError::Invalid("{}: expected 1-128 ASCII letters, digits, underscores or hyphens", tool.at("name")));
      if (!names.insert(name).second) return Fail(ApiError::Invalid("Tool names must be unique"));
      DI_API_ASSIGN(std::optional<std::string> description, tool.string("description"));
      DI_API_ASSIGN(const std::optional<bool> strict, tool.boolean("strict"));
      const Json* schema = tool.find("input_schema");
      if (schema == nullptr) return Fail(ApiError::Invalid("{}: missing input_schema", tool.path()));
      if (!is_object_schema(*schema))
        return Fail(ApiError::Invalid("{} must be a JSON Schema of type object", tool.at("input_schema")));
      out_.conversation.tools.push_back({.name = std::move(name),
                                         .description = std::move(description),
                                         .parameters = prompt_json(*schema),
                                         .strict = strict.value_or(false)});
    }
    DI_API_ASSIGN(const ChoiceOfTool choice, tool_choice());
    return apply_tool_choice(choice, options_, out_);
  }

  ApiResult<ChoiceOfTool> tool_choice() {
    DI_API_ASSIGN(const std::optional<ObjectInput> choice, in_.object("tool_choice"));
    if (!choice.has_value()) return ChoiceOfTool{};
    DI_API_ASSIGN(const std::string type, choice->required_string("type"));
    DI_API_ASSIGN(out_.generation.disable_parallel_tool_use, choice->boolean("disable_parallel_tool_use"));
    out_.conversation.parallel_tool_calls = !out_.generation.disable_parallel_tool_use.value_or(false);
    if (type == "auto" || type == "any") return ChoiceOfTool{};
    if (type == "none") return ChoiceOfTool{ToolChoice::kNone, {}};
    if (type != "tool")
      return Fail(ApiError::Field(choice->at("type"), "expected auto, any, none or tool, got {}", json_excerpt(type)));
    DI_API_ASSIGN(std::string name, choice->required_string("name"));
    return ChoiceOfTool{ToolChoice::kRequired, std::move(name)};
  }

  ApiResult<void> system() {
    const Json* value = in_.find("system");
    if (value == nullptr) return {};
    Message m = Message::System("");
    DI_API_RETURN_IF_ERROR(system_text(*value, "system", m.content));
    out_.conversation.messages.push_back(std::move(m));
    return {};
  }

  ApiResult<void> system_text(const Json& value, const std::string& path, std::string& out) {
    if (value.is_string()) {
      out = value.get<std::string>();
      return {};
    }
    if (!value.is_array()) return Fail(wrong_type(path, "a string or an array of blocks", value));
    ContentBuilder builder;
    for (size_t i = 0; i < value.size(); ++i) {
      DI_API_ASSIGN(const ObjectInput block, ObjectInput::Of(value[i], fmt::format("{}[{}]", path, i)));
      DI_API_ASSIGN(const std::string type, block.required_string("type"));
      if (type == "image") return Fail(ApiError::Invalid("Image in system message is unsupported"));
      if (type != "text") return Fail(ApiError::Invalid("Unsupported content block"));
      DI_API_ASSIGN(const std::string text, block.required_string("text"));
      builder.text(text);
    }
    Message m;
    builder.finish(m);
    out = std::move(m.content);
    return {};
  }

  ApiResult<void> messages() {
    DI_API_ASSIGN(const Json* list, in_.array("messages", options_.max_messages));
    if (list == nullptr) return Fail(ApiError::Field("messages", "an array is required"));
    if (list->empty()) return Fail(ApiError::Invalid("messages: at least one message is required"));
    for (size_t i = 0; i < list->size(); ++i) {
      DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of((*list)[i], fmt::format("messages.{}", i)));
      DI_API_RETURN_IF_ERROR(message(in, i));
    }
    if (!due_.empty()) return Fail(unresolved(fmt::format("messages.{}:", caller_)));
    return {};
  }

  ApiResult<void> message(const ObjectInput& in, size_t index) {
    DI_API_ASSIGN(const std::string role, in.required_string("role"));
    if (role != "user" && role != "assistant" && role != "system")
      return Fail(ApiError::Field(in.at("role"), "expected user or assistant, got {}", json_excerpt(role)));
    const Json* content = in.find("content");
    if (content == nullptr) return Fail(ApiError::Field(in.at("content"), "a string or an array is required"));
    if (!content->is_string() && !content->is_array())
      return Fail(wrong_type(in.at("content"), "a string or an array of blocks", *content));
    DI_API_RETURN_IF_ERROR(content->is_array() ? in.array("content", options_.max_messages) : ApiResult<const Json*>(nullptr));
    if (!due_.empty() && (role != "user" || content->is_string())) return Fail(unresolved(fmt::format("messages.{}: ", index)));
    if (content->is_array() && content->empty())
      return Fail(ApiError::Invalid("messages.{}: all messages must have non-empty content", index));
    std::vector<Message>& out = out_.conversation.messages;
    if (role == "system") {
      std::string text;
      DI_API_RETURN_IF_ERROR(system_text(*content, in.at("content"), text));
      out.push_back(Message::User(fmt::format("<system-reminder>\n{}\n</system-reminder>", text)));
      return {};
    }
    if (content->is_string()) {
      out.push_back(role == "user" ? Message::User(content->get<std::string>())
                                   : Message::Assistant(content->get<std::string>()));
      return {};
    }
    if (role == "assistant") return assistant(*content, index);
    for (size_t b = 0; b < content->size(); ++b) {
      DI_API_ASSIGN(const ObjectInput block, ObjectInput::Of((*content)[b], fmt::format("messages.{}.content[{}]", index, b)));
      DI_API_RETURN_IF_ERROR(user_block(block, index, b));
    }
    if (!due_.empty()) return Fail(unresolved(fmt::format("messages.{}:", caller_)));
    return {};
  }

  ApiResult<void> user_block(const ObjectInput& block, size_t index, size_t b) {
    DI_API_ASSIGN(const std::string type, block.required_string("type"));
    if (type == "tool_result") return tool_result(block, index, b);
    if (type == "tool_use")
      return Fail(ApiError::Invalid("messages.{}: `tool_use` blocks can only be in `assistant` messages", index));
    if (type == "thinking" || type == "redacted_thinking")
      return Fail(ApiError::Invalid("messages.{}.content: thinking blocks may only be in `assistant` messages", index));
    if (!due_.empty()) return Fail(unresolved(fmt::format("messages.{}: ", index)));
    ContentBuilder builder;
    DI_API_ASSIGN(const bool known, content_block(block, type, builder));
    if (!known) return server_block(type);
    Message m = Message::User("");
    builder.finish(m);
    out_.conversation.messages.push_back(std::move(m));
    return {};
  }

  ApiResult<void> tool_result(const ObjectInput& block, size_t index, size_t b) {
    DI_API_ASSIGN(std::string id, block.required_string("tool_use_id"));
    if (due_.erase(id) == 0) {
      return Fail(ApiError::Invalid(
          "unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` "
          "block must have a corresponding `tool_use` block in the previous message.",
          index, b, id));
    }
    Message m{.role = Role::kTool};
    m.tool_call_id = std::move(id);
    const Json* content = block.find("content");
    if (content != nullptr && content->is_string()) {
      m.content = content->get<std::string>();
    } else if (content != nullptr) {
      DI_API_ASSIGN(const Json* blocks, block.array("content", options_.max_messages));
      ContentBuilder builder;
      for (size_t i = 0; i < blocks->size(); ++i) {
        DI_API_ASSIGN(const ObjectInput inner, ObjectInput::Of((*blocks)[i], fmt::format("{}.content[{}]", block.path(), i)));
        DI_API_ASSIGN(const std::string type, inner.required_string("type"));
        DI_API_ASSIGN(const bool known, content_block(inner, type, builder));
        if (!known) DI_API_RETURN_IF_ERROR(server_block(type));
      }
      builder.finish(m);
    }
    out_.conversation.messages.push_back(std::move(m));
    return {};
  }

  /// Text, image, tool_reference or document into `builder`; false for other types.
  ApiResult<bool> content_block(const ObjectInput& block, const std::string& type, ContentBuilder& builder) {
    if (type == "text") {
      DI_API_ASSIGN(const std::string text, block.required_string("text"));
      builder.text(text);
    } else if (type == "image") {
      DI_API_ASSIGN(ImageRef image, this->image(block));
      builder.image(std::move(image));
    } else if (type == "tool_reference") {
      DI_API_ASSIGN(const std::string name, block.required_string("tool_name"));
      builder.text(name);
    } else if (type == "document") {
      builder.text(kUnsupportedDocument);
    } else {
      return false;
    }
    return true;
  }

  ApiResult<ImageRef> image(const ObjectInput& block) {
    DI_API_ASSIGN(const std::optional<ObjectInput> source, block.object("source"));
    if (!source.has_value()) return Fail(ApiError::Field(block.at("source"), "an object is required"));
    DI_API_ASSIGN(const std::string type, source->required_string("type"));
    if (type == "file") {
      return Fail(ApiError::Invalid("{}: file_id is not supported. Pass the image as a base64 data url instead.", block.path()));
    }
    if (type == "url") {
      DI_API_ASSIGN(const std::string url, source->required_string("url"));
      auto image = read_image_url(url, source->at("url"));
      if (!image ? url.size() <= 8192 : image->kind != ImageRef::Kind::kUrl)
        return Fail(ApiError::Invalid("{}: invalid url: {}", block.path(), json_excerpt(url)));
      return image;
    }
    if (type != "base64") return Fail(ApiError::Field(source->at("type"), "expected base64 or url, got {}", json_excerpt(type)));
    DI_API_ASSIGN(std::string media, source->required_string("media_type"));
    DI_API_ASSIGN(const std::string data, source->required_string("data"));
    media = media.substr(0, media.find(';'));
    while (!media.empty() && media.back() == ' ') media.pop_back();
    std::transform(media.begin(), media.end(), media.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (media == "image/jpg") media = "image/jpeg";
    if (media != "image/jpeg" && media != "image/png" && media != "image/gif" && media != "image/webp") {
      return Fail(
          ApiError::Invalid("{}: You have uploaded an unsupported image. Please make sure your image is valid and has one of the "
                            "following formats: webp, png, jpeg, and gif.",
                            block.path()));
    }
    return ImageRef{.kind = ImageRef::Kind::kDataUrl, .url = fmt::format("data:{};base64,{}", media, pad_base64(data))};
  }

  /// What is left: blocks of server tools, and unknown ones.
  ApiResult<void> server_block(std::string_view type) {
    if (type == "server_tool_use" || type == "web_search_tool_result") {
      if (options_.messages_web_search_ignored) return {};
      return Fail(ApiError::Invalid("Unsupported content block: server tools are not supported"));
    }
    return Fail(ApiError::Invalid("Unsupported content block"));
  }

  ApiResult<void> assistant(const Json& blocks, size_t index) {
    Message m{.role = Role::kAssistant};
    ContentBuilder text;
    ContentBuilder thoughts;
    bool thought = false;
    for (size_t b = 0; b < blocks.size(); ++b) {
      DI_API_ASSIGN(const ObjectInput block, ObjectInput::Of(blocks[b], fmt::format("messages.{}.content[{}]", index, b)));
      DI_API_ASSIGN(const std::string type, block.required_string("type"));
      if (type == "tool_result")
        return Fail(ApiError::Invalid("messages.{}: `tool_result` blocks can only be in `user` messages", index));
      if (type == "thinking") {
        DI_API_ASSIGN(const std::string thinking, block.required_string("thinking"));
        thoughts.text(thinking);
        thought = true;
      } else if (type == "redacted_thinking" && options_.extra_roles_and_blocks) {
        // Nothing in it that the model could read.
      } else if (type == "tool_use") {
        DI_API_RETURN_IF_ERROR(tool_use(block, index, b, m));
      } else if (type == "text") {
        if (!due_.empty()) return Fail(unresolved(fmt::format("messages.{}.{}: ", index, b)));
        DI_API_ASSIGN(const std::string t, block.required_string("text"));
        text.text(t);
      } else if (type == "image") {
        return Fail(ApiError::Invalid("Image in assistant message is unsupported"));
      } else {
        DI_API_RETURN_IF_ERROR(server_block(type));
      }
    }
    text.finish(m);
    if (thought) {
      Message reasoning;
      thoughts.finish(reasoning);
      m.reasoning = std::move(reasoning.content);
    }
    caller_ = index;
    out_.conversation.messages.push_back(std::move(m));
    return {};
  }

  ApiResult<void> tool_use(const ObjectInput& block, size_t index, size_t b, Message& m) {
    DI_API_ASSIGN(std::string id, block.required_string("id"));
    DI_API_ASSIGN(std::string name, block.required_string("name"));
    const Json* input = block.find("input");
    if (!due_.insert(id).second)
      return Fail(ApiError::Invalid("messages.{}.content.{}: `tool_use` ids must be unique", index, b));
    m.tool_calls.push_back({std::move(id), std::move(name), input != nullptr ? prompt_json(*input) : "{}"});
    return {};
  }

  ApiError unresolved(const std::string& where) const {
    return ApiError::Invalid(
        "{}`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have a "
        "corresponding `tool_result` block in the next message.",
        where, fmt::join(due_, ", "));
  }

  const ObjectInput& in_;
  const ConversionOptions& options_;
  ConvertedRequest out_;
  std::set<std::string> due_;  ///< calls without a result yet
  size_t caller_ = 0;          ///< index of the assistant message that made them
};

}  // namespace

ApiResult<ConvertedRequest> parse_messages_request(std::string_view body, const ConversionOptions& options) {
  DI_API_ASSIGN(const Json json, parse_json(body, json_limits(options)));
  DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of(json, ""));
  return MessagesParser(in, options).run();
}

std::string count_tokens_body(int64_t input_tokens) { return wire_json(Json{{"input_tokens", input_tokens}}); }

}  // namespace deepinfer
