#include "protocol/request_fields.h"

#include <algorithm>
#include <charconv>

#include "deepinfer/request.h"
#include "protocol/prompt.h"

namespace deepinfer {

ConversionOptions ConversionOptions::Reference() {
  ConversionOptions options;
  options.required_in_thinking = false;
  options.reject_image_placeholder = true;
  options.extra_roles_and_blocks = false;
  options.max_choices = 1;
  options.structured_output = StructuredOutput::kIgnore;
  return options;
}

JsonLimits json_limits(const ConversionOptions& options) {
  return {.max_bytes = options.max_body_bytes, .max_depth = options.max_depth, .max_values = options.max_values};
}

// The published texts of range errors go on with the value.

ApiResult<void> read_temperature(const ObjectInput& in, GenerationOptions& out) {
  DI_API_ASSIGN(out.temperature, in.number("temperature"));
  if (out.temperature.has_value() && !(*out.temperature >= 0 && *out.temperature <= 2))
    return Fail(ApiError::About(in.at("temperature"), "temperature must be in [0, 2], got {}", *out.temperature));
  DI_API_ASSIGN(out.top_p, in.number("top_p"));
  if (out.top_p.has_value() && !(*out.top_p > 0 && *out.top_p <= 1))
    return Fail(ApiError::About(in.at("top_p"), "top_p must be in (0, 1], got {}", *out.top_p));
  return {};
}

ApiResult<void> read_max_tokens(const ObjectInput& in, const char* field, GenerationOptions& out) {
  DI_API_ASSIGN(out.max_tokens, in.integer(field, 0, kMaxTokensField));
  out.max_tokens_field = field;
  if (out.max_tokens == 0) return Fail(ApiError::About(in.at(field), "{} must be greater than zero, got 0", field));
  return {};
}

ApiResult<void> read_openai_sampling(const ObjectInput& in, const ConversionOptions& options, GenerationOptions& out) {
  if (options.max_choices == 1) {
    if (const Json* n = in.find("n"); n != nullptr && *n != 1)
      return Fail(ApiError::About(in.at("n"), "Invalid n value (currently only n = 1 is supported), got {}", json_excerpt(*n)));
  } else {
    DI_API_ASSIGN(const std::optional<int64_t> n, in.integer("n", 1, std::min(options.max_choices, kMaxChoices)));
    out.n = n.value_or(1);
  }
  for (const auto& [field, target] :
       {std::pair("frequency_penalty", &out.frequency_penalty), std::pair("presence_penalty", &out.presence_penalty)}) {
    DI_API_ASSIGN(*target, in.number(field));
    if (target->has_value() && !(**target >= -2 && **target <= 2))
      return Fail(ApiError::About(in.at(field), "{} must be in [-2, 2], got {}", field, **target));
  }
  if (const Json* seed = in.find("seed"); seed != nullptr) {
    const auto value = in.integer("seed", 0, INT64_MAX);
    if (!value) {
      return Fail(seed->is_number() ? ApiError::About(in.at("seed"), "seed must be in [0, 2^63), got {}", json_excerpt(*seed))
                                    : value.error());
    }
    out.seed = *value;
  }
  return {};
}

ApiResult<std::vector<std::string>> read_openai_stop(const ObjectInput& in) {
  std::vector<std::string> stop;
  const Json* value = in.find("stop");
  if (value == nullptr) return stop;
  if (value->is_string()) {
    stop.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    if (value->size() > kMaxStopSequences) {
      return Fail(ApiError::About(in.at("stop"), "ChatCompletionStopSequences string array too long: {}, the limit of stop is {}",
                                  value->size(), kMaxStopSequences));
    }
    for (size_t i = 0; i < value->size(); ++i) {
      if (!(*value)[i].is_string()) return Fail(wrong_type(fmt::format("{}[{}]", in.at("stop"), i), "a string", (*value)[i]));
      stop.push_back((*value)[i].get<std::string>());
    }
  } else {
    return Fail(wrong_type(in.at("stop"), "a string or an array of strings", *value));
  }
  for (const std::string& s : stop) {
    if (static_cast<int64_t>(s.size()) > kMaxStopStringBytes)
      return Fail(ApiError::Field(in.at("stop"), "a stop string has {} bytes, the limit is {}", s.size(), kMaxStopStringBytes));
  }
  return stop;
}

namespace {

ApiResult<void> read_logit_bias(const ObjectInput& in, GenerationOptions& out) {
  DI_API_ASSIGN(const std::optional<ObjectInput> bias, in.object("logit_bias"));
  if (!bias.has_value()) return {};
  const Json& map = *in.find("logit_bias");
  if (map.size() > kMaxLogitBias)
    return Fail(ApiError::Field(bias->path(), "at most {} tokens are allowed, got {}", kMaxLogitBias, map.size()));
  for (const auto& [key, value] : map.get_ref<const Json::object_t&>()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0)
      return Fail(ApiError::Field(bias->path(), "keys are token ids, got {}", json_excerpt(key)));
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      return Fail(ApiError::Field(bias->at(key), "expected a number from -100 to 100, got {}", json_excerpt(value)));
    out.logit_bias.emplace_back(id, static_cast<float>(value.get<double>()));
  }
  return {};
}

ApiResult<std::vector<int32_t>> read_token_ids(const ObjectInput& in, const char* field, size_t limit) {
  DI_API_ASSIGN(const Json* ids, in.array(field, static_cast<int64_t>(limit)));
  std::vector<int32_t> out;
  for (size_t i = 0; ids != nullptr && i < ids->size(); ++i) {
    const Json& id = (*ids)[i];
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX)
      return Fail(wrong_type(fmt::format("{}[{}]", in.at(field), i), "a token id", id));
    out.push_back(id.get<int32_t>());
  }
  return out;
}

