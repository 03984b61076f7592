#pragma once

// The fields that ask for structured output, in every format: response_format and its likes, and those that vLLM's users know.

#include <string>

#include "protocol/converted_request.h"
#include "protocol/json_input.h"

namespace deepinfer {

/// {schema, name?, strict?}: what response_format.json_schema, text.format and output_config.format have in common. A schema that
/// asks for nothing else is strict: keywords that can't be enforced are refused. `strict` false leaves them out instead.
ApiResult<ResponseFormat> read_json_schema(const ObjectInput& in);

/// response_format of Chat Completions and Completions.
ApiResult<void> read_response_format(const ObjectInput& in, const ConversionOptions& options, ResponseFormat& out);

/// structured_outputs {json, regex, choice, grammar, json_object, disable_any_whitespace}, or guided_json, guided_regex,
/// guided_choice, guided_grammar. Exactly one constraint, and none beside a format that `out` has already.
ApiResult<void> read_structured_outputs(const ObjectInput& in, const ConversionOptions& options, ResponseFormat& out);

}  // namespace deepinfer
