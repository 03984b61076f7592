#pragma once

// The protocol layer as the server uses it. Pure: no network, clock, model or randomness; ids and times are arguments. Nothing
// here throws; everything is safe to call from any thread, a ResponseStream from one at a time.
//
//   1. auto request = parse_chat_request(body, conversion);        // or parse_messages_request, parse_responses_request
//      if (!request) return http(request.error().status, error_body(Api::kChat, request.error()));
//      Lines of request->warnings go to the log.
//   2. const RenderedPrompt prompt = render_prompt(request->conversation, version);
//      Images are references in prompt.images, in the order of the image segments; whoever fetches them expands the placeholders.
//   3. auto ids = encode_prompt(*tokenizer, prompt.segments);      // Result: ApiError::From(status) on failure
//   4. auto engine_request = to_engine_request(*request, *ids, policy);
//      /v1/messages/count_tokens ends after 3: {"input_tokens": ids->size()}, see count_tokens_body.
//   5. auto stream = make_response_stream(*request, {.id = ..., .created = ...}, tokenizer);
//      for each Output of the engine:
//        for (const ServerEvent& e : stream->push(output, now)) if (request->stream) write(sse_frame(e));
//        if (stream->done()) { cancel the engine's request (no harm if it ended); break; }
//      While idle: sse_keep_alive(api). When the engine refuses or dies: stream->fail(ApiError::From(status)).
//      Without streaming: stream->failed() ? error_body(api, *stream->failed()) : stream->body().
//      When the client goes away: cancel the engine's request and drop the stream.
//
// Completions: parse_completion_request; per prompt encode_completion_prompt and to_engine_request; one make_completion_stream
// for all prompts, push(output, now, prompt_number).

#include "protocol/api_error.h"
#include "protocol/converted_request.h"
#include "protocol/generation.h"
#include "protocol/prompt.h"
#include "protocol/render_v4.h"
#include "protocol/response_stream.h"

namespace deepinfer {

/// POST /v1/chat/completions (§9).
ApiResult<ConvertedRequest> parse_chat_request(std::string_view body, const ConversionOptions& options = {});
/// POST /v1/messages and /v1/messages/count_tokens (§10); max_tokens may be absent in both.
ApiResult<ConvertedRequest> parse_messages_request(std::string_view body, const ConversionOptions& options = {});
/// POST /v1/responses (§11). Stateless.
ApiResult<ConvertedRequest> parse_responses_request(std::string_view body, const ConversionOptions& options = {});
/// POST /v1/completions.
ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const ConversionOptions& options = {});
/// The conversational APIs by name; Api::kCompletions is not one of them.
ApiResult<ConvertedRequest> parse_request(Api api, std::string_view body, const ConversionOptions& options = {});

/// Ids of one prompt of Completions: text after the start token and without added tokens, ids as they are.
ApiResult<std::vector<int32_t>> encode_completion_prompt(const Tokenizer& tokenizer,
                                                         const std::variant<std::string, std::vector<int32_t>>& prompt);

/// {"input_tokens": N}
std::string count_tokens_body(int64_t input_tokens);

}  // namespace deepinfer