ApiResult<void> read_bad_words(const ObjectInput& in, GenerationOptions& out) {
  constexpr int64_t kMaxWords = kMaxBadWords / 2;  // each may come in two ways: bad_word_ids
  DI_API_ASSIGN(const Json* words, in.array("bad_words", kMaxWords));
  for (size_t i = 0; words != nullptr && i < words->size(); ++i) {
    const Json& word = (*words)[i];
    const std::string path = fmt::format("{}[{}]", in.at("bad_words"), i);
    if (!word.is_string()) return Fail(wrong_type(path, "a string", word));
    out.bad_words.push_back(word.get<std::string>());
    const std::string& text = out.bad_words.back();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Fail(ApiError::Field(path, "must not be empty"));
    if (static_cast<int64_t>(text.size()) > kMaxStopStringBytes)
      return Fail(ApiError::Field(path, "has {} bytes, the limit is {}", text.size(), kMaxStopStringBytes));
  }
  return {};
}

ApiResult<void> read_truncation(const ObjectInput& in, GenerationOptions& out) {
  DI_API_ASSIGN(out.truncate_prompt_tokens, in.integer("truncate_prompt_tokens", -1, kMaxTokensField));
  if (out.truncate_prompt_tokens != 0) return {};
  return Fail(ApiError::Field(in.at("truncate_prompt_tokens"), "expected -1 or at least 1, got 0"));
}

}  // namespace

