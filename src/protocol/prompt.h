#pragma once

// The V4.1 prompt (spec/protocol §4.3, §4.4, §5): a conversation as segments, and segments as token ids. Pure.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer {

/// The added tokens that a prompt is built from, as tokenizer.json spells them.
inline constexpr std::string_view kBosToken = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosToken = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystemToken = "<｜System｜>";
inline constexpr std::string_view kUserToken = "<｜User｜>";
inline constexpr std::string_view kAssistantToken = "<｜Assistant｜>";
inline constexpr std::string_view kThinkToken = "<think>";
inline constexpr std::string_view kEndThinkToken = "</think>";

/// A piece of a prompt: one added token by its literal, or text in which added tokens have no meaning.
struct PromptSegment {
  enum class Kind : uint8_t { kSpecial, kText } kind = Kind::kText;
  std::string text;

  static PromptSegment Special(std::string_view literal) { return {Kind::kSpecial, std::string(literal)}; }
  static PromptSegment Text(std::string_view text) { return {Kind::kText, std::string(text)}; }
  friend bool operator==(const PromptSegment&, const PromptSegment&) = default;
};

struct ChatTurn {
  enum class Role : uint8_t { kUser, kAssistant } role = Role::kUser;
  std::string content;
  std::string reasoning;  ///< of an assistant turn; rendered in thinking mode only
};

inline constexpr int kLowEffort = 50;
inline constexpr int kHighEffort = 75;
inline constexpr int kMaxEffort = 100;

/// A conversation to be continued by the assistant.
struct ChatPrompt {
  std::optional<std::string> system;
  std::vector<ChatTurn> turns;
  bool thinking = false;
  int effort = kHighEffort;  ///< 1..100; thinking mode only
};

/// "low", "medium" (as high), "high", "xhigh" (as high), "max" or a whole number from 1 to 100. spec §4.4.
Result<int> parse_reasoning_effort(std::string_view text);

/// spec §4.3, without tools, images and reminders. Ends with the opening of the assistant's turn.
std::vector<PromptSegment> render_prompt(const ChatPrompt& prompt);

/// spec §5: a special segment is its id; text segments without a special between them are one run of BPE, in which spelled-out
/// added tokens are ordinary bytes. An error names a special token that the tokenizer lacks.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::span<const PromptSegment> segments);

}  // namespace deepinfer
