#pragma once

// What the streams of the APIs share: usage, log-probs, and the interface that ConversationStream drives.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/json_input.h"
#include "protocol/output_reader.h"
#include "protocol/response_stream.h"

namespace deepinfer {

struct ResponseUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;  ///< all choices
  int64_t reasoning_tokens = 0;
  TierUsage tiers = {};  ///< of cached_tokens, those from below the device
};

/// Writes one response in the format of one API: events as they come, and the body that they add up to.
class EventWriter {
 public:
  virtual ~EventWriter() = default;
  virtual void start(const ResponseUsage& usage, ServerEvents& out) = 0;
  /// Of the prompt's tokens after the first, before the first choice ends.
  virtual void prompt_logprobs(std::span<const PositionLogprobs>) {}
  /// An event of a choice, except its end.
  virtual void event(int64_t choice, const OutputEvent& event, ServerEvents& out) = 0;
  /// A choice has ended; `last`: and with it the response.
  virtual void finish(int64_t choice, const OutputEvent& event, bool last, const ResponseUsage& usage, int64_t now,
                      ServerEvents& out) = 0;
  virtual void fail(const ApiError& error, ServerEvents& out) = 0;
  virtual std::string body() const = 0;
};

/// What a writer knows of the request.
struct WriterContext {
  ResponseInfo info = {};
  std::string model = {};
  bool thinking = false;
  bool include_usage = false;
  bool logprobs = false;
  std::optional<int64_t> prompt_logprobs = {};
  int64_t choices = 1;
  std::vector<std::string> custom_tool_names = {};
  std::shared_ptr<const Tokenizer> tokenizer = {};
};

std::unique_ptr<EventWriter> make_chat_writer(WriterContext context);
std::unique_ptr<EventWriter> make_messages_writer(WriterContext context);
std::unique_ptr<EventWriter> make_responses_writer(WriterContext context);

/// The usage object of Chat Completions and Completions (§8.3).
Json openai_usage(const ResponseUsage& usage, bool reasoning);
/// Our extension of a usage object, "deepinfer": {"cache": {...}} (docs/guides/server.md): where cached tokens came from. Left
/// out if no tier was asked.
void add_cache_usage(const ResponseUsage& usage, Json& out);
/// The sum over the prompts of one response: tokens and bytes together, the longest times, the shortest time to live.
void add_tiers(const TierUsage& of_prompt, TierUsage& sum);
/// [{token, logprob, bytes, top_logprobs: [...]}, ...]
Json openai_logprobs(const std::vector<PositionLogprobs>& positions, const Tokenizer* tokenizer);
/// As vLLM tells them of a prompt: null for the first token, and for each after it {token id: {logprob, rank, decoded_token}} of
/// the token itself and the `top` best.
Json vllm_prompt_logprobs(std::span<const PositionLogprobs> positions, int64_t top, const Tokenizer* tokenizer);
/// A token's text for people: broken bytes are U+FFFD.
std::string token_text(const Tokenizer* tokenizer, int32_t id);
/// A log-prob that JSON can carry.
double finite_logprob(float value);
/// "stop", "tool_calls", "length", "content_filter".
std::string_view openai_finish_reason(AnswerFinish finish);

}  // namespace deepinfer
