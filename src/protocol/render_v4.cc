#include "protocol/render_v4.h"

#include <algorithm>
#include <array>

#include "protocol/dsml.h"
#include "protocol/normalise.h"
#include "protocol/segment_builder.h"

namespace deepinfer {
namespace {

using Role = Message::Role;

constexpr std::string_view kV4EffortHigh =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and "
    "comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential "
    "paths, edge cases, and adversarial scenarios.\nExplicitly write out your entire deliberation process, documenting every "
    "intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";
constexpr std::string_view kV4EffortMax =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST reason with the utmost depth and "
    "rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace "
    "every causal chain to its root, and resolve the underlying cause rather than any surface symptom.\nDo not stop reasoning "
    "until "
    "you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and "
    "no "
    "error remains undiscovered.\n\n";
constexpr std::string_view kJsonObjectFormat =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": \"json_object\"}";
constexpr std::string_view kUnsupportedImage = "[Unsupported Image]";
constexpr std::array<std::string_view, 8> kGroundingTokens = {"<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>",
                                                              "<｜/box｜>",     "<｜box｜>",     "<｜/ref｜>",   "<｜ref｜>"};

std::string effort_text(const Conversation& conversation, ModelVersion version) {
  if (!conversation.thinking) return {};
  const int value = conversation.effort.value();
  if (version == ModelVersion::kV4_1)
    return fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n", value);
  if (value <= 50) return {};
  return std::string(value <= 75 ? kV4EffortHigh : kV4EffortMax);
}

/// What the model itself wrote: grounding tokens in it are tokens again (§5).
void append_model_text(std::string_view text, SegmentBuilder& out) {
  constexpr std::string_view kOpening = "<｜";
  size_t written = 0;
  for (size_t at = text.find(kOpening); at != std::string_view::npos; at = text.find(kOpening, at)) {
    const auto token = std::find_if(kGroundingTokens.begin(), kGroundingTokens.end(),
                                    [&](std::string_view t) { return text.substr(at).starts_with(t); });
    if (token == kGroundingTokens.end()) {
      at += kOpening.size();
      continue;
    }
    out.text(text.substr(written, at - written));
    out.special(*token);
    at += token->size();
    written = at;
  }
  out.text(text.substr(written));
}

/// Text of the caller, with its images in their places.
void append_caller_content(const Message& m, ModelVersion version, SegmentBuilder& out) {
  size_t at = 0;
  for (const PlacedImage& placed : m.images) {
    const size_t offset = std::min(placed.offset, m.content.size());
    if (offset > at) out.text(std::string_view(m.content).substr(at, offset - at));
    at = std::max(at, offset);
    if (version == ModelVersion::kV4_1) {
      out.image(placed.image);
    } else {
      out.text(kUnsupportedImage);
    }
  }
  out.text(std::string_view(m.content).substr(at));
}

class Renderer {
 public:
  Renderer(const Conversation& conversation, ModelVersion version) : conversation_(conversation), version_(version) {}

  RenderedPrompt recipe() {
    prepare();
    out_.special(kBosToken);
    for (size_t i = 0; i < messages_.size(); ++i) {
      begin(i);
      const Message& m = messages_[i];
      if (m.role != Role::kAssistant) {
        turn(i);
        continue;
      }
      out_.special(kAssistantToken);
      if (!assistant(m, i > 0 && conversation_.thinking, i + 1 == messages_.size())) return out_.take();
    }
    out_.special(kAssistantToken);
    out_.special(conversation_.thinking ? kThinkToken : kEndThinkToken);
    // In thinking mode the calls come after the reasoning, so the block cannot be opened here.
    if (conversation_.tool_choice == ToolChoice::kRequired && !conversation_.tools.empty() && !conversation_.thinking)
      append_open_tool_calls(version_, out_);
    return out_.take();
  }

