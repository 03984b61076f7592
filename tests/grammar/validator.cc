#include "grammar/validator.h"

#include <cmath>
#include <regex>
#include <string>

namespace deepinfer::testing {
namespace {

using Json = nlohmann::ordered_json;

bool has_type(const Json& value, const std::string& name) {
  if (name == "null") return value.is_null();
  if (name == "boolean") return value.is_boolean();
  if (name == "string") return value.is_string();
  if (name == "array") return value.is_array();
  if (name == "object") return value.is_object();
  if (name == "number") return value.is_number();
  return value.is_number_integer() || (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

int64_t characters(const std::string& text) {
  int64_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

bool searches(const std::string& pattern, const std::string& text) {
  return std::regex_search(text, std::regex(pattern, std::regex::ECMAScript));
}

bool valid_object(const Json& schema, const Json& value, const Json& root) {
  if (schema.contains("required") && schema["required"].is_array()) {
    for (const Json& name : schema["required"]) {
      if (!value.contains(name.get<std::string>())) return false;
    }
  }
  if (value.size() < schema.value("minProperties", size_t{0}) || value.size() > schema.value("maxProperties", size_t{1} << 40))
    return false;
  for (const auto& [key, item] : value.items()) {
    bool known = false;
    if (schema.contains("properties") && schema["properties"].contains(key)) {
      known = true;
      if (!valid_json(schema["properties"][key], item, root)) return false;
    }
    if (schema.contains("patternProperties")) {
      for (const auto& [pattern, part] : schema["patternProperties"].items()) {
        if (!searches(pattern, key)) continue;
        known = true;
        if (!valid_json(part, item, root)) return false;
      }
    }
    if (!known && schema.contains("additionalProperties") && !valid_json(schema["additionalProperties"], item, root))
      return false;
    if (schema.contains("propertyNames") && !valid_json(schema["propertyNames"], Json(key), root)) return false;
  }
  return true;
}

bool valid_array(const Json& schema, const Json& value, const Json& root) {
  if (value.size() < schema.value("minItems", size_t{0}) || value.size() > schema.value("maxItems", size_t{1} << 40))
    return false;
  const size_t fixed = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
  for (size_t i = 0; i < value.size(); ++i) {
    if (i < fixed && !valid_json(schema["prefixItems"][i], value[i], root)) return false;
    if (i >= fixed && schema.contains("items") && !valid_json(schema["items"], value[i], root)) return false;
  }
  if (!schema.contains("contains")) return true;
  int64_t count = 0;
  for (const Json& item : value) count += valid_json(schema["contains"], item, root) ? 1 : 0;
  return count >= schema.value("minContains", int64_t{1});
}

bool valid_number(const Json& schema, double value) {
  if (schema.contains("minimum") && value < schema["minimum"].get<double>()) return false;
  if (schema.contains("maximum") && value > schema["maximum"].get<double>()) return false;
  if (schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"].get<double>()) return false;
  if (schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"].get<double>()) return false;
  // Beyond 2^53 a double can't tell; the generated ones with a divisor are below.
  if (schema.contains("multipleOf") && std::abs(value) < 9e15) {
    const double quotient = value / schema["multipleOf"].get<double>();
    if (std::abs(quotient - std::round(quotient)) > 1e-6 * std::max(1.0, std::abs(quotient))) return false;
  }
  return true;
}

}  // namespace

bool valid_json(const Json& schema, const Json& value, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    const auto target = schema["$ref"].get<std::string>();
    const Json& part = target == "#" ? root : root.at(Json::json_pointer(target.substr(1)));
    if (!valid_json(part, value, root)) return false;
  }
  if (schema.contains("type")) {
    bool any = false;
    for (const Json& name : schema["type"]) any = any || has_type(value, name.get<std::string>());
    if (!any) return false;
  }
  if (schema.contains("const") && schema["const"] != value) return false;
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    if (!schema.contains(keyword)) continue;
    size_t count = 0;
    for (const Json& part : schema[keyword]) count += valid_json(part, value, root) ? 1 : 0;
    const std::string name = keyword;
    if (name == "allOf" ? count != schema[keyword].size() : name == "anyOf" ? count == 0 : count != 1) return false;
  }
  if (schema.contains("not") && valid_json(schema["not"], value, root)) return false;
  if (schema.contains("if")) {
    const char* branch = valid_json(schema["if"], value, root) ? "then" : "else";
    if (schema.contains(branch) && !valid_json(schema[branch], value, root)) return false;
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (characters(text) < schema.value("minLength", int64_t{0}) ||
        characters(text) > schema.value("maxLength", int64_t{1} << 40))
      return false;
    return !schema.contains("pattern") || searches(schema["pattern"].get<std::string>(), text);
  }
  if (value.is_number()) return valid_number(schema, value.get<double>());
  if (value.is_array()) return valid_array(schema, value, root);
  if (value.is_object()) return valid_object(schema, value, root);
  return true;
}

}  // namespace deepinfer::testing
