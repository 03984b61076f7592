#pragma once

// What the parsers of the request formats return.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/api_error.h"
#include "protocol/conversation.h"

namespace deepinfer {

/// Limits and switches of conversion. The defaults are this server's; Reference() is deepseek-recipe 0.1.0, whose rules the
/// conformance vectors fix.
struct ConversionOptions {
  bool default_thinking = true;              ///< when the request says nothing
  bool responses_web_search_ignored = true;  ///< else a 400
  bool messages_web_search_ignored = false;  ///< else a 400
  bool required_in_thinking = true;          ///< tool_choice required or named together with thinking; else a 400
  bool reject_image_placeholder = false;     ///< a 400 for text that spells the placeholder (§15)
  bool extra_roles_and_blocks = true;        ///< developer in Chat, custom tools and redacted thinking in Messages
  int64_t max_choices = 128;                 ///< `n`
  enum class StructuredOutput : uint8_t {
    kIgnore,  ///< json_schema is ignored, a regex refused
    kKeep,    ///< kept in Conversation::response_format for the grammar engine
  } structured_output = StructuredOutput::kKeep;

  int64_t max_body_bytes = int64_t{64} << 20;
  int64_t max_depth = 128;         ///< of nested JSON
  int64_t max_values = 1'000'000;  ///< JSON values in one body
  int64_t max_messages = 16'384;   ///< messages, items or blocks of one array
  int64_t max_tools = 1'024;
  int64_t max_images = 1'024;

  static ConversionOptions Reference();
};

/// Sampling and scheduling, as asked: nothing is defaulted yet (generation.h does that).
struct GenerationOptions {
  std::optional<int64_t> max_tokens = {};
  const char* max_tokens_field = "max_tokens";  ///< as the request calls it
  std::optional<double> temperature = {};       ///< [0, 2]
  std::optional<double> top_p = {};             ///< (0, 1]
  std::optional<int64_t> top_k = {};
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  std::optional<double> presence_penalty = {};
  std::optional<double> frequency_penalty = {};
  std::optional<int64_t> seed = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  int64_t n = 1;
  std::optional<int64_t> logprobs = {};         ///< 0: of the chosen token; k: and of the k best
  std::optional<int64_t> prompt_logprobs = {};  ///< likewise, of the prompt's tokens; Chat and Completions, not in a stream
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_token_ids = {};
  std::vector<std::string> bad_words = {};
  std::vector<int32_t> allowed_token_ids = {};         ///< empty: all
  std::optional<int64_t> truncate_prompt_tokens = {};  ///< what is kept of the prompt: its last tokens; -1: as many as fit
  bool ignore_eos = false;
  std::optional<int64_t> thinking_budget_tokens = {};
  std::optional<bool> disable_parallel_tool_use = {};
  int64_t priority = 0;
  std::string cache_salt = {};
  std::optional<std::string> cache_class = {};  ///< chat, agent or pinned
  std::optional<double> deadline = {};          ///< seconds
};

/// Where the output parser starts (§7.2).
enum class ReasoningStage : uint8_t { kNone, kStart, kReasoning, kContent };

/// How the model's text is read back (§3, §7).
struct ParsingOptions {
  bool parse_tool_calls = false;
  bool tool_call_initial_stage = false;  ///< the prompt has opened the block
  bool parse_json_output = false;        ///< JSON that was only asked for: it may come in a fence, with text around it
  bool enforced_form = false;            ///< the answer is in a form, so nothing in it is markup, calls of tools apart
  ReasoningStage reasoning_initial_stage = ReasoningStage::kNone;
  std::vector<std::string> stop_sequences = {};
  bool hardened = false;  ///< §7.5
};

/// A request of Chat Completions, Messages or Responses.
struct ConvertedRequest {
  Api api = Api::kChat;
  std::string model = {};
  Conversation conversation;
  GenerationOptions generation;
  ParsingOptions parsing;
  bool stream = false;
  bool include_usage = false;                       ///< Chat: stream_options.include_usage
  std::vector<std::string> custom_tool_names = {};  ///< Responses: tools whose calls are custom_tool_call items
  std::vector<std::string> warnings = {};           ///< for the log: fields that are accepted and do nothing
};

/// A request of Completions: raw text or token ids, no template.
struct CompletionRequest {
  std::string model = {};
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts = {};  ///< at least one; each becomes one engine request
  GenerationOptions generation;
  std::vector<std::string> stop = {};
  bool include_stop_string = false;
  ResponseFormat response_format = {};
  bool echo = false;
  bool stream = false;
  bool include_usage = false;
};

}  // namespace deepinfer