  RenderedPrompt checkpoint(bool drop_thinking) {
    prepare();
    const bool drop = drop_thinking && conversation_.thinking && conversation_.tools.empty();
    size_t last_user = 0;
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (user_like(i)) last_user = i;
    }
    out_.special(kBosToken);
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (drop && messages_[i].role == Role::kDeveloper && i < last_user) continue;
      begin(i);
      const Message& m = messages_[i];
      if (m.role == Role::kAssistant) {
        const bool dropped = drop && i < last_user;
        const bool thought = conversation_.thinking && !dropped && i > 0 && user_like(i - 1) && messages_[i - 1].task.empty();
        if (thought) {
          append_model_text(m.reasoning.value_or(""), out_);
          out_.special(kEndThinkToken);
        }
        append_model_text(m.content, out_);
        if (!m.tool_calls.empty()) append_tool_calls(m.tool_calls, version_, out_);
        if (!m.prefix) out_.special(kEosToken);
        continue;
      }
      turn(i);
      const bool answered = i + 1 == messages_.size() || messages_[i + 1].role == Role::kAssistant;
      if (!user_like(i) || !answered) continue;
      if (!m.task.empty() && m.task != "action") {
        out_.special(fmt::format("<｜{}｜>", m.task));
        continue;
      }
      out_.special(kAssistantToken);
      out_.special(conversation_.thinking && !(drop && i < last_user) ? kThinkToken : kEndThinkToken);
      if (m.task == "action") out_.special("<｜action｜>");
    }
    return out_.take();
  }

 private:
  /// §4.1 and the message that hosts tools and format (§4.2).
  void prepare() {
    messages_ = normalise_messages(conversation_.messages, version_);
    tools_active_ = !conversation_.tools.empty() && conversation_.tool_choice != ToolChoice::kNone;
    json_ = conversation_.response_format.kind == ResponseFormat::Kind::kJsonObject;
    if ((tools_active_ || json_) && (messages_.empty() || messages_[0].role != Role::kSystem))
      messages_.insert(messages_.begin(), Message::System(""));
  }

  bool user_like(size_t i) const {
    const Role role = messages_[i].role;
    return role == Role::kUser || role == Role::kTool || role == Role::kDeveloper ||
           (role == Role::kSystem && i > 0 && version_ == ModelVersion::kV4_1);
  }

  /// Before the first message: the effort, which V4.1 puts into a system turn.
  void begin(size_t i) {
    if (i > 0) return;
    const std::string effort = effort_text(conversation_, version_);
    if (version_ == ModelVersion::kV4_1 && (!effort.empty() || messages_[0].role == Role::kSystem)) out_.special(kSystemToken);
    out_.text(effort);
  }

  void turn(size_t i) {
    const Message& m = messages_[i];
    switch (m.role) {
      case Role::kSystem:
        if (i > 0 && version_ == ModelVersion::kV4_1) out_.special(kSystemToken);
        out_.text(m.content);
        if (i == 0) suffixes();
        break;
      case Role::kUser:
        open_user(i);
        append_caller_content(m, version_, out_);
        break;
      case Role::kTool:
        open_user(i);
        out_.text("<tool_result>");
        append_caller_content(m, version_, out_);
        out_.text("</tool_result>");
        break;
      case Role::kDeveloper:
        out_.special(kUserToken);
        append_caller_content(m, version_, out_);
        break;
      case Role::kLatestReminder:
        out_.special(kReminderToken);
        out_.text(m.content);
        break;
      case Role::kAssistant:
        break;
    }
  }

  void suffixes() {
    if (tools_active_) {
      out_.text("\n\n");
      append_tools_block(conversation_.tools, version_, out_);
    }
    if (json_) out_.text(kJsonObjectFormat);
  }

  /// User and tool messages in a row are one turn.
  void open_user(size_t i) {
    const bool goes_on = i > 0 && (messages_[i - 1].role == Role::kUser || messages_[i - 1].role == Role::kTool);
    if (goes_on) {
      out_.text("\n\n");
    } else {
      out_.special(kUserToken);
    }
  }

  /// Everything after the marker. False: the turn stays open, to be continued (§4.8).
  bool assistant(const Message& m, bool thinks, bool last) {
    const bool open = m.prefix && last;
    if (thinks) {
      out_.special(kThinkToken);
      append_model_text(m.reasoning.value_or(""), out_);
      if (open && m.content.empty() && m.reasoning.has_value()) return false;
    }
    out_.special(kEndThinkToken);
    append_model_text(m.content, out_);
    if (open) return false;
    if (!m.tool_calls.empty()) append_tool_calls(m.tool_calls, version_, out_);
    out_.special(kEosToken);
    return true;
  }

  const Conversation& conversation_;
  ModelVersion version_;
  std::vector<Message> messages_;
  bool tools_active_ = false;
  bool json_ = false;
  SegmentBuilder out_;
};

}  // namespace

RenderedPrompt render_prompt(const Conversation& conversation, ModelVersion version) {
  return Renderer(conversation, version).recipe();
}

RenderedPrompt render_checkpoint_prompt(const Conversation& conversation, ModelVersion version, bool drop_thinking) {
  return Renderer(conversation, version).checkpoint(drop_thinking);
}

}  // namespace deepinfer
