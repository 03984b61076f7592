#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "deepinfer/logprobs.h"
#include "deepinfer/request.h"

namespace deepinfer {

enum class FinishReason : uint8_t {
  kStop,       ///< EOS, a stop token or a stop string
  kLength,     ///< max_tokens or max_model_len
  kCancelled,  ///< by the caller, or by shutdown
  kDeadline,   ///< the request's deadline passed
  kError,      ///< see Output::error
};

/// "stop", "length", "cancelled", "deadline", "error".
std::string_view finish_reason_name(FinishReason reason);

/// Why less of a prompt came from the cache than could have.
enum class CacheMiss : uint8_t {
  kNone,       ///< everything that can be shared was
  kTooShort,   ///< the prompt has no full page before its last token
  kNotCached,  ///< the next page is not in the cache: never computed, evicted or expired
  kInexact,    ///< the next page was computed after a bounded replay and the request wants exact results
  kDisabled,   ///< prefix caching is off
};
std::string_view cache_miss_name(CacheMiss miss);

/// What the tiers below the device's pages (host memory, local and shared stores) gave to a request.
struct TierUsage {
  struct Part {
    std::string_view tier;  ///< "host", "local", "shared"
    int64_t tokens = 0;     ///< of the prompt
  };
  std::vector<Part> parts;   ///< every tier, the fastest first; empty: nothing was pulled
  int64_t bytes = 0;         ///< that were read
  double match_seconds = 0;  ///< looking the prompt up
  double pull_seconds = 0;   ///< from the first read to the last, steps of other requests meanwhile
  double ttl_seconds = 0;    ///< of the page that goes first, when it was found
  /// Why they did not give more: "none" if they gave all that the device lacked, "not_stored", ... (kv_store_miss_name); "" if
  /// there are none, or the request may use none.
  std::string_view miss;

  int64_t tokens() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.tokens;
    return sum;
  }
};

/// Where the tokens of a request came from. Token counts are of one prompt, whatever `n`.
struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  ///< all choices together
  int64_t cached_tokens = 0;      ///< prompt tokens whose global KV came from the cache: whole pages of 128
  int64_t replayed_tokens = 0;    ///< of these, run again to rebuild windows
  CacheMiss cache_miss = CacheMiss::kNone;
  TierUsage tiers;  ///< of cached_tokens, those from below the device
  int64_t preemptions = 0;
  int64_t drafted_tokens = 0;           ///< drafts that were verified (speculative decoding), all choices together
  int64_t accepted_tokens = 0;          ///< of these, drafts that turned out right
  std::optional<double> queue_seconds;  ///< from submission to the first step; none while it waits
  uint64_t seed = 0;                    ///< what was used
};

/// News of one choice since the last Output of it. News that nobody reads is merged, so a slow reader costs no memory.
struct Output {
  RequestId request = 0;
  int64_t index = 0;  ///< choice, 0 .. n-1
  std::vector<int32_t> tokens;
  std::string text;                               ///< whole UTF-8 characters; held back while it may still become a stop string
  std::vector<int64_t> text_ends;                 ///< one per token: bytes of `text` that were there when it came
  std::vector<PositionLogprobs> logprobs;         ///< one per token, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  ///< in the first Output of choice 0; entry i is of prompt token i + 1
  std::optional<FinishReason> finish;             ///< set in the last Output of the choice
  std::variant<std::monostate, int32_t, std::string> stop_reason;  ///< the stop token or stop string; none for EOS
  Status error;                                                    ///< for FinishReason::kError
  Usage usage;                                                     ///< of the request, so far; never goes back
};

}  // namespace deepinfer
