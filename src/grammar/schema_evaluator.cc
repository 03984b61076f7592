#include "grammar/schema_evaluator.h"

#include <algorithm>

#include "grammar/number_pattern.h"
#include "grammar/string_formats.h"

namespace deepinfer::grammar {
namespace {

/// A keyword that should be a number, or what its absence means.
double number_or(const Json& schema, const char* keyword, double otherwise) {
  const auto at = schema.find(keyword);
  return at != schema.end() && at->is_number() ? at->get<double>() : otherwise;
}

}  // namespace

bool same_value(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const auto x = Decimal::From(a);
    const auto y = Decimal::From(b);
    return x && y ? compare(*x, *y) == 0 : a == b;
  }
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_object()) {
    return std::all_of(a.items().begin(), a.items().end(),
                       [&](const auto& item) { return b.contains(item.key()) && same_value(item.value(), b[item.key()]); });
  }
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), same_value);
  return a == b;
}

std::string_view type_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_string()) return "string";
  if (value.is_array()) return "array";
  if (value.is_object()) return "object";
  const auto decimal = Decimal::From(value);
  return decimal && decimal->fraction.empty() ? "integer" : "number";
}

Result<bool> SchemaEvaluator::check(const Json& schema, const Json& value, int64_t depth) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (!schema.is_object()) return Err(Status::InvalidArgument("{}: neither an object nor a boolean", document_.path(schema)));
  if (depth > document_.work().limits().depth)
    return Err(Status::ResourceExhausted("{}: nested too deep", document_.path(schema)));
  if (!document_.work().steps()) return Err(document_.work().status());
  const std::string_view type = type_of(value);
  if (schema.contains("type")) {
    const auto matches = [&](const Json& name) { return name == type || (type == "integer" && name == "number"); };
    const Json& types = schema["type"];
    const bool nullable = value.is_null() && schema.contains("nullable") && schema["nullable"] == Json(true);
    const bool any = types.is_array() ? std::any_of(types.begin(), types.end(), matches) : matches(types);
    if (!any && !nullable) return false;
  }
  for (const char* keyword : {"enum", "x-not-enum"}) {
    if (!schema.contains(keyword)) continue;
    const Json& list = schema[keyword];
    const bool found = std::any_of(list.begin(), list.end(), [&](const Json& item) { return same_value(item, value); });
    if (found != (keyword[0] == 'e')) return false;
  }
  if (schema.contains("const") && !same_value(schema["const"], value)) return false;
  DI_ASSIGN_OR_RETURN(const bool combined, check_combined(schema, value, depth + 1));
  if (!combined) return false;
  if (value.is_string()) return check_string(schema, value.get_ref<const std::string&>());
  if (value.is_number()) return check_number(schema, value);
  if (value.is_array()) return check_array(schema, value, depth + 1);
  if (value.is_object()) return check_object(schema, value, depth + 1);
  return true;
}

Result<bool> SchemaEvaluator::check_combined(const Json& schema, const Json& value, int64_t depth) {
  if (schema.contains("$ref") && schema["$ref"].is_string()) {
    DI_ASSIGN_OR_RETURN(const Json* target, document_.resolve(schema, schema["$ref"].get<std::string>()));
    DI_ASSIGN_OR_RETURN(const bool ok, check(*target, value, depth));
    if (!ok) return false;
  }
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    if (!schema.contains(keyword)) continue;
    size_t count = 0;
    for (const Json& part : schema[keyword]) {
      DI_ASSIGN_OR_RETURN(const bool ok, check(part, value, depth));
      count += ok ? 1 : 0;
    }
    const bool fine = keyword[1] == 'l'                        ? count == schema[keyword].size()
                      : keyword[1] == 'n' && keyword[0] == 'a' ? count > 0
                                                               : count == 1;
    if (!fine) return false;
  }
  if (schema.contains("not")) {
    DI_ASSIGN_OR_RETURN(const bool ok, check(schema["not"], value, depth));
    if (ok) return false;
  }
  if (schema.contains("if")) {
    DI_ASSIGN_OR_RETURN(const bool condition, check(schema["if"], value, depth));
    const char* branch = condition ? "then" : "else";
    if (schema.contains(branch)) return check(schema[branch], value, depth);
  }
  return true;
}

Result<bool> SchemaEvaluator::check_string(const Json& schema, const std::string& value) {
  DI_ASSIGN_OR_RETURN(const std::vector<uint32_t> codes, decode_utf8(value));
  if (static_cast<double>(codes.size()) < number_or(schema, "minLength", 0)) return false;
  if (static_cast<double>(codes.size()) > number_or(schema, "maxLength", 1e18)) return false;
  for (const char* keyword : {"pattern", "x-not-pattern"}) {
    if (!schema.contains(keyword) || !schema[keyword].is_string()) continue;
    DI_ASSIGN_OR_RETURN(const CharDfa* dfa, document_.pattern_dfa(schema[keyword].get<std::string>()));
    if (dfa->matches(codes) != (keyword[0] == 'p')) return false;
  }
  if (schema.contains("format") && schema["format"].is_string()) {
    if (const auto pattern = format_pattern(schema["format"].get<std::string>())) {
      DI_ASSIGN_OR_RETURN(const CharDfa* dfa, document_.pattern_dfa("^(" + std::string(*pattern) + ")$"));
      return dfa->matches(codes);
    }
  }
  return true;
}

