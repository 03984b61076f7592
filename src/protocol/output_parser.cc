#include "protocol/output_parser.h"

#include <algorithm>

#include "protocol/json_input.h"
#include "protocol/prompt.h"

namespace deepinfer {
namespace {

constexpr std::string_view kToolMarker = "<｜DSML｜";
constexpr std::string_view kToolCloser = "</｜DSML｜";
constexpr std::string_view kForeignMarker = "<｜｜DSML｜｜";

}  // namespace

OutputParser::OutputParser(const ParsingOptions& options) : foreign_(TextMatcher::Literal(kForeignMarker)) {
  for (const std::string& stop : options.stop_sequences) {
    if (!stop.empty()) stops_.push_back(stop);
  }
  escape_names_ = options.hardened;
  build(options);
  Stage first = kCommonLead;
  if (options.tool_call_initial_stage) {
    first = kToolCalls;
  } else if (options.reasoning_initial_stage == ReasoningStage::kStart) {
    first = kReasoningLead;
  } else if (options.reasoning_initial_stage == ReasoningStage::kReasoning) {
    first = kReasoning;
  } else if (options.reasoning_initial_stage == ReasoningStage::kContent) {
    first = kCommon;
  }
  enter(first);
}

void OutputParser::build(const ParsingOptions& options) {
  build_answer(options);
  for (const Stage stage : {kReasoningLead, kReasoning}) {
    StageRules& r = rules_[stage];
    r.unmatched = Action::kReasoning;
    if (options.parse_tool_calls) r.branches.push_back({TextMatcher::AfterNewlines(kToolMarker), kToolCalls});
    if (stage == kReasoningLead) r.branches.push_back({TextMatcher::First('\n'), kReasoningLead});
    r.branches.push_back({TextMatcher::AfterNewlines(kEndThinkToken), kCommonLead});
  }
  build_tools(options.hardened);
  if (!options.hardened) return;
  for (const Stage stage : {kCommonLead, kCommon, kJson, kReasoningLead, kReasoning, kValueString, kValueRaw}) {
    rules_[stage].branches.push_back({TextMatcher::Literal(kEosToken), kFinished});
  }
}

void OutputParser::build_answer(const ParsingOptions& options) {
  const auto stops = [&](StageRules& r) {
    for (size_t i = 0; i < stops_.size(); ++i)
      r.branches.push_back({TextMatcher::Literal(stops_[i]), kFinished, Action::kStop, {}, i});
  };
  for (const Stage stage : {kCommonLead, kCommon}) {
    StageRules& r = rules_[stage];
    r.unmatched = options.parse_json_output ? Action::kSpace : Action::kText;
    if (options.parse_json_output) {
      for (const std::string_view fence : {"```json\n", "```\n"}) r.branches.push_back({TextMatcher::Literal(fence), kJson});
      for (const std::string_view open : {"{", "["}) r.branches.push_back({TextMatcher::Literal(open), kJson, Action::kText});
    } else {
      stops(r);
    }
    if (options.parse_tool_calls) r.branches.push_back({TextMatcher::AfterNewlines(kToolMarker), kToolCalls});
    if (stage == kCommonLead) r.branches.push_back({TextMatcher::First('\n'), kCommonLead});
    r.branches.push_back({TextMatcher::Literal(kEndThinkToken), kCommon});
  }
  StageRules& json = rules_[kJson];
  json.unmatched = Action::kText;
  stops(json);
  json.branches.push_back({TextMatcher::Literal("\n```"), kMatchedJson});
  StageRules& matched = rules_[kMatchedJson];
  matched.unmatched = Action::kSpace;
  if (options.parse_tool_calls) matched.branches.push_back({TextMatcher::AfterNewlines(kToolMarker), kToolCalls});
}

void OutputParser::build_tools(bool hardened) {
  rules_[kToolCalls].branches = {{TextMatcher::Literal("invoke name=\""), kToolName},
                                 {TextMatcher::Literal("</｜DSML｜tool_calls>"), kFinished},
                                 {TextMatcher::Literal("</｜DSML｜ calls>"), kFinished}};
  rules_[kToolName].unmatched = Action::kCollectName;
  rules_[kToolName].branches = {{TextMatcher::Literal("\""), kArgsFirst, Action::kAnnounce}};
  for (const Stage stage : {kArgsFirst, kArgsLater}) {
    const bool first = stage == kArgsFirst;
    rules_[stage].branches = {{TextMatcher::Literal("parameter name=\""), kParamName, Action::kFixed, first ? "{\"" : ", \""},
                              {TextMatcher::Literal(kToolCloser), kToolCalls, Action::kFixed, first ? "{}" : "}"}};
    if (hardened) {
      rules_[stage].branches.push_back({TextMatcher::Literal("invoke name=\""), kToolName, Action::kFixed, first ? "{}" : "}"});
    }
  }
  rules_[kParamName].unmatched = escape_names_ ? Action::kEscaped : Action::kRaw;
  rules_[kParamName].branches = {{TextMatcher::Literal("\""), kParamType, Action::kFixed, "\": "}};
  rules_[kParamType].branches = {{TextMatcher::Literal("true\">"), kValueString, Action::kFixed, "\""},
                                 {TextMatcher::Literal("false\">"), kValueRaw}};
  if (hardened) rules_[kParamType].branches.push_back({TextMatcher::Literal("\">"), kValueString, Action::kFixed, "\""});
  rules_[kValueString].unmatched = Action::kEscaped;
  rules_[kValueString].branches = {{TextMatcher::Literal(kToolCloser), kArgsLater, Action::kFixed, "\""}};
  rules_[kValueRaw].unmatched = Action::kRaw;
  rules_[kValueRaw].branches = {{TextMatcher::Literal(kToolCloser), kArgsLater}};
  if (!hardened) return;
  for (const std::string_view opener : {"<｜DSML｜ parameter name=\"", "<｜DSML｜parameter name=\""}) {
    rules_[kValueString].branches.push_back({TextMatcher::AfterNewlines(opener, 1), kParamName, Action::kFixed, "\", \""});
    rules_[kValueRaw].branches.push_back({TextMatcher::AfterNewlines(opener, 1), kParamName, Action::kFixed, ", \""});
  }
}

void OutputParser::enter(Stage stage) {
  stage_ = stage;
  for (Branch& branch : rules_[stage].branches) branch.matcher.reset();
}

void OutputParser::push(std::string_view bytes, std::vector<ParsedPiece>& out) {
  for (const char c : bytes) take(static_cast<uint8_t>(c), out);
  size_t keep = 0;
  for (const Branch& branch : rules_[stage_].branches) keep = std::max(keep, branch.matcher.span());
  release(std::min(keep, pending_.size()), out);
}

void OutputParser::finish(std::vector<ParsedPiece>& out) {
  release(0, out);
  enter(stage_);
}

void OutputParser::take(uint8_t byte, std::vector<ParsedPiece>& out) {
  pending_ += static_cast<char>(byte);
  for (Branch& branch : rules_[stage_].branches) {
    if (branch.matcher.push(byte)) {
      complete(branch, out);
      return;
    }
  }
}

void OutputParser::complete(Branch& branch, std::vector<ParsedPiece>& out) {
  const size_t span = std::min(std::max<size_t>(branch.matcher.span(), 1), pending_.size());
  release(span, out);
  const std::string marker = std::move(pending_);
  pending_.clear();
  switch (branch.action) {
    case Action::kFixed:
      emit(ParsedPiece::Kind::kToolArguments, branch.fixed, marker.size(), out);
      break;
    case Action::kAnnounce:
      ++tool_calls_;
      emit(ParsedPiece::Kind::kToolCall, name_, marker.size(), out);
      name_.clear();
      break;
    case Action::kStop:
      stop_ = &stops_[branch.stop];
      position_ += static_cast<int64_t>(marker.size());
      break;
    default:
      apply(branch.action, marker, out);
  }
  if (in_reasoning()) reasoning_end_ = position_;
  enter(branch.next);
}

void OutputParser::release(size_t keep, std::vector<ParsedPiece>& out) {
  const size_t n = pending_.size() - keep;
  if (n == 0) return;
  apply(rules_[stage_].unmatched, std::string_view(pending_).substr(0, n), out);
  pending_.erase(0, n);
}

void OutputParser::apply(Action action, std::string_view bytes, std::vector<ParsedPiece>& out) {
  using Kind = ParsedPiece::Kind;
  switch (action) {
    case Action::kText:
      for (const char c : bytes) {
        if (!foreign_.push(static_cast<uint8_t>(c))) continue;
        ++foreign_markers_;
        foreign_.reset();
      }
      emit(Kind::kText, bytes, bytes.size(), out);
      return;
    case Action::kSpace:
      emit(Kind::kText, " ", bytes.size(), out);
      return;
    case Action::kReasoning:
      emit(Kind::kReasoning, bytes, bytes.size(), out);
      return;
    case Action::kRaw:
      emit(Kind::kToolArguments, bytes, bytes.size(), out);
      return;
    case Action::kEscaped: {
      std::string escaped;
      append_json_escaped(bytes, escaped);
      emit(Kind::kToolArguments, escaped, bytes.size(), out);
      return;
    }
    case Action::kCollectName:
      name_ += bytes;
      break;
    default:
      break;
  }
  position_ += static_cast<int64_t>(bytes.size());
}

void OutputParser::emit(ParsedPiece::Kind kind, std::string_view text, size_t source, std::vector<ParsedPiece>& out) {
  out.push_back({kind, std::string(text), position_, position_ + static_cast<int64_t>(source)});
  position_ += static_cast<int64_t>(source);
}

}  // namespace deepinfer
