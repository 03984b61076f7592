#include "protocol/conversation_stream.h"

#include <algorithm>

namespace deepinfer {

std::string sse_frame(const ServerEvent& event) {
  return event.name.empty() ? fmt::format("data: {}\n\n", event.data)
                            : fmt::format("event: {}\ndata: {}\n\n", event.name, event.data);
}

std::string sse_keep_alive(Api api) {
  return api == Api::kMessages ? sse_frame({"ping", R"({"type":"ping"})"}) : ": keep-alive\n\n";
}

std::optional<ApiError> engine_failure(const Output& output) {
  if (!output.finish.has_value()) return std::nullopt;
  switch (*output.finish) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      return std::nullopt;
    case FinishReason::kCancelled:
      return ApiError::Http(503, "the request was cancelled");
    case FinishReason::kDeadline:
      return ApiError::Http(504, "the request's deadline passed");
    case FinishReason::kError:
      return ApiError::From(output.error);
  }
  return std::nullopt;
}

ModelChunk model_chunk(const Output& output) {
  ModelChunk chunk{.text = output.text,
                   .tokens = static_cast<int64_t>(output.tokens.size()),
                   .ids = output.tokens,
                   .logprobs = output.logprobs,
                   .text_ends = output.text_ends,
                   .finish = {}};
  if (output.finish.has_value())
    chunk.finish = output.finish == FinishReason::kLength ? ModelFinish::kLength : ModelFinish::kStop;
  return chunk;
}

ConversationStream::ConversationStream(const ConvertedRequest& request, ResponseInfo info,
                                       std::shared_ptr<const Tokenizer> tokenizer) {
  api_ = request.api;
  const int64_t n = std::max<int64_t>(request.generation.n, 1);
  for (int64_t i = 0; i < n; ++i) readers_.push_back(std::make_unique<OutputReader>(request.parsing, tokenizer));
  open_ = n;
  WriterContext context{.info = std::move(info),
                        .model = request.model,
                        .thinking = request.conversation.thinking,
                        .include_usage = request.include_usage,
                        .logprobs = request.generation.logprobs.has_value(),
                        .prompt_logprobs = request.generation.prompt_logprobs,
                        .choices = n,
                        .custom_tool_names = request.custom_tool_names,
                        .tokenizer = std::move(tokenizer)};
  switch (request.api) {
    case Api::kMessages:
      writer_ = make_messages_writer(std::move(context));
      break;
    case Api::kResponses:
      writer_ = make_responses_writer(std::move(context));
      break;
    default:
      writer_ = make_chat_writer(std::move(context));
  }
}

bool ConversationStream::finished(int64_t index) const {
  return failed_.has_value() || index < 0 || index >= static_cast<int64_t>(readers_.size()) ||
         readers_[static_cast<size_t>(index)]->finished();
}

int64_t ConversationStream::foreign_markers() const {
  int64_t count = 0;
  for (const auto& reader : readers_) count += reader->foreign_markers();
  return count;
}

ServerEvents ConversationStream::push(const Output& output, int64_t now, int64_t) {
  if (finished(output.index)) return {};
  if (auto error = engine_failure(output)) {
    error->param.reset();
    return fail(*error);
  }
  tiers_ = output.usage.tiers;
  if (!output.prompt_logprobs.empty()) writer_->prompt_logprobs(output.prompt_logprobs);
  ServerEvents out = ready(output.usage.prompt_tokens, output.usage.cached_tokens);
  ServerEvents more = feed(output.index, model_chunk(output), now);
  out.insert(out.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return out;
}

ServerEvents ConversationStream::ready(int64_t prompt_tokens, int64_t cached_tokens) {
  ServerEvents out;
  prompt_tokens_ = prompt_tokens;
  cached_tokens_ = cached_tokens;
  start(out);
  return out;
}

ServerEvents ConversationStream::feed(int64_t index, const ModelChunk& chunk, int64_t now) {
  ServerEvents out;
  if (finished(index)) return out;
  start(out);
  OutputReader& reader = *readers_[static_cast<size_t>(index)];
  std::vector<OutputEvent> events;
  reader.push(chunk, events);
  for (const OutputEvent& event : events) {
    if (event.kind != OutputEvent::Kind::kFinish) {
      writer_->event(index, event, out);
      continue;
    }
    --open_;
    writer_->finish(index, event, open_ == 0, usage(), now, out);
  }
  return out;
}

ServerEvents ConversationStream::fail(const ApiError& error) {
  ServerEvents out;
  if (done()) return out;
  failed_ = error;
  // The object of a failed response is part of Responses' last event; elsewhere a response that never began is its error alone.
  if (api_ == Api::kResponses) start(out);
  started_ = true;
  writer_->fail(error, out);
  return out;
}

void ConversationStream::start(ServerEvents& out) {
  if (started_) return;
  started_ = true;
  writer_->start(usage(), out);
}

ResponseUsage ConversationStream::usage() const {
  ResponseUsage usage{.prompt_tokens = prompt_tokens_, .cached_tokens = cached_tokens_, .tiers = tiers_};
  for (const auto& reader : readers_) {
    usage.completion_tokens += reader->completion_tokens();
    usage.reasoning_tokens += reader->reasoning_tokens();
  }
  return usage;
}

std::unique_ptr<ResponseStream> make_response_stream(const ConvertedRequest& request, ResponseInfo info,
                                                     std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_unique<ConversationStream>(request, std::move(info), std::move(tokenizer));
}

}  // namespace deepinfer
