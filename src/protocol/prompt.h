#pragma once

// A prompt as segments, and segments as token ids (spec/protocol §1, §5). Pure.

#include <cstdint>
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
inline constexpr std::string_view kSystemToken = "<｜System｜>";  // V4.1
inline constexpr std::string_view kUserToken = "<｜User｜>";
inline constexpr std::string_view kAssistantToken = "<｜Assistant｜>";
inline constexpr std::string_view kReminderToken = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkToken = "<think>";
inline constexpr std::string_view kEndThinkToken = "</think>";
inline constexpr std::string_view kDsmlToken = "｜DSML｜";
inline constexpr std::string_view kImageToken = "<｜deepseek_image｜>";  // V4.1
/// How deepseek-recipe 0.1.0 spells an image in a prompt as text (§15); the tokenizer of V4.1 has no such token.
inline constexpr std::string_view kImagePlaceholder = "<｜image｜>";

/// A piece of a prompt: one added token by its literal, text in which added tokens have no meaning, or an image's place.
struct PromptSegment {
  enum class Kind : uint8_t { kSpecial, kText, kImage } kind = Kind::kText;
  std::string text;  ///< empty for an image

  static PromptSegment Special(std::string_view literal) { return {Kind::kSpecial, std::string(literal)}; }
  static PromptSegment Text(std::string_view text) { return {Kind::kText, std::string(text)}; }
  static PromptSegment Image() { return {Kind::kImage, {}}; }
  friend bool operator==(const PromptSegment&, const PromptSegment&) = default;
};

/// spec §5: a special segment is its id; text segments without a special between them are one run of BPE, in which spelled-out
/// added tokens are ordinary bytes; an image is one id of kImageToken. An error names an added token that the tokenizer lacks.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::span<const PromptSegment> segments);

/// All segments one after the other, for people and tests: ids cannot be recovered from it.
std::string prompt_text(std::span<const PromptSegment> segments);

}  // namespace deepinfer
