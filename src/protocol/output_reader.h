#pragma once

// One choice: what the engine says becomes events that no API owns (spec/protocol §7.4, §8.1, §8.2).

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/logprobs.h"
#include "protocol/output_parser.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer {

/// How the engine ended a choice.
enum class ModelFinish : uint8_t { kStop, kLength, kContentFilter, kEndOfStream };

/// What the engine has made since the last chunk.
struct ModelChunk {
  std::string text = {};
  int64_t tokens = 0;                           ///< that made the text, those without text included
  std::vector<int32_t> ids = {};                ///< of these tokens, where known
  std::vector<PositionLogprobs> logprobs = {};  ///< one per id, or none
  std::vector<int64_t> text_ends = {};          ///< one per id: where its text ends in `text`; empty: the ids came at once
  std::optional<ModelFinish> finish = {};
};

/// Why a choice ended, for its caller.
enum class AnswerFinish : uint8_t { kStop, kStopSequence, kToolCalls, kLength, kContentFilter, kEndOfStream };

struct OutputEvent {
  enum class Kind : uint8_t { kText, kReasoning, kToolCall, kToolArguments, kFinish } kind = Kind::kText;
  std::string text = {};                          ///< name of a kToolCall; never empty for kText and kReasoning
  std::vector<PositionLogprobs> logprobs = {};    ///< of the tokens that end in this text
  AnswerFinish finish = AnswerFinish::kStop;      ///< kFinish
  std::optional<std::string> stop_sequence = {};  ///< kFinish, if one matched
};

class OutputReader {
 public:
  /// `tokenizer`: needed for log-probs and for the exact count of reasoning tokens; may be null.
  OutputReader(const ParsingOptions& options, std::shared_ptr<const Tokenizer> tokenizer);

  /// Appends the events of a chunk. Nothing is read after the end. How the engine's news were merged into chunks changes neither
  /// what is read nor what is counted.
  void push(const ModelChunk& chunk, std::vector<OutputEvent>& out);
  bool finished() const { return finished_; }

  /// Up to the token that completed a stop sequence.
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  int64_t foreign_markers() const { return parser_.foreign_markers(); }

 private:
  struct PlacedToken {
    int64_t end;  ///< in the text
    std::optional<PositionLogprobs> logprobs;
  };
  void push_whole(const ModelChunk& chunk, std::vector<OutputEvent>& out);
  void place_tokens(const ModelChunk& chunk);
  void count_reasoning(size_t first_new);
  void take_pieces(std::vector<OutputEvent>& out);
  void end(AnswerFinish reason, std::vector<OutputEvent>& out);

  bool stops_;  ///< a stop sequence may end the answer in the middle of a chunk
  OutputParser parser_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<Detokenizer> detokenizer_;
  std::vector<ParsedPiece> pieces_;
  std::deque<PlacedToken> tokens_;     ///< whose text no piece has covered yet
  std::vector<PlacedToken> unplaced_;  ///< tokens of a character that is not complete
  int64_t text_bytes_ = 0;
  int64_t token_bytes_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace deepinfer
