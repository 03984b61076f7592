#include "protocol/output_parser.h"

#include <algorithm>
#include <mutex>

#include "protocol/json_input.h"
#include "protocol/prompt.h"

namespace deepinfer {
namespace {

constexpr std::string_view kToolMarker = "<｜DSML｜";
constexpr std::string_view kToolCloser = "</｜DSML｜";

const TextPattern& foreign_marker() {
  static const TextPattern pattern = TextPattern::Literal("<｜｜DSML｜｜");
  return pattern;
}

}  // namespace

OutputParser::OutputParser(const ParsingOptions& options) : foreign_(foreign_marker()) {
  for (const std::string& stop : options.stop_sequences) {
    if (!stop.empty()) stops_.push_back(stop);
  }
  rules_ = rules_for(options, stops_);
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

std::shared_ptr<const OutputParser::Rules> OutputParser::rules_for(const ParsingOptions& options,
                                                                   const std::vector<std::string>& stops) {
  const auto make = [&stops](const ParsingOptions& o) { return std::make_shared<const Rules>(build(o, stops)); };
  if (!stops.empty()) return make(options);
  constexpr int kForm = 8, kHardened = 4, kJson = 2, kTools = 1;
  static std::array<std::once_flag, 16> made;
  static std::array<std::shared_ptr<const Rules>, 16> rules;
  const int at = (options.enforced_form ? kForm : 0) + (options.hardened ? kHardened : 0) +
                 (options.parse_json_output ? kJson : 0) + (options.parse_tool_calls ? kTools : 0);
  std::call_once(made[static_cast<size_t>(at)], [&] { rules[static_cast<size_t>(at)] = make(options); });
  return rules[static_cast<size_t>(at)];
}

OutputParser::Rules OutputParser::build(const ParsingOptions& options, const std::vector<std::string>& stops) {
  Rules rules;
  build_answer(options, stops, rules);
  for (const Stage stage : {kReasoningLead, kReasoning}) {
    StageRules& r = rules[stage];
    r.unmatched = Action::kReasoning;
    if (options.parse_tool_calls) r.branches.push_back({TextPattern::AfterNewlines(kToolMarker), kToolCalls});
    if (stage == kReasoningLead) r.branches.push_back({TextPattern::First('\n'), kReasoningLead});
    r.branches.push_back({TextPattern::AfterNewlines(kEndThinkToken), kCommonLead});
  }
  build_tools(options.hardened, rules);
  if (!options.hardened) return rules;
  for (const Stage stage : {kCommonLead, kCommon, kJson, kReasoningLead, kReasoning, kValueString, kValueRaw}) {
    rules[stage].branches.push_back({TextPattern::Literal(kEosToken), kFinished});
  }
  return rules;
}

void OutputParser::build_answer(const ParsingOptions& options, const std::vector<std::string>& stops, Rules& rules) {
  const auto add_stops = [&](StageRules& r) {
    for (size_t i = 0; i < stops.size(); ++i)
      r.branches.push_back({TextPattern::Literal(stops[i]), kFinished, Action::kStop, {}, i});
  };
  for (const Stage stage : {kCommonLead, kCommon}) {
    StageRules& r = rules[stage];
    r.unmatched = options.parse_json_output ? Action::kSpace : Action::kText;
    if (options.parse_json_output) {
      for (const std::string_view fence : {"```json\n", "```\n"}) r.branches.push_back({TextPattern::Literal(fence), kJson});
      for (const std::string_view open : {"{", "["}) r.branches.push_back({TextPattern::Literal(open), kJson, Action::kText});
    } else {
      add_stops(r);
    }
    if (options.parse_tool_calls) r.branches.push_back({TextPattern::AfterNewlines(kToolMarker), kToolCalls});
    if (stage == kCommonLead) r.branches.push_back({TextPattern::First('\n'), kCommonLead});
    if (!options.enforced_form) r.branches.push_back({TextPattern::Literal(kEndThinkToken), kCommon});
  }
  StageRules& json = rules[kJson];
  json.unmatched = Action::kText;
  add_stops(json);
  json.branches.push_back({TextPattern::Literal("\n```"), kMatchedJson});
  StageRules& matched = rules[kMatchedJson];
  matched.unmatched = Action::kSpace;
  if (options.parse_tool_calls) matched.branches.push_back({TextPattern::AfterNewlines(kToolMarker), kToolCalls});
}

void OutputParser::build_tools(bool hardened, Rules& rules) {
  rules[kToolCalls].branches = {{TextPattern::Literal("invoke name=\""), kToolName},
                                {TextPattern::Literal("</｜DSML｜tool_calls>"), kFinished},
                                {TextPattern::Literal("</｜DSML｜ calls>"), kFinished}};
  rules[kToolName].unmatched = Action::kCollectName;
  rules[kToolName].branches = {{TextPattern::Literal("\""), kArgsFirst, Action::kAnnounce}};
  for (const Stage stage : {kArgsFirst, kArgsLater}) {
    const bool first = stage == kArgsFirst;
    rules[stage].branches = {{TextPattern::Literal("parameter name=\""), kParamName, Action::kFixed, first ? "{\"" : ", \""},
                             {TextPattern::Literal(kToolCloser), kToolCalls, Action::kFixed, first ? "{}" : "}"}};
    if (hardened) {
      rules[stage].branches.push_back({TextPattern::Literal("invoke name=\""), kToolName, Action::kFixed, first ? "{}" : "}"});
    }
  }
  rules[kParamName].unmatched = hardened ? Action::kEscaped : Action::kRaw;
  rules[kParamName].branches = {{TextPattern::Literal("\""), kParamType, Action::kFixed, "\": "}};
  rules[kParamType].branches = {{TextPattern::Literal("true\">"), kValueString, Action::kFixed, "\""},
                                {TextPattern::Literal("false\">"), kValueRaw}};
  if (hardened) rules[kParamType].branches.push_back({TextPattern::Literal("\">"), kValueString, Action::kFixed, "\""});
  rules[kValueString].unmatched = Action::kEscaped;
  rules[kValueString].branches = {{TextPattern::Literal(kToolCloser), kArgsLater, Action::kFixed, "\""}};
  rules[kValueRaw].unmatched = Action::kRaw;
  rules[kValueRaw].branches = {{TextPattern::Literal(kToolCloser), kArgsLater}};
  if (!hardened) return;
  for (const std::string_view opener : {"<｜DSML｜ parameter name=\"", "<｜DSML｜parameter name=\""}) {
    rules[kValueString].branches.push_back({TextPattern::AfterNewlines(opener, 1), kParamName, Action::kFixed, "\", \""});
    rules[kValueRaw].branches.push_back({TextPattern::AfterNewlines(opener, 1), kParamName, Action::kFixed, ", \""});
  }
}

void OutputParser::enter(Stage stage) {
  stage_ = stage;
  matchers_.clear();
  for (const Branch& branch : rules().branches) matchers_.emplace_back(branch.pattern);
}

void OutputParser::push(std::string_view bytes, std::vector<ParsedPiece>& out) {
  for (const char c : bytes) take(static_cast<uint8_t>(c), out);
  size_t keep = 0;
  for (const TextMatcher& matcher : matchers_) keep = std::max(keep, matcher.span());
  release(std::min(keep, pending_.size()), out);
}

void OutputParser::finish(std::vector<ParsedPiece>& out) {
  release(0, out);
  enter(stage_);
}

void OutputParser::take(uint8_t byte, std::vector<ParsedPiece>& out) {
  pending_ += static_cast<char>(byte);
  for (size_t i = 0; i < matchers_.size(); ++i) {
    if (!matchers_[i].push(byte)) continue;
    complete(rules().branches[i], matchers_[i].span(), out);
    return;
  }
}

void OutputParser::complete(const Branch& branch, size_t span, std::vector<ParsedPiece>& out) {
  release(std::min(std::max<size_t>(span, 1), pending_.size()), out);
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
  apply(rules().unmatched, std::string_view(pending_).substr(0, n), out);
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