Result<bool> SchemaEvaluator::check_number(const Json& schema, const Json& value) {
  const auto number = Decimal::From(value);
  if (!number) return Err(Status::Unimplemented("{}: a number of more than 400 digits", document_.path(schema)));
  const auto order = [&](const char* keyword) -> std::optional<int> {
    if (!schema.contains(keyword) || !schema[keyword].is_number()) return std::nullopt;
    const auto bound = Decimal::From(schema[keyword]);
    return bound ? std::optional<int>(compare(*number, *bound)) : std::nullopt;
  };
  const auto flag = [&](const char* keyword) { return schema.contains(keyword) && schema[keyword] == Json(true); };
  if (order("minimum").value_or(1) < (flag("exclusiveMinimum") ? 1 : 0)) return false;
  if (order("maximum").value_or(-1) > (flag("exclusiveMaximum") ? -1 : 0)) return false;
  if (order("exclusiveMinimum").value_or(1) <= 0 || order("exclusiveMaximum").value_or(-1) >= 0) return false;
  if (schema.contains("multipleOf") && schema["multipleOf"].is_number()) {
    const auto divisor = Decimal::From(schema["multipleOf"]);
    const auto fits = divisor ? is_multiple(*number, *divisor) : std::nullopt;
    if (!fits) return Err(Status::Unimplemented("{}: multipleOf of this size", document_.path(schema)));
    return *fits;
  }
  return true;
}

Result<bool> SchemaEvaluator::check_array(const Json& schema, const Json& value, int64_t depth) {
  if (static_cast<double>(value.size()) < number_or(schema, "minItems", 0)) return false;
  if (static_cast<double>(value.size()) > number_or(schema, "maxItems", 1e18)) return false;
  const bool old_tuple = schema.contains("items") && schema["items"].is_array();
  const Json* prefix = schema.contains("prefixItems") ? &schema["prefixItems"] : old_tuple ? &schema["items"] : nullptr;
  const char* rest_name = old_tuple ? "additionalItems" : "items";
  const size_t fixed = prefix == nullptr ? 0 : prefix->size();
  for (size_t i = 0; i < value.size(); ++i) {
    const Json* item = i < fixed ? &(*prefix)[i] : schema.contains(rest_name) ? &schema[rest_name] : nullptr;
    if (item == nullptr) continue;
    DI_ASSIGN_OR_RETURN(const bool ok, check(*item, value[i], depth));
    if (!ok) return false;
  }
  if (schema.contains("uniqueItems") && schema["uniqueItems"] == Json(true)) {
    for (size_t i = 0; i < value.size(); ++i) {
      if (!document_.work().steps(static_cast<int64_t>(i))) return Err(document_.work().status());
      for (size_t k = 0; k < i; ++k) {
        if (same_value(value[i], value[k])) return false;
      }
    }
  }
  if (schema.contains("contains")) {
    double count = 0;
    for (const Json& item : value) {
      DI_ASSIGN_OR_RETURN(const bool ok, check(schema["contains"], item, depth));
      count += ok ? 1 : 0;
    }
    if (count < number_or(schema, "minContains", 1) || count > number_or(schema, "maxContains", 1e18)) return false;
  }
  if (schema.contains("unevaluatedItems"))
    return Err(Status::Unimplemented("{}/unevaluatedItems: not supported here", document_.path(schema)));
  return true;
}

Result<bool> SchemaEvaluator::check_object(const Json& schema, const Json& value, int64_t depth) {
  if (static_cast<double>(value.size()) < number_or(schema, "minProperties", 0)) return false;
  if (static_cast<double>(value.size()) > number_or(schema, "maxProperties", 1e18)) return false;
  if (schema.contains("required") && schema["required"].is_array()) {
    for (const Json& name : schema["required"]) {
      if (name.is_string() && !value.contains(name.get<std::string>())) return false;
    }
  }
  for (const auto& [key, item] : value.items()) {
    bool named = false;
    const auto apply = [&](const Json& part) { return check(part, item, depth); };
    if (schema.contains("properties") && schema["properties"].contains(key)) {
      named = true;
      DI_ASSIGN_OR_RETURN(const bool ok, apply(schema["properties"][key]));
      if (!ok) return false;
    }
    if (schema.contains("patternProperties")) {
      DI_ASSIGN_OR_RETURN(const std::vector<uint32_t> codes, decode_utf8(key));
      for (const auto& [pattern, part] : schema["patternProperties"].items()) {
        DI_ASSIGN_OR_RETURN(const CharDfa* dfa, document_.pattern_dfa(pattern));
        if (!dfa->matches(codes)) continue;
        named = true;
        DI_ASSIGN_OR_RETURN(const bool ok, apply(part));
        if (!ok) return false;
      }
    }
    if (!named && schema.contains("additionalProperties")) {
      DI_ASSIGN_OR_RETURN(const bool ok, apply(schema["additionalProperties"]));
      if (!ok) return false;
    }
    if (schema.contains("propertyNames")) {
      DI_ASSIGN_OR_RETURN(const bool ok, check(schema["propertyNames"], Json(key), depth));
      if (!ok) return false;
    }
  }
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    if (!schema.contains(keyword)) continue;
    for (const auto& [key, part] : schema[keyword].items()) {
      if (!value.contains(key)) continue;
      if (part.is_array()) {
        for (const Json& name : part) {
          if (name.is_string() && !value.contains(name.get<std::string>())) return false;
        }
        continue;
      }
      DI_ASSIGN_OR_RETURN(const bool ok, check(part, value, depth));
      if (!ok) return false;
    }
  }
  if (schema.contains("unevaluatedProperties"))
    return Err(Status::Unimplemented("{}/unevaluatedProperties: not supported here", document_.path(schema)));
  return true;
}

}  // namespace deepinfer::grammar
