#pragma once

// A conversation as the prompt of DeepSeek V4 and V4.1 (spec/protocol §4, §16). Pure.

#include <vector>

#include "protocol/conversation.h"
#include "protocol/prompt.h"

namespace deepinfer {

/// A prompt to be encoded, and its pictures in the order of their placeholders.
struct RenderedPrompt {
  std::vector<PromptSegment> segments;
  std::vector<ImageRef> images;
};

/// The rules of deepseek-recipe (§4): what is served. Ends with the opening of the assistant's turn, or with the turn that
/// Message::prefix continues.
RenderedPrompt render_prompt(const Conversation& conversation, ModelVersion version);

/// The rules of the checkpoint's own encoder (§16), which engines that embed it follow. `drop_thinking`: in thinking mode without
/// tools, earlier reasoning is left out.
RenderedPrompt render_checkpoint_prompt(const Conversation& conversation, ModelVersion version, bool drop_thinking = true);

}  // namespace deepinfer
