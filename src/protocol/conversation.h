#pragma once

// The neutral form of a conversation (spec/protocol §3): what every request format becomes and what the renderer reads.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/reasoning_effort.h"

namespace deepinfer {

/// Which template and tag spelling. Chosen by the server from the model's configuration, never from a substring of a name.
enum class ModelVersion : uint8_t { kV4, kV4_1 };

/// A picture, by reference: nothing is fetched or decoded in this layer.
struct ImageRef {
  enum class Kind : uint8_t { kUrl, kDataUrl } kind = Kind::kUrl;
  std::string url = {};         ///< http(s) URL, or data URL with base64 payload
  std::string detail = "high";  ///< low, high, original or auto
  friend bool operator==(const ImageRef&, const ImageRef&) = default;
};

/// An image that stands before byte `offset` of its message's content.
struct PlacedImage {
  size_t offset = 0;
  ImageRef image;
  friend bool operator==(const PlacedImage&, const PlacedImage&) = default;
};

struct ToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  ///< as received: JSON text, valid or not
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct Message {
  enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper } role = Role::kUser;
  std::string content = {};
  std::vector<PlacedImage> images = {};       ///< of user and tool messages, by ascending offset
  std::optional<std::string> reasoning = {};  ///< assistant
  std::vector<ToolCall> tool_calls = {};      ///< assistant
  std::string tool_call_id = {};              ///< tool
  bool prefix = false;                        ///< last assistant message: continue it (§4.8)
  std::string task = {};                      ///< user, checkpoint encoding only: title, query, action, ... (§16)

  static Message System(std::string text) { return {.role = Role::kSystem, .content = std::move(text)}; }
  static Message User(std::string text) { return {.role = Role::kUser, .content = std::move(text)}; }
  static Message Assistant(std::string text, std::optional<std::string> reasoning = std::nullopt) {
    return {.role = Role::kAssistant, .content = std::move(text), .reasoning = std::move(reasoning)};
  }
  friend bool operator==(const Message&, const Message&) = default;
};

struct Tool {
  std::string name = {};
  std::optional<std::string> description = {};
  std::string parameters = "{}";  ///< JSON Schema as JSON text in the style of §4.5
  bool strict = false;
};

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

/// What the answer must look like. Text and JSON objects are asked for in the prompt; everything else needs a grammar.
struct ResponseFormat {
  enum class Kind : uint8_t { kText, kJsonObject, kJsonSchema, kRegex, kGrammar, kChoice } kind = Kind::kText;
  std::string name = {};                  ///< of the schema
  std::string definition = {};            ///< JSON Schema, regular expression or grammar, as text
  std::vector<std::string> choices = {};  ///< of kChoice
  bool strict = false;                    ///< keywords of the schema that can't be enforced are refused, not left out
  bool compact = false;                   ///< JSON without white space
  std::string field = {};                 ///< of the request where it stands, for errors
};

struct Conversation {
  std::vector<Message> messages;
  bool thinking = false;
  ReasoningEffort effort;   ///< thinking only
  std::vector<Tool> tools;  ///< empty if the choice is none; the one tool if it was named
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::optional<std::string> forced_tool;  ///< the name in a named choice
  bool parallel_tool_calls = true;
  ResponseFormat response_format;
};

}  // namespace deepinfer
