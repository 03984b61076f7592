// Completions: raw text or token ids, without a template.

#include <algorithm>

#include "protocol/api.h"
#include "protocol/request_fields.h"
#include "protocol/structured_fields.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxPrompts = 2048;

using Prompt = std::variant<std::string, std::vector<int32_t>>;

ApiResult<std::vector<int32_t>> read_ids(const Json& value, const std::string& path) {
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_number_unsigned() || value[i].get<uint64_t>() > INT32_MAX)
      return Fail(wrong_type(fmt::format("{}[{}]", path, i), "a token id", value[i]));
    ids.push_back(value[i].get<int32_t>());
  }
  if (ids.empty()) return Fail(ApiError::Field(path, "at least one token id is required"));
  return ids;
}

/// A string, strings, token ids, or lists of token ids.
ApiResult<std::vector<Prompt>> read_prompts(const ObjectInput& in) {
  const Json* value = in.find("prompt");
  std::vector<Prompt> prompts;
  if (value == nullptr) return Fail(ApiError::Field("prompt", "a string or an array is required"));
  if (value->is_string()) {
    prompts.emplace_back(value->get<std::string>());
    return prompts;
  }
  if (!value->is_array() || value->empty()) return Fail(wrong_type("prompt", "a string or an array that is not empty", *value));
  if (value->front().is_number()) {
    DI_API_ASSIGN(std::vector<int32_t> ids, read_ids(*value, "prompt"));
    prompts.emplace_back(std::move(ids));
    return prompts;
  }
  DI_API_RETURN_IF_ERROR(in.array("prompt", kMaxPrompts));
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& element = (*value)[i];
    const std::string path = fmt::format("prompt[{}]", i);
    if (element.is_string()) {
      prompts.emplace_back(element.get<std::string>());
    } else if (element.is_array()) {
      DI_API_ASSIGN(std::vector<int32_t> ids, read_ids(element, path));
      prompts.emplace_back(std::move(ids));
    } else {
      return Fail(wrong_type(path, "a string or an array of token ids", element));
    }
  }
  return prompts;
}

}  // namespace

ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const ConversionOptions& options) {
  DI_API_ASSIGN(const Json json, parse_json(body, json_limits(options)));
  DI_API_ASSIGN(const ObjectInput in, ObjectInput::Of(json, ""));
  CompletionRequest out;
  GenerationOptions& g = out.generation;
  DI_API_ASSIGN(out.model, in.required_string("model"));
  DI_API_ASSIGN(out.prompts, read_prompts(in));
  DI_API_ASSIGN(const std::optional<bool> echo, in.boolean("echo"));
  out.echo = echo.value_or(false);
  // None at all: the prompt is scored, and that is all.
  if (const Json* most = in.find("max_tokens"); out.echo && most != nullptr && *most == 0) {
    g.max_tokens = 0;
  } else {
    DI_API_RETURN_IF_ERROR(read_max_tokens(in, "max_tokens", g));
  }
  DI_API_RETURN_IF_ERROR(read_temperature(in, g));
  DI_API_RETURN_IF_ERROR(read_openai_sampling(in, options, g));
  DI_API_RETURN_IF_ERROR(read_extensions(in, g));
  DI_API_RETURN_IF_ERROR(read_response_format(in, options, out.response_format));
  DI_API_RETURN_IF_ERROR(read_structured_outputs(in, options, out.response_format));
  DI_API_ASSIGN(out.stop, read_openai_stop(in));
  std::erase(out.stop, std::string());
  DI_API_RETURN_IF_ERROR(read_stream(in, out.stream, out.include_usage));
  DI_API_ASSIGN(g.logprobs, in.integer("logprobs", 0, kMaxLogprobs));
  DI_API_RETURN_IF_ERROR(read_prompt_logprobs(in, out.stream, g));
  DI_API_ASSIGN(const std::optional<bool> include_stop, in.boolean("include_stop_str_in_output"));
  out.include_stop_string = include_stop.value_or(false);
  DI_API_ASSIGN(const std::optional<int64_t> best_of, in.integer("best_of", 1, kMaxChoices));
  if (best_of.value_or(g.n) != g.n) return Fail(ApiError::Field("best_of", "must equal n ({}), got {}", g.n, *best_of));
  DI_API_ASSIGN(const std::optional<std::string> suffix, in.string("suffix"));
  if (!suffix.value_or("").empty()) return Fail(ApiError::Field("suffix", "filling in the middle is not supported"));
  return out;
}

ApiResult<std::vector<int32_t>> encode_completion_prompt(const Tokenizer& tokenizer, const Prompt& prompt) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  const PromptSegment segments[] = {PromptSegment::Special(kBosToken), PromptSegment::Text(std::get<std::string>(prompt))};
  auto ids = encode_prompt(tokenizer, segments);
  if (!ids) return Fail(ApiError::Http(500, ids.error().message()));
  return *std::move(ids);
}

}  // namespace deepinfer
