#include "protocol/event_writer.h"

#include <algorithm>
#include <cmath>

#include "tokenizer/utf8.h"

namespace deepinfer {

Json openai_usage(const ResponseUsage& usage, bool reasoning) {
  Json out{{"prompt_tokens", usage.prompt_tokens},
           {"completion_tokens", usage.completion_tokens},
           {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
           {"prompt_tokens_details", Json{{"cached_tokens", usage.cached_tokens}}},
           {"prompt_cache_hit_tokens", usage.cached_tokens},
           {"prompt_cache_miss_tokens", std::max<int64_t>(0, usage.prompt_tokens - usage.cached_tokens)}};
  if (reasoning) out["completion_tokens_details"] = Json{{"reasoning_tokens", usage.reasoning_tokens}};
  return out;
}

double finite_logprob(float value) { return std::isfinite(value) ? static_cast<double>(value) : -9999.0; }

std::string token_text(const Tokenizer* tokenizer, int32_t id) {
  std::string text;
  if (tokenizer != nullptr) utf8_append_lossy(tokenizer->token_bytes(id), /*last=*/true, text);
  return text;
}

namespace {

Json one_logprob(const TokenLogprob& value, const Tokenizer* tokenizer) {
  Json bytes = Json::array();
  if (tokenizer != nullptr) {
    for (const char c : tokenizer->token_bytes(value.token)) bytes.push_back(static_cast<uint8_t>(c));
  }
  return Json{
      {"token", token_text(tokenizer, value.token)}, {"logprob", finite_logprob(value.logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

Json openai_logprobs(const std::vector<PositionLogprobs>& positions, const Tokenizer* tokenizer) {
  Json out = Json::array();
  for (const PositionLogprobs& position : positions) {
    Json entry = one_logprob(position.chosen, tokenizer);
    Json top = Json::array();
    for (const TokenLogprob& t : position.top) top.push_back(one_logprob(t, tokenizer));
    entry["top_logprobs"] = std::move(top);
    out.push_back(std::move(entry));
  }
  return out;
}

std::string_view openai_finish_reason(AnswerFinish finish) {
  switch (finish) {
    case AnswerFinish::kToolCalls:
      return "tool_calls";
    case AnswerFinish::kLength:
      return "length";
    case AnswerFinish::kContentFilter:
      return "content_filter";
    case AnswerFinish::kStop:
    case AnswerFinish::kStopSequence:
    case AnswerFinish::kEndOfStream:
      return "stop";
  }
  return "stop";
}

}  // namespace deepinfer
