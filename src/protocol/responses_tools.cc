#include "protocol/responses_tools.h"

#include "protocol/apply_patch_tool.h"

namespace deepinfer {

ApiResult<void> ResponsesTools::read(const Json* list, const ConversionOptions& options) {
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    DI_API_ASSIGN(const ObjectInput tool, ObjectInput::Of((*list)[i], fmt::format("tools[{}]", i)));
    DI_API_ASSIGN(const std::string type, tool.required_string("type"));
    if (type == "function") {
      DI_API_RETURN_IF_ERROR(function(tool));
    } else if (type == "custom") {
      DI_API_RETURN_IF_ERROR(custom(tool));
    } else if (type == "namespace") {
      DI_API_RETURN_IF_ERROR(members(tool, options));
    } else if (type == "web_search" || type == "web_search_2025_08_26") {
      if (!options.responses_web_search_ignored) return Fail(ApiError::Invalid("Server tools are not supported"));
    }
    // Other types are tools of a server that we are not.
  }
  if (static_cast<int64_t>(tools_.size()) > options.max_tools)
    return Fail(ApiError::Field("tools", "at most {} functions are allowed, got {}", options.max_tools, tools_.size()));
  return {};
}

ApiResult<Tool> ResponsesTools::read_function(const ObjectInput& in) {
  Tool tool;
  DI_API_ASSIGN(tool.name, in.required_string("name"));
  if (!is_tool_name(tool.name))
    return Fail(ApiError::Invalid("{}: expected 1-128 ASCII letters, digits, underscores or hyphens", in.at("name")));
  DI_API_ASSIGN(tool.description, in.string("description"));
  DI_API_ASSIGN(const std::optional<bool> strict, in.boolean("strict"));
  tool.strict = strict.value_or(false);
  if (const Json* parameters = in.find("parameters"); parameters != nullptr) {
    if (!is_object_schema(*parameters))
      return Fail(ApiError::Invalid("Tool '{}' parameters must be a JSON Schema of type object", tool.name));
    tool.parameters = prompt_json(*parameters);
  }
  return tool;
}

ApiResult<void> ResponsesTools::function(const ObjectInput& in) {
  DI_API_ASSIGN(Tool tool, read_function(in));
  if (!names_.insert(tool.name).second) return Fail(ApiError::Invalid("Tool names must be unique"));
  tools_.push_back(std::move(tool));
  return {};
}

ApiResult<void> ResponsesTools::custom(const ObjectInput& in) {
  DI_API_ASSIGN(std::string name, in.required_string("name"));
  if (name != "apply_patch")
    return Fail(ApiError::Invalid("Unsupported custom tool: '{}'. Only 'apply_patch' is supported", name));
  if (!names_.insert(name).second) return Fail(ApiError::Invalid("Tool names must be unique"));
  custom_.push_back(name);
  tools_.push_back({.name = std::move(name), .description = kApplyPatchDescription, .parameters = kApplyPatchParameters});
  return {};
}

ApiResult<void> ResponsesTools::members(const ObjectInput& in, const ConversionOptions& options) {
  DI_API_ASSIGN(const std::string space, in.required_string("name"));
  if (!is_tool_name(space))
    return Fail(ApiError::Invalid("{}: expected 1-128 ASCII letters, digits, underscores or hyphens", in.at("name")));
  if (!spaces_.insert(space).second) return Fail(ApiError::Invalid("{}: duplicate namespace name '{}'", in.path(), space));
  DI_API_ASSIGN(const std::optional<std::string> description, in.string("description"));
  DI_API_ASSIGN(const Json* list, in.array("tools", options.max_tools));
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    DI_API_ASSIGN(const ObjectInput member, ObjectInput::Of((*list)[i], fmt::format("{}.tools[{}]", in.path(), i)));
    DI_API_ASSIGN(const std::string type, member.required_string("type"));
    if (type == "custom") return Fail(ApiError::Invalid("{}: custom tools are not supported inside a namespace", member.path()));
    if (type != "function") continue;
    DI_API_ASSIGN(Tool tool, read_function(member));
    if (members_.contains({space, tool.name}))
      return Fail(ApiError::Invalid("{}: tool names within a namespace must be unique", member.path()));
    tool.name = member_name(space, tool.name);
    if (description.has_value()) tool.description = fmt::format("{}\n{}", *description, tool.description.value_or(""));
    tools_.push_back(std::move(tool));
  }
  return {};
}

std::string ResponsesTools::member_name(const std::string& space, const std::string& member) {
  const auto found = members_.find({space, member});
  if (found != members_.end()) return found->second;
  std::string name = unique(fmt::format("{}::{}", space, member));
  members_.emplace(std::pair(space, member), name);
  return name;
}

std::string ResponsesTools::unique(const std::string& base) {
  std::string name = base;
  for (int i = 1; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", base, i);
  return name;
}

}  // namespace deepinfer
