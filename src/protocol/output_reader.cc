#include "protocol/output_reader.h"

namespace deepinfer {

OutputReader::OutputReader(const ParsingOptions& options, std::shared_ptr<const Tokenizer> tokenizer)
    : stops_(!options.stop_sequences.empty()), parser_(options), tokenizer_(std::move(tokenizer)) {
  if (tokenizer_ != nullptr) detokenizer_.emplace(tokenizer_, /*skip_special=*/false);
}

void OutputReader::push(const ModelChunk& chunk, std::vector<OutputEvent>& out) {
  const size_t count = chunk.ids.size();
  if (!stops_ || count < 2 || chunk.text_ends.size() != count) return push_whole(chunk, out);
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    const size_t end = last ? chunk.text.size() : static_cast<size_t>(chunk.text_ends[i]);
    ModelChunk one{.text = chunk.text.substr(begin, end - begin), .tokens = 1, .ids = {chunk.ids[i]}};
    if (i < chunk.logprobs.size()) one.logprobs.push_back(chunk.logprobs[i]);
    if (last) one.finish = chunk.finish;
    push_whole(one, out);
    begin = end;
  }
}

void OutputReader::push_whole(const ModelChunk& chunk, std::vector<OutputEvent>& out) {
  if (finished_) return;
  completion_tokens_ += chunk.tokens;
  text_bytes_ += static_cast<int64_t>(chunk.text.size());
  const size_t first_new = tokens_.size();
  place_tokens(chunk);
  parser_.push(chunk.text, pieces_);
  if (chunk.finish.has_value() && parser_.stop_sequence() == nullptr) parser_.finish(pieces_);
  count_reasoning(first_new);
  take_pieces(out);
  if (parser_.stop_sequence() != nullptr) {
    end(AnswerFinish::kStopSequence, out);
  } else if (chunk.finish.has_value()) {
    switch (*chunk.finish) {
      case ModelFinish::kStop:
        end(parser_.tool_calls() > 0 ? AnswerFinish::kToolCalls : AnswerFinish::kStop, out);
        break;
      case ModelFinish::kLength:
        end(AnswerFinish::kLength, out);
        break;
      case ModelFinish::kContentFilter:
        end(AnswerFinish::kContentFilter, out);
        break;
      case ModelFinish::kEndOfStream:
        end(AnswerFinish::kEndOfStream, out);
        break;
    }
  }
}

void OutputReader::place_tokens(const ModelChunk& chunk) {
  if (!detokenizer_.has_value() || chunk.ids.empty()) {
    for (int64_t i = 0; i < chunk.tokens; ++i) tokens_.push_back({.end = text_bytes_, .logprobs = {}});
    return;
  }
  for (size_t i = 0; i < chunk.ids.size(); ++i) {
    PlacedToken token{.end = 0, .logprobs = {}};
    if (i < chunk.logprobs.size()) token.logprobs = chunk.logprobs[i];
    unplaced_.push_back(std::move(token));
    const size_t bytes = detokenizer_->push(chunk.ids[i]).size();
    if (bytes == 0) continue;
    token_bytes_ += static_cast<int64_t>(bytes);
    // The end token has no text: it is not part of the answer.
    if (token_bytes_ <= text_bytes_) {
      for (PlacedToken& t : unplaced_) {
        t.end = token_bytes_;
        tokens_.push_back(std::move(t));
      }
    }
    unplaced_.clear();
  }
}

void OutputReader::count_reasoning(size_t first_new) {
  // Once the reasoning has ended, nothing later belongs to it: every token is looked at once.
  const int64_t end = parser_.reasoning_end();
  for (size_t i = first_new; i < tokens_.size(); ++i) {
    if (tokens_[i].end <= end) ++reasoning_tokens_;
  }
}

void OutputReader::take_pieces(std::vector<OutputEvent>& out) {
  for (ParsedPiece& piece : pieces_) {
    OutputEvent event;
    switch (piece.kind) {
      case ParsedPiece::Kind::kText:
        event.kind = OutputEvent::Kind::kText;
        break;
      case ParsedPiece::Kind::kReasoning:
        event.kind = OutputEvent::Kind::kReasoning;
        break;
      case ParsedPiece::Kind::kToolCall:
        event.kind = OutputEvent::Kind::kToolCall;
        break;
      case ParsedPiece::Kind::kToolArguments:
        event.kind = OutputEvent::Kind::kToolArguments;
        break;
    }
    event.text = std::move(piece.text);
    while (!tokens_.empty() && tokens_.front().end <= piece.end) {
      PlacedToken& token = tokens_.front();
      if (token.end > piece.begin && token.logprobs.has_value()) event.logprobs.push_back(std::move(*token.logprobs));
      tokens_.pop_front();
    }
    out.push_back(std::move(event));
  }
  pieces_.clear();
}

void OutputReader::end(AnswerFinish reason, std::vector<OutputEvent>& out) {
  finished_ = true;
  OutputEvent event{.kind = OutputEvent::Kind::kFinish, .text = {}, .logprobs = {}, .finish = reason, .stop_sequence = {}};
  if (parser_.stop_sequence() != nullptr) event.stop_sequence = *parser_.stop_sequence();
  out.push_back(std::move(event));
}

}  // namespace deepinfer
