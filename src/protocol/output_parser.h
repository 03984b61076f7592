#pragma once

// The model's text as reasoning, answer and tool calls (spec/protocol §7). Bytes in, events out; nothing is lost or reordered,
// and any cut of the input gives the same events once neighbours of one kind are joined.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/converted_request.h"
#include "protocol/text_matcher.h"

namespace deepinfer {

struct ParsedPiece {
  enum class Kind : uint8_t {
    kText,  ///< of the answer
    kReasoning,
    kToolCall,       ///< a call is announced: its name
    kToolArguments,  ///< a fragment of its arguments as JSON text
  } kind = Kind::kText;
  std::string text = {};
  int64_t begin = 0;  ///< the bytes of the model's text that it comes from, counted from the start of the output
  int64_t end = 0;
  friend bool operator==(const ParsedPiece&, const ParsedPiece&) = default;
};

class OutputParser {
 public:
  explicit OutputParser(const ParsingOptions& options);
  OutputParser(const OutputParser&) = delete;
  OutputParser& operator=(const OutputParser&) = delete;

  /// Appends what `bytes` complete. Whole UTF-8 characters in give whole characters out.
  void push(std::string_view bytes, std::vector<ParsedPiece>& out);
  /// The output has ended: what was held back because it might have become a marker is text after all.
  void finish(std::vector<ParsedPiece>& out);

  /// The stop sequence that ended the answer; null if none did. Nothing after it is read.
  const std::string* stop_sequence() const { return stop_; }
  int64_t tool_calls() const { return tool_calls_; }
  /// The text that follows belongs to the reasoning, as far as is known.
  bool in_reasoning() const { return stage_ == kReasoningLead || stage_ == kReasoning; }
  /// Where in the output the reasoning ended, its closing marker included; INT64_MAX while it goes on.
  int64_t reasoning_end() const { return in_reasoning() ? INT64_MAX : reasoning_end_; }
  /// Doubled-bar tool markers (`<｜｜DSML｜｜`) seen in the answer. They stay text: no spelling of the format, never run.
  int64_t foreign_markers() const { return foreign_markers_; }

 private:
  enum Stage : uint8_t {
    kCommonLead,
    kCommon,
    kJson,
    kMatchedJson,
    kToolCalls,
    kToolName,
    kArgsFirst,
    kArgsLater,
    kParamName,
    kParamType,
    kValueString,
    kValueRaw,
    kReasoningLead,
    kReasoning,
    kFinished,
    kStages
  };
  enum class Action : uint8_t {
    kSkip,
    kText,
    kSpace,
    kReasoning,
    kCollectName,
    kAnnounce,
    kRaw,
    kEscaped,
    kFixed,  ///< emit the branch's fixed text as arguments
    kStop,   ///< a stop sequence
  };
  struct Branch {
    TextPattern pattern;
    Stage next;
    Action action = Action::kSkip;
    std::string fixed = {};
    size_t stop = 0;
  };
  struct StageRules {
    std::vector<Branch> branches;
    Action unmatched = Action::kSkip;
  };

  /// Immutable, and without stop sequences the same for all parsers of equal options.
  using Rules = std::array<StageRules, kStages>;

  static std::shared_ptr<const Rules> rules_for(const ParsingOptions& options, const std::vector<std::string>& stops);
  static Rules build(const ParsingOptions& options, const std::vector<std::string>& stops);
  static void build_answer(const ParsingOptions& options, const std::vector<std::string>& stops, Rules& rules);
  static void build_tools(bool hardened, Rules& rules);
  const StageRules& rules() const { return (*rules_)[stage_]; }
  void enter(Stage stage);
  void take(uint8_t byte, std::vector<ParsedPiece>& out);
  void complete(const Branch& branch, size_t span, std::vector<ParsedPiece>& out);
  void apply(Action action, std::string_view bytes, std::vector<ParsedPiece>& out);
  void emit(ParsedPiece::Kind kind, std::string_view text, size_t source, std::vector<ParsedPiece>& out);
  void release(size_t keep, std::vector<ParsedPiece>& out);

  std::vector<std::string> stops_;
  std::shared_ptr<const Rules> rules_;
  Stage stage_ = kCommonLead;
  std::vector<TextMatcher> matchers_;  ///< of the stage, by branch
  std::string pending_;                ///< bytes since the stage was entered that no action has taken
  int64_t position_ = 0;               ///< of the first pending byte in the output
  std::string name_;
  const std::string* stop_ = nullptr;
  int64_t tool_calls_ = 0;
  int64_t reasoning_end_ = 0;
  int64_t foreign_markers_ = 0;
  TextMatcher foreign_;
};

}  // namespace deepinfer
