#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/options.h"
#include "deepinfer/sampling_params.h"
#include "deepinfer/structured_output.h"

namespace deepinfer {

using RequestId = uint64_t;

inline constexpr int64_t kMaxChoices = 128;  ///< `n`
inline constexpr int64_t kMaxLogprobs = 20;  ///< top log-probs a token, besides its own
inline constexpr int64_t kMaxStopStrings = 64;
inline constexpr int64_t kMaxStopStringBytes = 1024;
inline constexpr int64_t kMaxCacheSaltBytes = 256;

/// One prompt and what is wanted of it. A plain value: it can be printed, stored and submitted again.
struct Request {
  std::vector<int32_t> prompt;  ///< token ids, at least one
  /// `choice_index` and `stop_token_ids` of EOS are filled in by the engine; everything else is the caller's.
  SamplingParams sampling;
  std::optional<uint64_t> seed;       ///< overrides sampling.seed; none: drawn by submit and reported in the usage
  std::optional<int64_t> max_tokens;  ///< none: up to max_model_len
  int64_t n = 1;                      ///< answers to the same prompt; they share its pages
  std::vector<std::string> stop;      ///< the answer ends before the first of these
  bool include_stop_string = false;   ///< leave the stop string in the text
  bool ignore_eos = false;            ///< but where a structured output ends, EOS ends the answer all the same
  std::optional<StructuredOutput> structured_output;
  std::optional<int64_t> logprobs;         ///< 0: of the chosen token; k: and of the k best
  std::optional<int64_t> prompt_logprobs;  ///< the same for every prompt token after the first; forces exact replay
  bool detokenize = true;                  ///< false: no text, token ids only
  bool skip_special_tokens = true;         ///< in the text

  std::string cache_class = "chat";  ///< chat, agent or pinned: how long its pages are kept
  std::string cache_salt;            ///< pages are shared only between requests of equal salt (one per tenant)
  int64_t priority = 0;              ///< smaller runs sooner; a waiting request gains one per priority_interval
  std::optional<double> deadline;    ///< seconds from submission; later the request ends with FinishReason::kDeadline
  std::optional<ReplayMode> replay;  ///< none: the engine's
};

}  // namespace deepinfer
