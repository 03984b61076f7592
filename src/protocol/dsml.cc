#include "protocol/dsml.h"

#include "protocol/json_input.h"

namespace deepinfer {
namespace {

// %C, %I, %P: the tags; %D, %T, %E: the special tokens ｜DSML｜, <think>, </think>; %S: the schemas.
constexpr std::string_view kToolsBlock =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<%D%C>\" block "
    "like "
    "the following:\n\n"
    "<%D%C>\n"
    "<%D%I name=\"$TOOL_NAME\">\n"
    "<%D%P name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</%D%P>\n"
    "...\n"
    "</%D%I>\n"
    "<%D%I name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</%D%I>\n"
    "</%D%C>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, "
    "objects), "
    "pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by %T), you MUST output your complete reasoning inside %T...%E BEFORE any tool calls "
    "or "
    "final response.\n\n"
    "Otherwise, output directly after %E with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n"
    "%S\n\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

std::string schemas(std::span<const Tool> tools) {
  std::string out;
  for (const Tool& tool : tools) {
    if (!out.empty()) out += '\n';
    out += "{\"name\": \"";
    append_json_escaped(tool.name, out);
    out += "\", \"description\": \"";
    append_json_escaped(tool.description.value_or(""), out);
    out += "\", \"parameters\": ";
    out += tool.parameters;
    out += '}';
  }
  return out;
}

void open_tag(std::string_view name, std::string_view attributes, SegmentBuilder& out) {
  out.text("<");
  out.special(kDsmlToken);
  out.text(fmt::format("{}{}>", name, attributes));
}

void close_tag(std::string_view name, SegmentBuilder& out) {
  out.text("</");
  out.special(kDsmlToken);
  out.text(fmt::format("{}>", name));
}

void append_parameter(std::string_view name, bool is_string, std::string_view value, const DsmlTags& tags, SegmentBuilder& out) {
  open_tag(tags.parameter, fmt::format(" name=\"{}\" string=\"{}\"", name, is_string), out);
  out.text(value);
  close_tag(tags.parameter, out);
}

void append_parameters(const ToolCall& call, const DsmlTags& tags, SegmentBuilder& out) {
  const auto arguments = parse_json(call.arguments);
  if (!arguments || !arguments->is_object()) {
    append_parameter("arguments", true, call.arguments, tags, out);
    return;
  }
  bool first = true;
  for (const auto& [name, value] : arguments->get_ref<const Json::object_t&>()) {
    if (!first) out.text("\n");
    first = false;
    const bool is_string = value.is_string();
    append_parameter(name, is_string, is_string ? value.get_ref<const std::string&>() : prompt_json(value), tags, out);
  }
}

}  // namespace

DsmlTags DsmlTags::Of(ModelVersion version) {
  if (version == ModelVersion::kV4) return {"tool_calls", "invoke", "parameter"};
  return {" calls", " invoke", " parameter"};
}

void append_tools_block(std::span<const Tool> tools, ModelVersion version, SegmentBuilder& out) {
  const DsmlTags tags = DsmlTags::Of(version);
  std::string run;
  const auto special = [&](std::string_view literal) {
    out.text(run);
    run.clear();
    out.special(literal);
  };
  for (size_t i = 0; i < kToolsBlock.size(); ++i) {
    if (kToolsBlock[i] != '%') {
      run += kToolsBlock[i];
      continue;
    }
    switch (kToolsBlock[++i]) {
      case 'C':
        run += tags.calls;
        break;
      case 'I':
        run += tags.invoke;
        break;
      case 'P':
        run += tags.parameter;
        break;
      case 'D':
        special(kDsmlToken);
        break;
      case 'T':
        special(kThinkToken);
        break;
      case 'E':
        special(kEndThinkToken);
        break;
      default:
        run += schemas(tools);
    }
  }
  out.text(run);
}

void append_tool_calls(std::span<const ToolCall> calls, ModelVersion version, SegmentBuilder& out) {
  const DsmlTags tags = DsmlTags::Of(version);
  append_open_tool_calls(version, out);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) out.text("\n");
    open_tag(tags.invoke, fmt::format(" name=\"{}\"", calls[i].name), out);
    out.text("\n");
    append_parameters(calls[i], tags, out);
    out.text("\n");
    close_tag(tags.invoke, out);
  }
  out.text("\n");
  close_tag(tags.calls, out);
}

void append_open_tool_calls(ModelVersion version, SegmentBuilder& out) {
  out.text("\n\n");
  open_tag(DsmlTags::Of(version).calls, "", out);
  out.text("\n");
}

}  // namespace deepinfer
