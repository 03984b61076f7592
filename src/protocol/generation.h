#pragma once

// From a converted request to the engine's: defaults and limits of spec/protocol §6.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "protocol/converted_request.h"

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
  /// The engine can enforce Conversation::response_format. False: formats that need it are refused by name.
  bool grammar = false;
};

/// What a grammar has to enforce on the answer (§14). A plain value; nothing here compiles it.
struct GenerationConstraint {
  enum class Start : uint8_t {
    kFirstToken,
    kAfterThinking,  ///< behind the token </think>; before it the text is free
  } start = Start::kFirstToken;
  /// The whole answer, if not text.
  ResponseFormat format = {};
  /// Calls in DSML, from the marker ｜DSML｜ on; empty: none are declared.
  std::vector<Tool> tools = {};
  bool tools_required = false;  ///< at least one call
  bool parallel = true;         ///< more than one call
  /// Bytes of the grammar that the prompt already holds.
  std::string prefilled = {};
  ModelVersion version = ModelVersion::kV4_1;  ///< the spelling of the tags
};
/// None if the answer is free text without tools.
std::optional<GenerationConstraint> make_constraint(const ConvertedRequest& request, ModelVersion version);

/// The engine's request for an encoded prompt. Text comes with its special tokens, for the output parser; stop strings are left
/// to that parser. Errors: the prompt does not fit (the text of the hosted service), or a constraint that the server cannot
/// enforce.
ApiResult<Request> to_engine_request(const ConvertedRequest& request, std::vector<int32_t> prompt,
                                     const GenerationPolicy& policy);
/// For one prompt of a Completions request; stop strings are the engine's.
ApiResult<Request> to_engine_request(const CompletionRequest& request, std::vector<int32_t> prompt,
                                     const GenerationPolicy& policy);

}  // namespace deepinfer
