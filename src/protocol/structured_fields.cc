#include "protocol/structured_fields.h"

#include <array>

namespace deepinfer {
namespace {

using Kind = ResponseFormat::Kind;

constexpr int64_t kMaxListedChoices = 65'536;

bool kept(const ConversionOptions& options) { return options.structured_output == ConversionOptions::StructuredOutput::kKeep; }

/// A JSON Schema, as a value or as text.
ApiResult<std::string> schema_text(const Json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() || value.is_boolean()) return wire_json(value);
  return Fail(wrong_type(path, "a JSON Schema", value));
}

ApiResult<std::vector<std::string>> read_choices(const ObjectInput& in, std::string_view key) {
  DI_API_ASSIGN(const Json* list, in.array(key, kMaxListedChoices));
  std::vector<std::string> out;
  for (size_t i = 0; i < list->size(); ++i) {
    if (!(*list)[i].is_string()) return Fail(wrong_type(fmt::format("{}[{}]", in.at(key), i), "a string", (*list)[i]));
    out.push_back((*list)[i].get<std::string>());
  }
  if (out.empty()) return Fail(ApiError::Field(in.at(key), "at least one choice is required"));
  return out;
}

/// Reads the constraint `kind` that stands under `key`, if one does.
ApiResult<void> read_one(const ObjectInput& in, std::string_view key, Kind kind, ResponseFormat& out) {
  const Json* value = in.find(key);
  if (value == nullptr) return {};
  if (out.kind != Kind::kText) return Fail(ApiError::Field(in.at(key), "excludes {}: one format at a time", out.field));
  out.kind = kind;
  out.field = in.at(key);
  out.strict = true;
  if (kind == Kind::kJsonSchema) {
    DI_API_ASSIGN(out.definition, schema_text(*value, out.field));
  } else if (kind == Kind::kChoice) {
    DI_API_ASSIGN(out.choices, read_choices(in, key));
  } else {
    DI_API_ASSIGN(out.definition, in.required_string(key));
  }
  return {};
}

}  // namespace

ApiResult<ResponseFormat> read_json_schema(const ObjectInput& in) {
  ResponseFormat out;
  out.kind = Kind::kJsonSchema;
  DI_API_ASSIGN(std::optional<std::string> name, in.string("name"));
  out.name = std::move(name).value_or("");
  DI_API_ASSIGN(const std::optional<bool> strict, in.boolean("strict"));
  out.strict = strict.value_or(true);
  const Json* schema = in.find("schema");
  out.field = in.at("schema");
  if (schema == nullptr) return Fail(ApiError::Field(out.field, "an object is required"));
  if (!schema->is_object() && !schema->is_boolean()) return Fail(wrong_type(out.field, "a JSON Schema", *schema));
  out.definition = wire_json(*schema);
  return out;
}

ApiResult<void> read_response_format(const ObjectInput& in, const ConversionOptions& options, ResponseFormat& out) {
  DI_API_ASSIGN(const std::optional<ObjectInput> format, in.object("response_format"));
  if (!format.has_value()) return {};
  DI_API_ASSIGN(const std::string type, format->required_string("type"));
  if (type == "text") return {};
  if (type == "json_object") {
    out.kind = Kind::kJsonObject;
    out.field = format->path();
    return {};
  }
  if (type == "json_schema") {
    if (!kept(options)) return {};
    DI_API_ASSIGN(const std::optional<ObjectInput> schema, format->object("json_schema"));
    if (!schema.has_value()) return Fail(ApiError::Field(format->at("json_schema"), "an object is required"));
    DI_API_ASSIGN(out, read_json_schema(*schema));
    return {};
  }
  if (kept(options) && (type == "regex" || type == "grammar")) {
    DI_API_ASSIGN(out.definition, format->required_string(type));
    out.kind = type == "regex" ? Kind::kRegex : Kind::kGrammar;
    out.field = format->at(type);
    return {};
  }
  if (!kept(options)) return Fail(ApiError::Invalid("response_format: only text and json_object are supported"));
  return Fail(ApiError::Field("response_format.type", "expected text, json_object, json_schema, regex or grammar, got {}",
                              json_excerpt(type)));
}

ApiResult<void> read_structured_outputs(const ObjectInput& in, const ConversionOptions& options, ResponseFormat& out) {
  if (!kept(options)) return {};
  DI_API_ASSIGN(const std::optional<ObjectInput> fields, in.object("structured_outputs"));
  struct Name {
    std::string_view key, guided;
    Kind kind;
  };
  constexpr std::array<Name, 4> kNames = {{{"json", "guided_json", Kind::kJsonSchema},
                                           {"regex", "guided_regex", Kind::kRegex},
                                           {"choice", "guided_choice", Kind::kChoice},
                                           {"grammar", "guided_grammar", Kind::kGrammar}}};
  for (const Name& name : kNames) {
    if (fields.has_value()) DI_API_RETURN_IF_ERROR(read_one(*fields, name.key, name.kind, out));
    DI_API_RETURN_IF_ERROR(read_one(in, name.guided, name.kind, out));
  }
  if (!fields.has_value()) return {};
  // A field that is not known might be a constraint, and none is dropped in silence.
  for (const auto& [key, value] : in.find("structured_outputs")->items()) {
    if (value.is_null() || key == "json" || key == "regex" || key == "choice" || key == "grammar") continue;
    if (key == "json_object" || key == "disable_any_whitespace") continue;
    return Fail(ApiError::Field(fields->at(key), "is not supported"));
  }
  DI_API_ASSIGN(const std::optional<bool> object, fields->boolean("json_object"));
  if (object.value_or(false)) {
    if (out.kind != Kind::kText)
      return Fail(ApiError::Field(fields->at("json_object"), "excludes {}: one format at a time", out.field));
    // Not Kind::kJsonObject, which is also asked for in the prompt.
    out.kind = Kind::kJsonSchema;
    out.field = fields->at("json_object");
    out.definition = R"({"type":"object"})";
    out.strict = true;
  }
  DI_API_ASSIGN(const std::optional<bool> compact, fields->boolean("disable_any_whitespace"));
  out.compact = compact.value_or(false);
  if (out.kind == Kind::kText)
    return Fail(ApiError::Field("structured_outputs", "one of json, regex, choice, grammar and json_object is required"));
  return {};
}

}  // namespace deepinfer
