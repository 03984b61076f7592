#include "grammar/schema_compiler.h"

#include <algorithm>
#include <array>

#include "grammar/schema_evaluator.h"
#include "grammar/schema_negation.h"

namespace deepinfer::grammar {
namespace {

using Mode = SchemaCompiler::Part::Mode;

constexpr std::array<std::string_view, 43> kKnown = {"type",
                                                     "properties",
                                                     "required",
                                                     "additionalProperties",
                                                     "patternProperties",
                                                     "minProperties",
                                                     "maxProperties",
                                                     "propertyNames",
                                                     "items",
                                                     "prefixItems",
                                                     "additionalItems",
                                                     "minItems",
                                                     "maxItems",
                                                     "uniqueItems",
                                                     "contains",
                                                     "minContains",
                                                     "maxContains",
                                                     "enum",
                                                     "const",
                                                     "anyOf",
                                                     "oneOf",
                                                     "allOf",
                                                     "not",
                                                     "if",
                                                     "then",
                                                     "else",
                                                     "$ref",
                                                     "minLength",
                                                     "maxLength",
                                                     "pattern",
                                                     "format",
                                                     "minimum",
                                                     "maximum",
                                                     "exclusiveMinimum",
                                                     "exclusiveMaximum",
                                                     "multipleOf",
                                                     "dependencies",
                                                     "dependentRequired",
                                                     "dependentSchemas",
                                                     "unevaluatedProperties",
                                                     "unevaluatedItems",
                                                     "x-not-enum",
                                                     "x-not-pattern"};

/// What a keyword's value must be, where a wrong one would mislead the code below.
std::string_view wrong_value(const std::string& key, const Json& value) {
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), key) != names.end();
  };
  if (is({"properties", "patternProperties", "dependentRequired", "dependentSchemas", "dependencies"}))
    return value.is_object() ? "" : "must be an object";
  if (is({"anyOf", "oneOf", "allOf"})) return value.is_array() && !value.empty() ? "" : "must be an array that is not empty";
  if (is({"prefixItems"})) return value.is_array() ? "" : "must be an array";
  if (is({"enum"})) return value.is_array() ? "" : "must be an array";
  if (is({"$ref", "pattern", "format"})) return value.is_string() ? "" : "must be a string";
  if (is({"minimum", "maximum", "multipleOf"})) return value.is_number() ? "" : "must be a number";
  if (is({"exclusiveMinimum", "exclusiveMaximum"})) return value.is_number() || value.is_boolean() ? "" : "must be a number";
  if (is({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"})) {
    return value.is_number() && value.get<double>() >= 0 &&
                   value.get<double>() == static_cast<double>(static_cast<int64_t>(std::min(value.get<double>(), 1e18)))
               ? ""
               : "must be a whole number, not negative";
  }
  return "";
}

}  // namespace

Result<ExprId> SchemaCompiler::compile() { return finish(compile_parts({{&document_.root()}})); }

Result<ExprId> SchemaCompiler::finish(ExprId value) {
  build_rules();
  if (!work_.ok()) return Err(work_.status());
  return value;
}

void SchemaCompiler::note(std::string text) {
  if (noted_.insert(text).second && ignored_.size() < 1000) ignored_.push_back(std::move(text));
}

void SchemaCompiler::unsupported(const Json& schema, std::string_view keyword, std::string_view why) {
  const std::string text = fmt::format("{}/{}: {}", document_.path(schema), keyword, why);
  if (strict_) {
    fail(Status::Unimplemented("{}", text));
  } else {
    note(text);
  }
}

void SchemaCompiler::check_keywords(const Json& schema) {
  if (!checked_.insert(&schema).second) return;
  for (const auto& [key, value] : schema.items()) {
    if (const std::string_view wrong = wrong_value(key, value); !wrong.empty()) {
      fail(Status::InvalidArgument("{}/{}: {}", document_.path(schema), key, wrong));
    }
    if (is_annotation(key)) continue;
    if (key == "$dynamicRef" || key == "$recursiveRef") {
      unsupported(schema, key, "is not supported");
    } else if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      note(fmt::format("{}/{}: not a keyword of JSON Schema", document_.path(schema), key));
    }
  }
  if (schema.contains("required")) {
    // Draft 3 had booleans here; they meant something else and are no constraint of this object.
    if (!schema["required"].is_array()) return note(fmt::format("{}/required: not a list of names", document_.path(schema)));
    for (const Json& name : schema["required"]) {
      if (!name.is_string()) fail(Status::InvalidArgument("{}/required: must be a list of names", document_.path(schema)));
    }
  }
}

