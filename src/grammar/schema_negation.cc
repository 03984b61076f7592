#include "grammar/schema_negation.h"

#include <algorithm>
#include <array>

#include "grammar/string_formats.h"

namespace deepinfer::grammar {
namespace {

constexpr int kMaxDepth = 24;

Json typed(const char* type, const char* keyword, Json value) { return Json{{"type", type}, {keyword, std::move(value)}}; }

Json without(const char* name) { return Json{{"type", "object"}, {"properties", Json{{name, false}}}}; }

Result<Json> all_types_but(const Json& types) {
  Json out = Json::array();
  const auto has = [&](const char* name) {
    return types.is_array() ? std::find(types.begin(), types.end(), Json(name)) != types.end() : types == Json(name);
  };
  if (has("integer") && !has("number")) return Err(Status::Unimplemented("\"not\" of type integer"));
  for (const char* name : {"null", "boolean", "number", "string", "array", "object"}) {
    if (!has(name)) out.push_back(name);
  }
  return out.empty() ? Json(false) : Json{{"type", out}};
}

/// The values that break one keyword; null where the keyword breaks nothing.
Result<Json> negate_keyword(const SchemaDocument& document, const Json& schema, const std::string& key, const Json& value,
                            int depth) {
  const auto negate = [&](const Json& part) { return negate_schema(document, part, depth + 1); };
  const auto list = [&](const char* combine) -> Result<Json> {
    Json parts = Json::array();
    for (const Json& part : value) {
      DI_ASSIGN_OR_RETURN(Json negated, negate(part));
      parts.push_back(std::move(negated));
    }
    return Json{{combine, parts}};
  };
  const auto count = [&](const char* type, const char* opposite, int64_t change) -> Result<Json> {
    if (!value.is_number_integer()) return Err(Status::Unimplemented("{}/{}: not a whole number", document.path(schema), key));
    const int64_t bound = value.get<int64_t>() + change;
    return bound < 0 ? Json(false) : typed(type, opposite, bound);
  };
  if (key == "type") {
    if (schema.contains("nullable")) return Err(Status::Unimplemented("{}: \"not\" of nullable", document.path(schema)));
    return all_types_but(value);
  }
  if (key == "enum") return Json{{"x-not-enum", value}};
  if (key == "const") return Json{{"x-not-enum", Json::array({value})}};
  if (key == "not") return value;
  if (key == "allOf") return list("anyOf");
  if (key == "anyOf") return list("allOf");
  if (key == "$ref" && value.is_string()) {
    DI_ASSIGN_OR_RETURN(const Json* target, document.resolve(schema, value.get<std::string>()));
    return negate(*target);
  }
  if (key == "required") {
    Json parts = Json::array();
    for (const Json& name : value) parts.push_back(without(name.get<std::string>().c_str()));
    return Json{{"anyOf", parts}};
  }
  if (key == "properties") {
    Json parts = Json::array();
    for (const auto& [name, part] : value.items()) {
      DI_ASSIGN_OR_RETURN(Json negated, negate(part));
      if (negated == Json(false)) continue;
      parts.push_back(
          Json{{"type", "object"}, {"required", Json::array({name})}, {"properties", Json{{name, std::move(negated)}}}});
    }
    return parts.empty() ? Json(false) : Json{{"anyOf", parts}};
  }
  if (key == "items" && !value.is_array()) {
    DI_ASSIGN_OR_RETURN(Json negated, negate(value));
    return typed("array", "contains", std::move(negated));
  }
  if (key == "minimum") return typed("number", "exclusiveMaximum", value);
  if (key == "maximum") return typed("number", "exclusiveMinimum", value);
  if (key == "exclusiveMinimum" && value.is_number()) return typed("number", "maximum", value);
  if (key == "exclusiveMaximum" && value.is_number()) return typed("number", "minimum", value);
  if (key == "minLength") return count("string", "maxLength", -1);
  if (key == "maxLength") return count("string", "minLength", 1);
  if (key == "pattern") return typed("string", "x-not-pattern", value);
  if (key == "format" && value.is_string() && !is_unsupported_format(value.get<std::string>())) {
    const auto pattern = format_pattern(value.get<std::string>());
    return pattern ? typed("string", "x-not-pattern", "^(" + std::string(*pattern) + ")$") : Json(false);
  }
  if (key == "minItems") return count("array", "maxItems", -1);
  if (key == "maxItems") return count("array", "minItems", 1);
  if (key == "minProperties") return count("object", "maxProperties", -1);
  if (key == "maxProperties") return count("object", "minProperties", 1);
  return Err(Status::Unimplemented("{}/{}: has no opposite that can be enforced (wanted by not, if or oneOf)",
                                   document.path(schema), key));
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  static constexpr std::array<std::string_view, 24> kNames = {
      "title",    "description", "default",         "examples",         "example",
      "$comment", "deprecated",  "readOnly",        "writeOnly",        "$schema",
      "$id",      "id",          "$anchor",         "$dynamicAnchor",   "$vocabulary",
      "$defs",    "definitions", "contentEncoding", "contentMediaType", "contentSchema",
      "comment",  "nullable",    "discriminator",   "externalDocs"};
  return std::find(kNames.begin(), kNames.end(), keyword) != kNames.end();
}

Result<Json> negate_schema(const SchemaDocument& document, const Json& schema, int depth) {
  if (schema.is_boolean()) return Json(!schema.get<bool>());
  if (!schema.is_object()) return Err(Status::InvalidArgument("{}: neither an object nor a boolean", document.path(schema)));
  if (depth > kMaxDepth)
    return Err(Status::Unimplemented("{}: the opposite of a schema that is this deep", document.path(schema)));
  Json parts = Json::array();
  for (const auto& [key, value] : schema.items()) {
    if (is_annotation(key)) continue;
    DI_ASSIGN_OR_RETURN(Json part, negate_keyword(document, schema, key, value, depth));
    if (part != Json(false)) parts.push_back(std::move(part));
  }
  if (parts.empty()) return Json(false);
  return parts.size() == 1 ? parts[0] : Json{{"anyOf", parts}};
}

}  // namespace deepinfer::grammar
