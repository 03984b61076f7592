#pragma once

// From a converted request to the engine's: defaults and limits of spec/protocol §6.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "protocol/converted_request.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer {

struct GenerationPolicy {
  ModelVersion version = ModelVersion::kV4_1;
  int64_t max_model_len = 1'048'576;    ///< of the engine: prompt and answer
  int64_t max_output_tokens = 393'216;  ///< hosted: 384K
  int64_t default_max_tokens = 8'192;
  int64_t default_max_tokens_thinking = 65'536;
  /// In thinking mode the release samples at temperature 1, top_p at least 0.95, without penalties, whatever was asked. True: do
  /// as the request says there too.
  bool honour_sampling_in_thinking = false;
  /// The engine can enforce forms. False: formats that need it are refused by name, and calls of tools are not enforced.
  bool grammar = false;
  /// The token `</think>`: a form begins behind it where the model thinks first.
  std::optional<int32_t> think_end = {};
};

/// What the engine has to enforce on the answer (§14); none: nothing. Tools are enforced where a call is required or one of them
/// is strict. Beside a format, calls of tools that are not required stay possible.
std::optional<StructuredOutput> make_structured_output(const ConvertedRequest& request, const GenerationPolicy& policy);
std::optional<StructuredOutput> make_structured_output(const CompletionRequest& request);
/// The field of the request that a fault of its form is told about.
std::string structured_output_field(const ConvertedRequest& request);

/// The token ids of bad words, each at the begin of a text and behind a space. (vLLM leaves the second out if it has another
/// number of tokens, and so misses words that are one token only behind a space.)
std::vector<std::vector<int32_t>> bad_word_ids(const Tokenizer& tokenizer, std::span<const std::string> words);
/// Drops the beginning of a prompt that is to be shorter (truncate_prompt_tokens).
void truncate_prompt(const GenerationOptions& generation, const GenerationPolicy& policy, std::vector<int32_t>& prompt);

/// The engine's request for an encoded prompt, truncated already. Text comes with its special tokens, for the output parser; stop
/// strings are left to that parser. Errors: the prompt does not fit (the text of the hosted service), or a format that the server
/// cannot enforce.
ApiResult<Request> to_engine_request(const ConvertedRequest& request, std::vector<int32_t> prompt,
                                     const GenerationPolicy& policy);
/// For one prompt of a Completions request; stop strings are the engine's.
ApiResult<Request> to_engine_request(const CompletionRequest& request, std::vector<int32_t> prompt,
                                     const GenerationPolicy& policy);

}  // namespace deepinfer
