#include "protocol/prompt.h"

#include <charconv>

namespace deepinfer {
namespace {

using Role = ChatTurn::Role;

std::string effort_text(int effort) {
  return fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n", effort);
}

}  // namespace

Result<int> parse_reasoning_effort(std::string_view text) {
  if (text == "low") return kLowEffort;
  if (text == "medium" || text == "high" || text == "xhigh") return kHighEffort;
  if (text == "max") return kMaxEffort;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= 100) return value;
  return Err(Status::InvalidArgument("must be low, medium, high, xhigh, max or a whole number from 1 to 100"));
}

std::vector<PromptSegment> render_prompt(const ChatPrompt& prompt) {
  std::vector<PromptSegment> out;
  const auto special = [&](std::string_view literal) { out.push_back(PromptSegment::Special(literal)); };
  const auto text = [&](std::string_view t) { out.push_back(PromptSegment::Text(t)); };

  special(kBosToken);
  if (prompt.system.has_value() || prompt.thinking) special(kSystemToken);
  if (prompt.thinking) text(effort_text(prompt.effort));
  if (prompt.system.has_value()) text(*prompt.system);

  for (size_t i = 0; i < prompt.turns.size(); ++i) {
    const ChatTurn& turn = prompt.turns[i];
    if (turn.role == Role::kUser) {
      // User turns in a row are one turn.
      if (i > 0 && prompt.turns[i - 1].role == Role::kUser) {
        text("\n\n");
      } else {
        special(kUserToken);
      }
      text(turn.content);
      continue;
    }
    special(kAssistantToken);
    // A conversation that opens with the assistant has no pair of think tags there, whatever the mode.
    const bool first = i == 0 && !prompt.system.has_value();
    if (prompt.thinking && !first) {
      special(kThinkToken);
      text(turn.reasoning);
    }
    special(kEndThinkToken);
    text(turn.content);
    special(kEosToken);
  }
  special(kAssistantToken);
  special(prompt.thinking ? kThinkToken : kEndThinkToken);
  return out;
}

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::span<const PromptSegment> segments) {
  std::vector<int32_t> ids;
  std::string run;
  const auto flush = [&] {
    const std::vector<int32_t> encoded = tokenizer.encode(run);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    run.clear();
  };
  for (const PromptSegment& segment : segments) {
    if (segment.kind == PromptSegment::Kind::kText) {
      run += segment.text;
      continue;
    }
    flush();
    const std::optional<int32_t> id = tokenizer.added_token(segment.text);
    if (!id.has_value())
      return Err(Status::NotFound("the tokenizer has no added token \"{}\", which the prompt needs", segment.text));
    ids.push_back(*id);
  }
  flush();
  return ids;
}

}  // namespace deepinfer
