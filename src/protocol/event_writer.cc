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
  add_cache_usage(usage, out);
  return out;
}

void add_cache_usage(const ResponseUsage& usage, Json& out) {
  const TierUsage& tiers = usage.tiers;
  if (tiers.miss.empty()) return;
  Json tokens{{"device", std::max<int64_t>(0, usage.cached_tokens - tiers.tokens())}};
  for (const TierUsage::Part& part : tiers.parts) tokens[std::string(part.tier)] = part.tokens;
  const bool missed = tiers.miss != "none";
  const bool found = tiers.tokens() > 0;
  out["deepinfer"] = Json{{"cache", Json{{"tokens", std::move(tokens)},
                                         {"miss", missed ? Json(tiers.miss) : Json(nullptr)},
                                         {"match_seconds", tiers.match_seconds},
                                         {"pull_seconds", tiers.pull_seconds},
                                         {"pulled_bytes", tiers.bytes},
                                         {"ttl_seconds", found ? Json(tiers.ttl_seconds) : Json(nullptr)}}}};
}

void add_tiers(const TierUsage& one, TierUsage& sum) {
  if (one.miss.empty()) return;
  for (const TierUsage::Part& part : one.parts) {
    const auto same =
        std::find_if(sum.parts.begin(), sum.parts.end(), [&](const auto& other) { return other.tier == part.tier; });
    if (same == sum.parts.end()) {
      sum.parts.push_back(part);
    } else {
      same->tokens += part.tokens;
    }
  }
  if (one.tokens() > 0) sum.ttl_seconds = sum.ttl_seconds > 0 ? std::min(sum.ttl_seconds, one.ttl_seconds) : one.ttl_seconds;
  if (sum.miss.empty() || sum.miss == "none") sum.miss = one.miss;
  sum.bytes += one.bytes;
  sum.match_seconds = std::max(sum.match_seconds, one.match_seconds);
  sum.pull_seconds = std::max(sum.pull_seconds, one.pull_seconds);
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

Json vllm_prompt_logprobs(std::span<const PositionLogprobs> positions, int64_t top, const Tokenizer* tokenizer) {
  Json out = Json::array({nullptr});
  for (const PositionLogprobs& position : positions) {
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& t) {
      entry.emplace(
          std::to_string(t.token),
          Json{{"logprob", finite_logprob(t.logprob)}, {"rank", t.rank}, {"decoded_token", token_text(tokenizer, t.token)}});
    };
    add(position.chosen);
    for (const TokenLogprob& t : std::span(position.top).first(std::min(position.top.size(), static_cast<size_t>(top)))) add(t);
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
