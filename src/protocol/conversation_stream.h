#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "protocol/event_writer.h"

namespace deepinfer {

/// The ResponseStream of the conversational APIs: one reader per choice, one writer.
class ConversationStream final : public ResponseStream {
 public:
  ConversationStream(const ConvertedRequest& request, ResponseInfo info, std::shared_ptr<const Tokenizer> tokenizer);

  ServerEvents push(const Output& output, int64_t now, int64_t prompt = 0) override;
  ServerEvents fail(const ApiError& error) override;
  bool done() const override { return failed_.has_value() || open_ == 0; }
  bool finished(int64_t index) const override;
  const std::optional<ApiError>& failed() const override { return failed_; }
  int64_t foreign_markers() const override;
  std::string body() const override { return writer_->body(); }

  /// The engine's first news, before any chunk: how long the prompt is and how much of it was cached.
  ServerEvents ready(int64_t prompt_tokens, int64_t cached_tokens);
  /// What push() does with an Output that is no failure.
  ServerEvents feed(int64_t index, const ModelChunk& chunk, int64_t now);

 private:
  void start(ServerEvents& out);
  ResponseUsage usage() const;

  Api api_ = Api::kChat;
  std::vector<std::unique_ptr<OutputReader>> readers_;
  std::unique_ptr<EventWriter> writer_;
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  TierUsage tiers_;
  int64_t open_ = 0;  ///< choices that have not ended
  bool started_ = false;
  std::optional<ApiError> failed_;
};

/// Why the engine gave a choice up, as an error; none if it ended as it should.
std::optional<ApiError> engine_failure(const Output& output);
/// The rest of an Output.
ModelChunk model_chunk(const Output& output);

}  // namespace deepinfer