ApiResult<void> read_extensions(const ObjectInput& in, GenerationOptions& out) {
  DI_API_ASSIGN(out.top_k, in.integer("top_k", -1, INT32_MAX));
  DI_API_ASSIGN(out.min_p, in.number("min_p", 0, 1));
  DI_API_ASSIGN(out.repetition_penalty, in.number("repetition_penalty", 1e-6, 100));
  DI_API_ASSIGN(const std::optional<int64_t> min_tokens, in.integer("min_tokens", 0, kMaxMinTokens));
  out.min_tokens = min_tokens.value_or(0);
  DI_API_ASSIGN(out.stop_token_ids, read_token_ids(in, "stop_token_ids", kMaxStopTokenIds - 1));
  DI_API_ASSIGN(out.allowed_token_ids, read_token_ids(in, "allowed_token_ids", kMaxAllowedTokenIds));
  if (out.allowed_token_ids.empty() && in.find("allowed_token_ids") != nullptr)
    return Fail(ApiError::Field(in.at("allowed_token_ids"), "at least one token id is required"));
  DI_API_RETURN_IF_ERROR(read_bad_words(in, out));
  DI_API_RETURN_IF_ERROR(read_truncation(in, out));
  DI_API_ASSIGN(const std::optional<bool> ignore_eos, in.boolean("ignore_eos"));
  out.ignore_eos = ignore_eos.value_or(false);
  DI_API_RETURN_IF_ERROR(read_logit_bias(in, out));
  DI_API_ASSIGN(const std::optional<int64_t> priority, in.integer("priority", INT32_MIN, INT32_MAX));
  out.priority = priority.value_or(0);
  DI_API_ASSIGN(std::optional<std::string> salt, in.string("cache_salt"));
  if (salt.has_value() && static_cast<int64_t>(salt->size()) > kMaxCacheSaltBytes)
    return Fail(ApiError::Field(in.at("cache_salt"), "has {} bytes, the limit is {}", salt->size(), kMaxCacheSaltBytes));
  out.cache_salt = std::move(salt).value_or("");
  DI_API_ASSIGN(out.cache_class, in.string("cache_class"));
  if (out.cache_class.has_value() && out.cache_class != "chat" && out.cache_class != "agent" && out.cache_class != "pinned") {
    return Fail(ApiError::Field(in.at("cache_class"), "expected chat, agent or pinned, got {}", json_excerpt(*out.cache_class)));
  }
  DI_API_ASSIGN(out.deadline, in.number("deadline", 1e-3, 1e6));
  return {};
}

ApiResult<void> read_prompt_logprobs(const ObjectInput& in, bool stream, GenerationOptions& out) {
  DI_API_ASSIGN(out.prompt_logprobs, in.integer("prompt_logprobs", 0, kMaxLogprobs));
  if (!out.prompt_logprobs.has_value() || !stream) return {};
  return Fail(ApiError::Field(in.at("prompt_logprobs"), "not available with stream = true, got {}", *out.prompt_logprobs));
}

ApiResult<void> read_stream(const ObjectInput& in, bool& stream, bool& include_usage) {
  DI_API_ASSIGN(const std::optional<bool> wanted, in.boolean("stream"));
  stream = wanted.value_or(false);
  DI_API_ASSIGN(const std::optional<ObjectInput> stream_options, in.object("stream_options"));
  if (!stream_options.has_value()) return {};
  if (!stream) return Fail(ApiError::Invalid("stream_options should be set along with stream = true"));
  DI_API_ASSIGN(const std::optional<bool> usage, stream_options->boolean("include_usage"));
  include_usage = usage.value_or(false);
  return {};
}

