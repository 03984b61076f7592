#pragma once

// What the request formats have in common: parameters, thinking, tools, images.

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "protocol/converted_request.h"
#include "protocol/json_input.h"

namespace deepinfer {

inline constexpr int64_t kMaxTokensField = 4'294'967'295;  ///< u32, as in the reference
inline constexpr size_t kMaxStopSequences = 16;

JsonLimits json_limits(const ConversionOptions& options);

/// temperature and top_p, with the reference's messages.
ApiResult<void> read_temperature(const ObjectInput& in, GenerationOptions& out);
/// max_tokens under the name `field`: positive, or absent.
ApiResult<void> read_max_tokens(const ObjectInput& in, const char* field, GenerationOptions& out);
/// n, seed, penalties and stop of the two OpenAI formats that have them.
ApiResult<void> read_openai_sampling(const ObjectInput& in, const ConversionOptions& options, GenerationOptions& out);
ApiResult<std::vector<std::string>> read_openai_stop(const ObjectInput& in);
/// Our extensions: top_k, min_p, repetition_penalty, min_tokens, stop_token_ids, allowed_token_ids, bad_words,
/// truncate_prompt_tokens, ignore_eos, logit_bias, priority, cache_salt, cache_class, deadline.
ApiResult<void> read_extensions(const ObjectInput& in, GenerationOptions& out);
/// vLLM's prompt_logprobs, of the two formats that have it.
ApiResult<void> read_prompt_logprobs(const ObjectInput& in, bool stream, GenerationOptions& out);
/// stream and stream_options.include_usage.
ApiResult<void> read_stream(const ObjectInput& in, bool& stream, bool& include_usage);

/// Thinking and its effort, from `thinking` (type, budget_tokens) and the value of an effort field, which may be null. An effort
/// of "none" switches thinking off unless thinking.type says otherwise.
ApiResult<void> read_thinking(const ObjectInput& in, const Json* effort, std::string_view effort_path,
                              const ConversionOptions& options, ConvertedRequest& out);

/// 1-128 of [A-Za-z0-9_-].
bool is_tool_name(std::string_view name);
bool is_object_schema(const Json& schema);
struct ChoiceOfTool {
  ToolChoice choice = ToolChoice::kAuto;
  std::optional<std::string> name;
};
/// tool_choice of the two OpenAI formats where it is absent or a word; nothing if it is an object, which stands for a `what`.
ApiResult<std::optional<ChoiceOfTool>> read_tool_choice_word(const ObjectInput& in, std::string_view what);
/// Applies a choice to the tools of `out` and fills in the parsing options that follow from tools and thinking.
ApiResult<void> apply_tool_choice(const ChoiceOfTool& choice, const ConversionOptions& options, ConvertedRequest& out);

/// A message's content under construction: blocks joined with a blank line.
class ContentBuilder {
 public:
  void text(std::string_view text);
  void image(ImageRef image);
  bool has_images() const { return !images_.empty(); }
  /// Into content and images of `out`.
  void finish(Message& out);

 private:
  void separate();
  std::string text_;
  std::vector<PlacedImage> images_;
  bool first_ = true;
};

/// An http(s) or data URL. `path` is of the URL; the text of the errors is the reference's.
ApiResult<ImageRef> read_image_url(std::string_view url, std::string_view path);
ApiResult<std::string> read_detail(const ObjectInput& in);
/// Base64 with the padding it should have.
std::string pad_base64(std::string_view data);

/// Any letters "json", any case.
bool mentions_json(std::string_view text);

/// Limits on the whole conversation, and the placeholder check (§15) if the options want it.
ApiResult<void> check_conversation(const Conversation& conversation, const ConversionOptions& options);

/// The last steps of every format.
ApiResult<ConvertedRequest> finish_request(ConvertedRequest request, const ConversionOptions& options);

}  // namespace deepinfer
