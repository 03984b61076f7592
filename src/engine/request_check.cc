#include "engine/request_check.h"

#include <sys/random.h>

#include <algorithm>
#include <cmath>

#include "engine/form_compiler.h"
#include "grammar/limits.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxPriority = 1'000'000;
constexpr double kMaxDeadline = 1e9;

Status check_count(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::Ok();
  return Status::OutOfRange("{} is {}, must be from {} to {}", name, value, least, most);
}

Status check_stops(const Request& request) {
  const auto count = static_cast<int64_t>(request.stop.size());
  if (count > kMaxStopStrings) return Status::OutOfRange("stop has {} strings, at most {} are allowed", count, kMaxStopStrings);
  for (size_t i = 0; i < request.stop.size(); ++i) {
    const std::string& s = request.stop[i];
    if (s.empty()) return Status::InvalidArgument("stop[{}] is empty", i);
    if (static_cast<int64_t>(s.size()) > kMaxStopStringBytes)
      return Status::OutOfRange("stop[{}] has {} bytes, at most {} are allowed", i, s.size(), kMaxStopStringBytes);
    const size_t valid = utf8_valid_prefix(s);
    if (valid != s.size()) return Status::InvalidArgument("stop[{}]: invalid UTF-8 at byte {}", i, valid);
  }
  if (count > 0 && !request.detokenize) return Status::InvalidArgument("stop: needs text, but detokenize is off");
  return Status::Ok();
}

Status check_lengths(const Request& request, const RequestLimits& limits, int64_t& max_tokens) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return Status::InvalidArgument("prompt: empty");
  if (prompt >= limits.max_model_len) {
    return Status::OutOfRange("prompt has {} tokens, max_model_len is {} and must leave room for one more", prompt,
                              limits.max_model_len);
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const int32_t id = request.prompt[i];
    if (id < 0 || id >= limits.vocab_size)
      return Status::OutOfRange("prompt[{}] is {}, must be from 0 to {}", i, id, limits.vocab_size - 1);
  }
  // Every choice ends in a page of its own; further ones can wait for each other.
  const int64_t page = limits.page_positions;
  const int64_t budget = limits.total_pages * page;
  if (request.max_tokens.has_value()) {
    max_tokens = *request.max_tokens;
    DI_RETURN_IF_ERROR(check_count("max_tokens", max_tokens, 1, int64_t{1} << 40));
    if (prompt + max_tokens > limits.max_model_len) {
      return Status::OutOfRange("prompt has {} tokens and max_tokens is {}: together {}, max_model_len is {}", prompt, max_tokens,
                                prompt + max_tokens, limits.max_model_len);
    }
  } else {
    max_tokens = std::min(limits.max_model_len, std::max(budget, prompt + 1)) - prompt;
  }
  const int64_t pages =
      std::max((prompt + max_tokens - 1 + page - 1) / page, prompt / page + (prompt % page != 0 ? request.n : 0));
  if (pages > limits.total_pages) {
    return Status::OutOfRange("prompt has {} tokens, max_tokens is {}, n is {}: {} pages, the KV cache has {} of {} tokens",
                              prompt, max_tokens, request.n, pages, limits.total_pages, page);
  }
  return Status::Ok();
}

/// What of a structured output can be checked without compiling it.
Status check_structured_output(const StructuredOutput& output, const RequestLimits& limits) {
  const auto bytes = form_bytes(output);
  if (bytes > grammar::CompileLimits().source_bytes)
    return Status::OutOfRange("structured_output has {} bytes, at most {} are allowed", bytes,
                              grammar::CompileLimits().source_bytes);
  if (const size_t valid = utf8_valid_prefix(output.prefix); valid != output.prefix.size())
    return Status::InvalidArgument("structured_output.prefix: invalid UTF-8 at byte {}", valid);
  if (!output.start_after.has_value()) return Status::Ok();
  if (*output.start_after < 0 || *output.start_after >= limits.vocab_size)
    return Status::OutOfRange("structured_output.start_after is {}, must be from 0 to {}", *output.start_after,
                              limits.vocab_size - 1);
  if (*output.start_after == limits.eos_token_id)
    return Status::InvalidArgument("structured_output.start_after is {}, which ends the answer", *output.start_after);
  if (!output.prefix.empty())
    return Status::InvalidArgument("structured_output.prefix: nothing of the form can be there before start_after");
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<ActiveRequest>> check_request(Request request, const RequestLimits& limits) {
  auto active = std::make_shared<ActiveRequest>();
  DI_RETURN_IF_ERROR(check_count("n", request.n, 1, std::min(kMaxChoices, limits.max_num_seqs)));
  DI_RETURN_IF_ERROR(check_lengths(request, limits, active->max_tokens));
  DI_RETURN_IF_ERROR(check_stops(request));
  DI_RETURN_IF_ERROR(request.sampling.validate(limits.vocab_size));
  if (request.sampling.min_tokens > active->max_tokens) {
    return Err(Status::OutOfRange("min_tokens is {}, max_tokens is {}", request.sampling.min_tokens, active->max_tokens));
  }
  if (request.logprobs.has_value()) DI_RETURN_IF_ERROR(check_count("logprobs", *request.logprobs, 0, kMaxLogprobs));
  if (request.prompt_logprobs.has_value())
    DI_RETURN_IF_ERROR(check_count("prompt_logprobs", *request.prompt_logprobs, 0, kMaxLogprobs));
  const auto cache_class = parse_cache_class(request.cache_class);
  if (!cache_class) return Err(cache_class.error().with_context("cache_class"));
  if (static_cast<int64_t>(request.cache_salt.size()) > kMaxCacheSaltBytes) {
    return Err(
        Status::OutOfRange("cache_salt has {} bytes, at most {} are allowed", request.cache_salt.size(), kMaxCacheSaltBytes));
  }
  DI_RETURN_IF_ERROR(check_count("priority", request.priority, -kMaxPriority, kMaxPriority));
  if (request.deadline.has_value() && !(*request.deadline > 0 && *request.deadline <= kMaxDeadline))
    return Err(Status::OutOfRange("deadline is {} s, must be more than 0 and at most {}", *request.deadline, kMaxDeadline));

  if (request.structured_output.has_value()) {
    DI_RETURN_IF_ERROR(check_structured_output(*request.structured_output, limits));
    request.ignore_eos = false;  // where the form ends there is nothing else to draw
  }

  active->cache_class = *cache_class;
  active->mode = request.prompt_logprobs.has_value() ? ReplayMode::kExact : request.replay.value_or(limits.replay);
  if (request.seed.has_value()) {
    request.sampling.seed = *request.seed;
  } else if (::getrandom(&request.sampling.seed, sizeof(request.sampling.seed), 0) != sizeof(request.sampling.seed)) {
    return Err(Status::Internal("no random numbers from the system for the seed"));
  }
  request.sampling.choice_index = 0;
  auto& stops = request.sampling.stop_token_ids;
  const auto eos = static_cast<int32_t>(limits.eos_token_id);
  if (!request.ignore_eos && std::find(stops.begin(), stops.end(), eos) == stops.end()) stops.push_back(eos);
  if (stops.size() > kMaxStopTokenIds) {
    return Err(Status::OutOfRange("stop_token_ids has {} entries, EOS among them, at most {} are allowed", stops.size(),
                                  kMaxStopTokenIds));
  }
  active->request = std::move(request);
  return active;
}

}  // namespace deepinfer
