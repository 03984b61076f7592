#pragma once

// Tools in the prompt: the block that declares them and the DSML blocks of calls that were made (spec/protocol §4.6, §4.7).

#include <span>
#include <string>
#include <string_view>

#include "protocol/conversation.h"
#include "protocol/segment_builder.h"

namespace deepinfer {

/// The tag names after ｜DSML｜: V4.1 has a space in front, V4 has none.
struct DsmlTags {
  std::string_view calls, invoke, parameter;
  static DsmlTags Of(ModelVersion version);
};

/// "## Tools ...": the markers in its fixed text are special tokens, schemas are text.
void append_tools_block(std::span<const Tool> tools, ModelVersion version, SegmentBuilder& out);

/// "\n\n<｜DSML｜ calls>...". Arguments that are not a JSON object become one parameter `arguments`.
void append_tool_calls(std::span<const ToolCall> calls, ModelVersion version, SegmentBuilder& out);

/// "\n\n<｜DSML｜ calls>\n": a block that the model has to go on with.
void append_open_tool_calls(ModelVersion version, SegmentBuilder& out);

}  // namespace deepinfer