SchemaCompiler::Flat SchemaCompiler::flatten(const Parts& parts) {
  Flat flat;
  flat.single = parts.size() == 1 && parts[0].mode == Mode::kFull;
  std::set<Part> seen;
  std::vector<Part> todo(parts.rbegin(), parts.rend());  // a stack: depth first keeps the order of the text
  while (!todo.empty() && work_.steps()) {
    const Part part = todo.back();
    todo.pop_back();
    if (!seen.insert(part).second) continue;
    const Json& schema = *part.schema;
    if (schema.is_boolean()) {
      flat.never = flat.never || !schema.get<bool>();
    } else if (!schema.is_object()) {
      fail(Status::InvalidArgument("{}: neither an object nor a boolean", document_.path(schema)));
    } else if (part.mode == Mode::kAnyOf || part.mode == Mode::kOneOf) {
      flat.groups.push_back(part);
    } else {
      check_keywords(schema);
      if (!work_.ok()) break;
      if (std::find(flat.cores.begin(), flat.cores.end(), &schema) == flat.cores.end()) flat.cores.push_back(&schema);
      if (part.mode == Mode::kFull) flatten_schema(schema, flat, todo);
    }
  }
  return flat;
}

void SchemaCompiler::flatten_schema(const Json& schema, Flat& flat, std::vector<Part>& todo) {
  std::vector<Part> more;
  if (schema.contains("$ref")) {
    auto target = document_.resolve(schema, schema["$ref"].get<std::string>());
    if (!target) return fail(target.error());
    more.push_back({*target});
  }
  if (schema.contains("allOf")) {
    for (const Json& part : schema["allOf"]) more.push_back({&part});
  }
  flatten_conditions(schema, more);
  if (schema.contains("anyOf")) flat.groups.push_back({&schema, Mode::kAnyOf});
  if (schema.contains("oneOf")) flat.groups.push_back({&schema, Mode::kOneOf});
  todo.insert(todo.end(), more.rbegin(), more.rend());
}

void SchemaCompiler::flatten_conditions(const Json& schema, std::vector<Part>& todo) {
  // Derived schemas are made once, so that equal conjunctions stay equal.
  const auto add = [&](const std::string& name, auto&& make) {
    const auto [at, added] = derived_.try_emplace({&schema, name}, nullptr);
    if (added) {
      Result<Json> made = make();
      if (!made) return unsupported(schema, name, made.error().message());
      at->second = &document_.derive(*std::move(made), schema);
    }
    if (at->second != nullptr) todo.push_back({at->second});
  };
  if (schema.contains("not")) {
    add("not", [&]() -> Result<Json> { return negate_schema(document_, schema["not"]); });
  }
  if (schema.contains("if") && (schema.contains("then") || schema.contains("else"))) {
    add("if", [&]() -> Result<Json> {
      DI_ASSIGN_OR_RETURN(Json otherwise, negate_schema(document_, schema["if"]));
      Json yes = Json::array({schema["if"]});
      Json no = Json::array({std::move(otherwise)});
      if (schema.contains("then")) yes.push_back(schema["then"]);
      if (schema.contains("else")) no.push_back(schema["else"]);
      return Json{{"anyOf", Json::array({Json{{"allOf", yes}}, Json{{"allOf", no}}})}};
    });
  }
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    if (!schema.contains(keyword)) continue;
    for (const auto& [name, value] : schema[keyword].items()) {
      add(std::string(keyword) + "/" + name, [&, &key = name, &part = value]() -> Result<Json> {
        Json absent{{"properties", Json{{key, false}}}};
        Json names = Json::array({key});
        if (part.is_array()) names.insert(names.end(), part.begin(), part.end());
        Json present{{"required", std::move(names)}};
        if (!part.is_array()) present["allOf"] = Json::array({part});
        return Json{{"anyOf", Json::array({std::move(absent), std::move(present)})}};
      });
    }
  }
}