ApiResult<void> read_thinking(const ObjectInput& in, const Json* effort, std::string_view effort_path,
                              const ConversionOptions& options, ConvertedRequest& out) {
  std::optional<bool> decided;
  DI_API_ASSIGN(const std::optional<ObjectInput> thinking, in.object("thinking"));
  if (thinking.has_value()) {
    DI_API_ASSIGN(const std::string type, thinking->required_string("type"));
    if (type != "enabled" && type != "adaptive" && type != "disabled")
      return Fail(ApiError::Field(thinking->at("type"), "expected enabled, adaptive or disabled, got {}", json_excerpt(type)));
    decided = type != "disabled";
    DI_API_ASSIGN(out.generation.thinking_budget_tokens, thinking->integer("budget_tokens", 0, kMaxTokensField));
  }
  std::optional<ReasoningEffort> given;
  if (effort != nullptr) {
    const bool none = effort->is_string() && effort->get_ref<const std::string&>() == "none";
    if (!none) {
      Result<ReasoningEffort> parsed = Err(Status::InvalidArgument("must be a name or a whole number from 1 to 100"));
      if (effort->is_number_integer()) {
        const bool huge = effort->is_number_unsigned() && effort->get<uint64_t>() > 100;
        parsed = parse_reasoning_effort(huge ? int64_t{101} : effort->get<int64_t>());
      } else if (effort->is_string() && !effort->get_ref<const std::string&>().empty() &&
                 std::isalpha(static_cast<unsigned char>(effort->get_ref<const std::string&>()[0])) != 0) {
        parsed = parse_reasoning_effort(std::string_view(effort->get_ref<const std::string&>()));
      }
      if (!parsed) return Fail(ApiError::Field(effort_path, "{}, got {}", parsed.error().message(), json_excerpt(*effort)));
      given = *parsed;
    }
    if (!decided.has_value()) decided = !none;
  }
  out.conversation.thinking = decided.value_or(options.default_thinking);
  if (given.has_value()) out.conversation.effort = *given;
  return {};
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

bool is_object_schema(const Json& schema) {
  if (!schema.is_object()) return false;
  const auto type = schema.find("type");
  return type != schema.end() && *type == "object";
}

ApiResult<std::optional<ChoiceOfTool>> read_tool_choice_word(const ObjectInput& in, std::string_view what) {
  const Json* choice = in.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return ChoiceOfTool{};
  if (*choice == "none") return ChoiceOfTool{ToolChoice::kNone, {}};
  if (*choice == "required") return ChoiceOfTool{ToolChoice::kRequired, {}};
  if (!choice->is_object()) return Fail(wrong_type("tool_choice", fmt::format("none, auto, required or a {}", what), *choice));
  return std::nullopt;
}

ApiResult<void> apply_tool_choice(const ChoiceOfTool& choice, const ConversionOptions& options, ConvertedRequest& out) {
  Conversation& c = out.conversation;
  c.tool_choice = choice.choice;
  if (choice.choice == ToolChoice::kNone) {
    c.tools.clear();
  } else if (c.tools.empty()) {
    c.tool_choice = ToolChoice::kAuto;
  } else if (choice.choice == ToolChoice::kRequired) {
    if (c.thinking && !options.required_in_thinking)
      return Fail(ApiError::Invalid("Thinking mode does not support this tool_choice"));
    if (choice.name.has_value()) {
      const auto named = std::find_if(c.tools.begin(), c.tools.end(), [&](const Tool& t) { return t.name == *choice.name; });
      if (named == c.tools.end()) return Fail(ApiError::Invalid("tool_choice: no tool named '{}' was specified", *choice.name));
      Tool only = std::move(*named);
      c.tools.clear();
      c.tools.push_back(std::move(only));
      c.forced_tool = choice.name;
    }
  }
  return {};
}

void ContentBuilder::separate() {
  if (!first_) text_ += "\n\n";
  first_ = false;
}

void ContentBuilder::text(std::string_view text) {
  separate();
  text_ += text;
}

void ContentBuilder::image(ImageRef image) {
  separate();
  images_.push_back({text_.size(), std::move(image)});
}

void ContentBuilder::finish(Message& out) {
  out.content = std::move(text_);
  out.images = std::move(images_);
}

std::string pad_base64(std::string_view data) {
  while (!data.empty() && data.back() == '=') data.remove_suffix(1);
  std::string out(data);
  out.append((4 - data.size() % 4) % 4, '=');
  return out;
}

ApiResult<ImageRef> read_image_url(std::string_view url, std::string_view path) {
  constexpr size_t kMaxLink = 8192;
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  std::string scheme(url.substr(0, 4));
  std::transform(scheme.begin(), scheme.end(), scheme.begin(), lower);
  if (scheme == "http") {
    if (url.size() > kMaxLink) {
      return Fail(
          ApiError::Invalid("{}: external link length {} too long, max link length {}. Consider passing file data directly with "
                            "base64 data url instead.",
                            path, url.size(), kMaxLink));
    }
    return ImageRef{.kind = ImageRef::Kind::kUrl, .url = std::string(url)};
  }
  constexpr std::string_view kMark = "base64,";
  const size_t at = url.find(kMark);
  if (at == std::string_view::npos) return Fail(ApiError::Invalid("{}: Unsupported image_url format", path));
  const size_t data = at + kMark.size();
  return ImageRef{.kind = ImageRef::Kind::kDataUrl, .url = std::string(url.substr(0, data)) + pad_base64(url.substr(data))};
}

ApiResult<std::string> read_detail(const ObjectInput& in) {
  DI_API_ASSIGN(const std::optional<std::string> detail, in.string("detail"));
  if (!detail.has_value()) return std::string("high");
  if (*detail != "low" && *detail != "high" && *detail != "original" && *detail != "auto")
    return Fail(ApiError::Field(in.at("detail"), "expected low, high, original or auto, got {}", json_excerpt(*detail)));
  return *detail;
}

bool mentions_json(std::string_view text) {
  constexpr std::string_view kWord = "json";
  return std::search(text.begin(), text.end(), kWord.begin(), kWord.end(),
                     [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b; }) != text.end();
}

ApiResult<void> check_conversation(const Conversation& conversation, const ConversionOptions& options) {
  int64_t images = 0;
  for (const Message& m : conversation.messages) images += static_cast<int64_t>(m.images.size());
  if (images > options.max_images)
    return Fail(ApiError::Invalid("the request has {} images, the limit is {}", images, options.max_images));
  if (!options.reject_image_placeholder) return {};
  const auto spelled = [](std::string_view text) { return text.find(kImagePlaceholder) != std::string_view::npos; };
  bool found = false;
  for (const Message& m : conversation.messages) {
    found = found || spelled(m.content) || spelled(m.reasoning.value_or(""));
    for (const ToolCall& call : m.tool_calls) found = found || spelled(call.arguments) || spelled(call.name);
  }
  for (const Tool& tool : conversation.tools) {
    found = found || spelled(tool.name) || spelled(tool.description.value_or("")) || spelled(tool.parameters);
  }
  if (!found) return {};
  return Fail(ApiError::Invalid(
      "The sub-string \"{0}\" in your input is not allowed for this API. Please remove \"{0}\" from your input and try again.",
      kImagePlaceholder));
}

ApiResult<ConvertedRequest> finish_request(ConvertedRequest request, const ConversionOptions& options) {
  DI_API_RETURN_IF_ERROR(check_conversation(request.conversation, options));
  const Conversation& c = request.conversation;
  ParsingOptions& p = request.parsing;
  p.parse_tool_calls = !c.tools.empty();
  // With thinking the prompt cannot open the block: the calls come after the reasoning.
  p.tool_call_initial_stage = c.tool_choice == ToolChoice::kRequired && p.parse_tool_calls && !c.thinking;
  const ResponseFormat::Kind format = c.response_format.kind;
  // A schema is enforced: there is no fence to look for, and the answer may be a number or a string.
  p.parse_json_output = format == ResponseFormat::Kind::kJsonObject;
  p.enforced_form = format != ResponseFormat::Kind::kText && format != ResponseFormat::Kind::kJsonObject;
  p.reasoning_initial_stage = c.thinking ? ReasoningStage::kStart : ReasoningStage::kNone;
  if (!c.messages.empty() && c.messages.back().prefix) {
    const Message& last = c.messages.back();
    // Only a message that has something before it gets a think pair (§4.3).
    const bool paired = c.messages.size() > 1 || p.parse_tool_calls || format == ResponseFormat::Kind::kJsonObject;
    const bool open_reasoning = c.thinking && paired && last.content.empty() && last.reasoning.has_value();
    p.reasoning_initial_stage = open_reasoning ? ReasoningStage::kReasoning : ReasoningStage::kContent;
    p.tool_call_initial_stage = false;
    // The answer goes on inside the JSON: there is no fence to look for, and its first bracket is not where it begins.
    if (!last.content.empty() && options.structured_output == ConversionOptions::StructuredOutput::kKeep)
      p.parse_json_output = false;
  }
  return request;
}

}  // namespace deepinfer
