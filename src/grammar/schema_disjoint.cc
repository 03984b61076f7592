// Whether two schemas exclude each other, as far as that is easily seen: for oneOf.

#include <algorithm>

#include "grammar/number_pattern.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_evaluator.h"
#include "grammar/string_formats.h"

namespace deepinfer::grammar {
namespace {

constexpr int kMaxDepth = 4;

const Json* member_schema(const SchemaCompiler::Flat& flat, const std::string& name) {
  for (const Json* schema : flat.cores) {
    if (schema->contains("properties") && (*schema)["properties"].contains(name)) return &(*schema)["properties"][name];
  }
  return nullptr;
}

bool forbids(const SchemaCompiler::Flat& flat, const std::string& name) {
  return std::any_of(flat.cores.begin(), flat.cores.end(), [&](const Json* schema) {
    if (schema->contains("properties") && (*schema)["properties"].contains(name))
      return (*schema)["properties"][name] == Json(false);
    return schema->contains("additionalProperties") && (*schema)["additionalProperties"] == Json(false) &&
           !schema->contains("patternProperties");
  });
}

bool disjoint_numbers(const SchemaCompiler::Flat& a, const SchemaCompiler::Flat& b) {
  NumberBounds bounds;
  for (const auto* flat : {&a, &b}) {
    for (const Json* schema : flat->cores) {
      const auto decimal = [&](const char* keyword) -> std::optional<Decimal> {
        if (!schema->contains(keyword) || !(*schema)[keyword].is_number()) return std::nullopt;
        return Decimal::From((*schema)[keyword]);
      };
      if (const auto value = decimal("minimum"))
        bounds.raise_low({*value, schema->contains("exclusiveMinimum") && (*schema)["exclusiveMinimum"] == Json(true)});
      if (const auto value = decimal("maximum"))
        bounds.lower_high({*value, schema->contains("exclusiveMaximum") && (*schema)["exclusiveMaximum"] == Json(true)});
      if (const auto value = decimal("exclusiveMinimum")) bounds.raise_low({*value, true});
      if (const auto value = decimal("exclusiveMaximum")) bounds.lower_high({*value, true});
    }
  }
  if (!bounds.low || !bounds.high) return false;
  const int order = compare(bounds.low->value, bounds.high->value);
  return order > 0 || (order == 0 && (bounds.low->exclusive || bounds.high->exclusive));
}

}  // namespace

bool SchemaCompiler::disjoint_objects(const Flat& a, const Flat& b, int depth) {
  for (const auto& [one, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    for (const Json* schema : one->cores) {
      if (!schema->contains("required") || !(*schema)["required"].is_array()) continue;
      for (const Json& entry : (*schema)["required"]) {
        const auto name = entry.get<std::string>();
        if (forbids(*other, name)) return true;
        const Json* x = member_schema(*one, name);
        const Json* y = member_schema(*other, name);
        if (x != nullptr && y != nullptr && disjoint(*x, *y, depth + 1)) return true;
      }
    }
  }
  return false;
}

bool SchemaCompiler::disjoint(const Json& left, const Json& right, int depth) {
  if (depth > kMaxDepth || !work_.steps(8)) return false;
  if (left == Json(false) || right == Json(false)) return true;
  const Flat a = flatten({{&left}});
  const Flat b = flatten({{&right}});
  if (!work_.ok() || a.never || b.never) return a.never || b.never;
  const Types x = types_of(a);
  const Types y = types_of(b);
  for (const auto& [one, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    const bool listed = std::any_of(one->cores.begin(), one->cores.end(),
                                    [](const Json* s) { return s->contains("enum") || s->contains("const"); });
    if (!listed) continue;
    std::vector<const Json*> values;
    Flat both = *one;
    both.cores.insert(both.cores.end(), other->cores.begin(), other->cores.end());
    // Without the groups: fewer conditions, so an empty list is still proof.
    both.groups.clear();
    SchemaEvaluator evaluator(document_);
    for (const Json* s : one->cores) {
      if (s->contains("const")) values.assign(1, &(*s)["const"]);
      if (values.empty() && s->contains("enum")) {
        for (const Json& value : (*s)["enum"]) values.push_back(&value);
      }
    }
    const bool none = std::all_of(values.begin(), values.end(), [&](const Json* value) {
      return std::any_of(both.cores.begin(), both.cores.end(), [&](const Json* s) {
        const auto valid = evaluator.valid(*s, *value);
        return valid && !*valid;
      });
    });
    if (none) return true;
  }
  if (x.null && y.null) return false;
  if (x.boolean && y.boolean) return false;
  if (x.array && y.array) return false;
  if (x.number && y.number && !disjoint_numbers(a, b)) return false;
  if (x.string && y.string) {
    std::vector<std::string> patterns;
    for (const auto* flat : {&a, &b}) {
      for (const Json* schema : flat->cores) {
        if (schema->contains("pattern")) patterns.push_back((*schema)["pattern"].get<std::string>());
        if (!schema->contains("format")) continue;
        if (const auto format = format_pattern((*schema)["format"].get<std::string>()))
          patterns.push_back("^(" + std::string(*format) + ")$");
      }
    }
    if (patterns.size() != 2) return false;
    const auto first = document_.pattern_dfa(patterns[0]);
    const auto second = document_.pattern_dfa(patterns[1]);
    if (!first || !second || !intersect(**first, **second, work_).empty()) return false;
  }
  if (x.object && y.object && !disjoint_objects(a, b, depth)) return false;
  return true;
}

}  // namespace deepinfer::grammar