SchemaCompiler::Types SchemaCompiler::types_of(const Flat& flat) {
  Types out;
  for (const Json* schema : flat.cores) {
    if (!schema->contains("type")) continue;
    const Json& value = (*schema)["type"];
    Types here{false, false, false, false, false, false, false};
    const auto add = [&](const Json& name) {
      if (name == "null")
        here.null = true;
      else if (name == "boolean")
        here.boolean = true;
      else if (name == "number")
        here.number = here.fraction = true;
      else if (name == "integer")
        here.number = true;
      else if (name == "string")
        here.string = true;
      else if (name == "array")
        here.array = true;
      else if (name == "object")
        here.object = true;
      else if (name == "any")
        here = Types();
      else
        fail(Status::InvalidArgument("{}/type: {} is not a type", document_.path(*schema), name.dump()));
    };
    if (value.is_array()) {
      for (const Json& name : value) add(name);
    } else {
      add(value);
    }
    if (schema->contains("nullable") && (*schema)["nullable"] == Json(true)) here.null = true;
    out = {out.null && here.null,     out.boolean && here.boolean, out.number && here.number, out.fraction && here.fraction,
           out.string && here.string, out.array && here.array,     out.object && here.object};
  }
  return out;
}

bool SchemaCompiler::sees_all(const Flat& flat, const Json& schema, const char* keyword) {
  static constexpr std::array<const char*, 5> kConditions = {"not", "if", "contains", "dependentSchemas", "dependencies"};
  const bool conditional = std::any_of(flat.cores.begin(), flat.cores.end(), [](const Json* core) {
    return std::any_of(kConditions.begin(), kConditions.end(), [&](const char* name) { return core->contains(name); });
  });
  if (flat.single && flat.groups.empty() && !conditional && &schema == flat.cores.front()) return true;
  unsupported(schema, keyword,
              "is supported only where it stands around all other keywords, with no alternatives or conditions among them");
  return false;
}

bool SchemaCompiler::is_scalar(const Flat& flat) {
  if (!flat.groups.empty()) return false;
  const Types types = types_of(flat);
  if (types.array || types.object) return false;
  return std::none_of(flat.cores.begin(), flat.cores.end(), [](const Json* schema) { return schema->contains("enum"); });
}

ExprId SchemaCompiler::compile_parts(const Parts& parts) {
  const Flat flat = flatten(parts);
  if (flat.never || !work_.ok()) return grammar_.never();
  if (flat.cores.empty() && flat.groups.empty()) return forms_.any_value();
  if (is_scalar(flat)) return build(flat);
  const auto [at, added] = rules_.try_emplace({flat.cores, flat.groups}, 0);
  if (added) {
    at->second = grammar_.new_rule(flat.cores.empty() ? "schema" : document_.path(*flat.cores.front()));
    pending_.emplace_back(at->second, flat);
  }
  return grammar_.rule(at->second);
}

void SchemaCompiler::build_rules() {
  while (!pending_.empty() && work_.ok()) {
    const auto [rule, flat] = std::move(pending_.back());
    pending_.pop_back();
    grammar_.set_body(rule, build(flat));
  }
}

bool SchemaCompiler::listed_values(const Flat& flat, std::vector<const Json*>& values) {
  const Json* source = nullptr;
  for (const Json* schema : flat.cores) {
    if (schema->contains("const")) {
      source = &(*schema)["const"];
      values.assign(1, source);
      break;
    }
    if (source == nullptr && schema->contains("enum")) {
      source = &(*schema)["enum"];
      values.clear();
      for (const Json& value : *source) values.push_back(&value);
    }
  }
  if (source == nullptr) return false;
  SchemaEvaluator evaluator(document_);
  std::set<const Json*> schemas(flat.cores.begin(), flat.cores.end());
  for (const Part& group : flat.groups) schemas.insert(group.schema);
  std::erase_if(values, [&](const Json* value) {
    for (const Json* schema : schemas) {
      const auto valid = evaluator.valid(*schema, *value);
      if (!valid && valid.error().code() == StatusCode::kUnimplemented) {
        unsupported(*schema, "enum", valid.error().message());
      } else if (!valid) {
        fail(valid.error());
      } else if (!*valid) {
        return true;
      }
    }
    return false;
  });
  return true;
}

ExprId SchemaCompiler::build(const Flat& flat) {
  std::vector<const Json*> values;
  if (listed_values(flat, values)) {
    std::vector<ExprId> texts;
    for (const Json* value : values) texts.push_back(forms_.value(*value));
    return grammar_.alt(std::move(texts));
  }
  return flat.groups.empty() ? build_types(flat) : build_group(flat);
}

