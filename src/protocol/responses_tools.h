#pragma once

// Tools of a Responses request: functions, namespaces of functions, and custom tools (spec/protocol §11).

#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "protocol/request_fields.h"

namespace deepinfer {

class ResponsesTools {
 public:
  /// `list`: the request's tools, or null.
  ApiResult<void> read(const Json* list, const ConversionOptions& options);

  const std::vector<Tool>& tools() const { return tools_; }
  /// Tools whose calls are custom_tool_call items.
  const std::vector<std::string>& custom_names() const { return custom_; }
  /// The name in the prompt of a member; a new one for a member that was not declared.
  std::string member_name(const std::string& space, const std::string& member);

 private:
  ApiResult<void> function(const ObjectInput& in);
  ApiResult<void> custom(const ObjectInput& in);
  ApiResult<void> members(const ObjectInput& in, const ConversionOptions& options);
  ApiResult<Tool> read_function(const ObjectInput& in);
  std::string unique(const std::string& base);

  std::vector<Tool> tools_;
  std::vector<std::string> custom_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> spaces_;
  std::map<std::pair<std::string, std::string>, std::string> members_;
};

}  // namespace deepinfer