std::vector<SchemaCompiler::Parts> SchemaCompiler::alternatives(const Part& group) {
  const Json& schema = *group.schema;
  const Json& list = schema[group.mode == Mode::kAnyOf ? "anyOf" : "oneOf"];
  std::vector<Parts> out;
  for (const Json& part : list) out.push_back({{&part}});
  if (group.mode == Mode::kAnyOf) return out;
  // oneOf: where two alternatives are not known to exclude each other, each is taken without the other.
  for (size_t i = 0; i < list.size() && work_.ok(); ++i) {
    for (size_t k = 0; k < list.size(); ++k) {
      if (i == k || !work_.steps(16) || disjoint(list[i], list[k], 0)) continue;
      const auto [at, added] = derived_.try_emplace({&list[k], "oneOf"}, nullptr);
      if (added) {
        auto opposite = negate_schema(document_, list[k]);
        if (!opposite) {
          unsupported(schema, "oneOf", fmt::format("alternatives {} and {} may overlap: {}", i, k, opposite.error().message()));
          continue;
        }
        at->second = &document_.derive(*std::move(opposite), list[k]);
      }
      if (at->second != nullptr) out[i].push_back({at->second});
    }
  }
  return out;
}

ExprId SchemaCompiler::build_group(const Flat& flat) {
  Parts common;
  for (const Json* schema : flat.cores) common.push_back({schema, Mode::kCore});
  common.insert(common.end(), flat.groups.begin() + 1, flat.groups.end());
  std::vector<ExprId> out;
  for (const Parts& alternative : alternatives(flat.groups.front())) {
    if (++alternatives_ > work_.limits().alternatives * 64 || !work_.ok()) {
      fail(Status::ResourceExhausted("{}: anyOf and oneOf multiply to more than {} alternatives",
                                     document_.path(*flat.groups.front().schema), work_.limits().alternatives * 64));
      break;
    }
    Parts parts = common;
    parts.insert(parts.end(), alternative.begin(), alternative.end());
    out.push_back(compile_parts(parts));
  }
  return grammar_.alt(std::move(out));
}

ExprId SchemaCompiler::build_types(const Flat& flat) {
  Types types = types_of(flat);
  std::vector<ExprId> out;
  bool allow_true = types.boolean;
  bool allow_false = types.boolean;
  for (const Json* schema : flat.cores) {
    if (!schema->contains("x-not-enum")) continue;
    for (const Json& value : (*schema)["x-not-enum"]) {
      if (value.is_null()) types.null = false;
      if (value.is_boolean()) (value.get<bool>() ? allow_true : allow_false) = false;
      const bool hard = (value.is_array() && types.array) || (value.is_object() && types.object);
      if (hard) unsupported(*schema, "not", "the exclusion of an array or object is not supported");
    }
  }
  if (types.null) out.push_back(grammar_.literal("null"));
  if (allow_true) out.push_back(grammar_.literal("true"));
  if (allow_false) out.push_back(grammar_.literal("false"));
  if (types.number) out.push_back(build_number(flat, types.fraction));
  if (types.string) out.push_back(build_string(flat));
  if (types.array) out.push_back(build_array(flat));
  if (types.object) out.push_back(build_object(flat));
  return grammar_.alt(std::move(out));
}

uint32_t SchemaCompiler::count_of(const Json& schema, const char* keyword) {
  const double value = schema[keyword].get<double>();
  if (value <= 1e9) return static_cast<uint32_t>(value);
  // Larger counts don't matter: nothing of that length is ever produced. A minimum of that kind can't be met.
  return 1000000001;
}

uint32_t SchemaCompiler::highest(const Flat& flat, const char* keyword, uint32_t otherwise) {
  for (const Json* schema : flat.cores) {
    if (schema->contains(keyword)) otherwise = std::max(otherwise, count_of(*schema, keyword));
  }
  if (otherwise > 1000000000) fail(Status::ResourceExhausted("{}: more than 1000000000", keyword));
  return otherwise;
}

uint32_t SchemaCompiler::lowest(const Flat& flat, const char* keyword, uint32_t otherwise) {
  for (const Json* schema : flat.cores) {
    if (schema->contains(keyword) && count_of(*schema, keyword) <= 1000000000)
      otherwise = std::min(otherwise, count_of(*schema, keyword));
  }
  return otherwise;
}

}  // namespace deepinfer::grammar
