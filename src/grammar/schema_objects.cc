// Objects and arrays of a conjunction of schemas.

#include <algorithm>
#include <array>

#include "grammar/schema_compiler.h"

namespace deepinfer::grammar {

/// What the schemas of a conjunction say of the members of an object.
struct SchemaCompiler::ObjectView {
  std::vector<std::string> names;  ///< in the order of the schemas
  std::set<std::string> known;
  std::set<std::string> required;
  std::vector<std::string> patterns;  ///< of patternProperties, each once
  std::vector<const CharDfa*> pattern_dfas;
  const Json* unevaluated = nullptr;  ///< of the first schema, around all others
};

SchemaCompiler::ObjectView SchemaCompiler::view_object(const Flat& flat) {
  ObjectView view;
  const auto add = [&](const std::string& name) {
    if (view.known.insert(name).second) view.names.push_back(name);
  };
  for (const Json* schema : flat.cores) {
    if (schema->contains("properties")) {
      for (const auto& [name, value] : (*schema)["properties"].items()) add(name);
    }
    if (schema->contains("patternProperties")) {
      for (const auto& [pattern, value] : (*schema)["patternProperties"].items()) {
        if (std::find(view.patterns.begin(), view.patterns.end(), pattern) != view.patterns.end()) continue;
        const auto dfa = document_.pattern_dfa(pattern);
        if (!dfa) {
          unsupported(*schema, "patternProperties", dfa.error().message());
          continue;
        }
        view.patterns.push_back(pattern);
        view.pattern_dfas.push_back(*dfa);
      }
    }
    if (schema->contains("unevaluatedProperties")) {
      if (sees_all(flat, *schema, "unevaluatedProperties")) view.unevaluated = &(*schema)["unevaluatedProperties"];
    }
  }
  // Required members that no schema names come behind those that one does.
  for (const Json* schema : flat.cores) {
    if (!schema->contains("required") || !(*schema)["required"].is_array()) continue;
    for (const Json& name : (*schema)["required"]) {
      add(name.get<std::string>());
      view.required.insert(name.get<std::string>());
    }
  }
  return view;
}

/// The schemas that one member must satisfy.
void SchemaCompiler::collect_member(const Flat& flat, const ObjectView& view, const std::string& name, Parts& parts) {
  const auto codes = decode_utf8(name);
  bool any = false;
  for (const Json* schema : flat.cores) {
    bool covered = false;
    if (schema->contains("properties") && (*schema)["properties"].contains(name)) {
      parts.push_back({&(*schema)["properties"][name]});
      covered = true;
    }
    if (schema->contains("patternProperties")) {
      for (const auto& [pattern, value] : (*schema)["patternProperties"].items()) {
        const auto at = std::find(view.patterns.begin(), view.patterns.end(), pattern);
        if (at == view.patterns.end() || !view.pattern_dfas[static_cast<size_t>(at - view.patterns.begin())]->matches(*codes))
          continue;
        parts.push_back({&value});
        covered = true;
      }
    }
    if (!covered && schema->contains("additionalProperties")) {
      parts.push_back({&(*schema)["additionalProperties"]});
      covered = true;
    }
    any = any || covered;
  }
  if (!any && view.unevaluated != nullptr) parts.push_back({view.unevaluated});
}

CharDfa SchemaCompiler::name_dfa(const Flat& flat) {
  CharDfa names = dfa_of_lengths(0, kUnbounded, work_);
  for (const Json* schema : flat.cores) {
    if (!schema->contains("propertyNames")) continue;
    // A schema for strings: by itself in an automaton, which takes what string_body knows, without combinations.
    const Flat inner = flatten({{&(*schema)["propertyNames"]}});
    std::vector<const Json*> values;
    if (inner.never) return {};
    if (listed_values(inner, values)) {
      std::vector<std::vector<uint32_t>> words;
      for (const Json* value : values) {
        if (value->is_string()) words.push_back(decode_utf8(value->get<std::string>()).value_or(std::vector<uint32_t>()));
      }
      names = intersect(names, dfa_of_words(words, work_), work_);
      continue;
    }
    if (!inner.groups.empty()) {
      unsupported(*schema, "propertyNames", "anyOf and oneOf are not supported here");
      continue;
    }
    if (!types_of(inner).string) return {};
    const uint32_t min = highest(inner, "minLength", 0);
    const uint32_t max = lowest(inner, "maxLength", kUnbounded);
    if (min > 0 || max != kUnbounded) names = intersect(names, dfa_of_lengths(min, max, work_), work_);
    for (const Json* part : inner.cores) {
      if (part->contains("format")) unsupported(*part, "format", "is not supported in propertyNames");
      for (const char* keyword : {"pattern", "x-not-pattern"}) {
        if (!part->contains(keyword)) continue;
        const auto dfa = document_.pattern_dfa((*part)[keyword].get<std::string>());
        if (!dfa) {
          unsupported(*part, "pattern", dfa.error().message());
        } else {
          names = intersect(names, keyword[0] == 'p' ? **dfa : complement(**dfa, work_), work_);
        }
      }
    }
  }
  return names;
}

/// A member that no schema names: for each set of patterns that its name may match, a name and a value.
ExprId SchemaCompiler::other_members(const Flat& flat, const ObjectView& view, const MemberStyle& style) {
  const bool named_rule =
      std::any_of(flat.cores.begin(), flat.cores.end(), [](const Json* schema) { return schema->contains("propertyNames"); });
  constexpr size_t kMaxPatterns = 6;
  if (view.patterns.size() > kMaxPatterns) {
    fail(Status::ResourceExhausted("{}/patternProperties: more than {} patterns in one object",
                                   document_.path(*flat.cores.front()), kMaxPatterns));
    return grammar_.never();
  }
  std::vector<std::vector<uint32_t>> words;
  for (const std::string& name : view.names) words.push_back(decode_utf8(name).value_or(std::vector<uint32_t>()));
  std::vector<ExprId> out;
  for (size_t matched = 0; matched < size_t{1} << view.patterns.size() && work_.ok(); ++matched) {
    Parts parts;
    bool covered_once = false;
    for (const Json* schema : flat.cores) {
      bool covered = false;
      for (size_t i = 0; i < view.patterns.size(); ++i) {
        if ((matched >> i & 1) == 0 || !schema->contains("patternProperties") ||
            !(*schema)["patternProperties"].contains(view.patterns[i]))
          continue;
        parts.push_back({&(*schema)["patternProperties"][view.patterns[i]]});
        covered = true;
      }
      if (!covered && schema->contains("additionalProperties")) {
        parts.push_back({&(*schema)["additionalProperties"]});
        covered = true;
      }
      covered_once = covered_once || covered;
    }
    if (!covered_once && view.unevaluated != nullptr) parts.push_back({view.unevaluated});
    if (std::any_of(parts.begin(), parts.end(), [](const Part& part) { return *part.schema == Json(false); })) continue;
    if (view.patterns.empty() && !named_rule && words.empty()) {
      out.push_back(style.other(nullptr, parts));
      break;
    }
    CharDfa names = named_rule ? name_dfa(flat) : dfa_of_lengths(0, kUnbounded, work_);
    for (size_t i = 0; i < view.patterns.size(); ++i) {
      const CharDfa& pattern = *view.pattern_dfas[i];
      names = intersect(names, (matched >> i & 1) != 0 ? pattern : complement(pattern, work_), work_);
    }
    if (!words.empty()) names = intersect(names, complement(dfa_of_words(words, work_), work_), work_);
    if (names.empty()) continue;
    out.push_back(style.other(&names, parts));
  }
  return grammar_.alt(std::move(out));
}

bool SchemaCompiler::object_members(const Flat& flat, const MemberStyle& style, Members& members, bool& can_be_empty) {
  const ObjectView view = view_object(flat);
  const bool named_rule =
      std::any_of(flat.cores.begin(), flat.cores.end(), [](const Json* schema) { return schema->contains("propertyNames"); });
  const CharDfa allowed_names = named_rule ? name_dfa(flat) : CharDfa();
  for (const std::string& name : view.names) {
    if (!work_.ok()) return false;
    const bool required = view.required.contains(name);
    Parts parts;
    collect_member(flat, view, name, parts);
    const auto codes = decode_utf8(name);
    const bool named = !named_rule || (codes && allowed_names.matches(*codes));
    const ExprId text = named ? style.named(name, parts) : grammar_.never();
    if (text != grammar_.never()) {
      members.named.push_back({text, required});
    } else if (required) {
      return false;
    }
  }
  members.others = other_members(flat, view, style);
  members.separator = style.separator;
  members.min = highest(flat, "minProperties", 0);
  members.max = lowest(flat, "maxProperties", kUnbounded);
  can_be_empty = members.min == 0 && view.required.empty();
  // A bound that the members meet anyway costs nothing.
  if (members.min <= view.required.size()) members.min = 0;
  if (members.others == grammar_.never() && members.max >= members.named.size()) members.max = kUnbounded;
  members.min = std::max(members.min, 1u);
  return members.max > 0 || can_be_empty;
}

ExprId SchemaCompiler::build_object(const Flat& flat) {
  const bool plain = std::none_of(flat.cores.begin(), flat.cores.end(), [](const Json* schema) {
    static constexpr std::array<const char*, 8> kKeywords = {"properties",    "patternProperties",    "additionalProperties",
                                                             "required",      "minProperties",        "maxProperties",
                                                             "propertyNames", "unevaluatedProperties"};
    return std::any_of(kKeywords.begin(), kKeywords.end(), [&](const char* keyword) { return schema->contains(keyword); });
  });
  if (plain) return forms_.any_object();
  const auto named = [&](const std::string& name, const Parts& value) {
    return grammar_.seq({grammar_.literal(json_string(name)), forms_.colon(), compile_parts(value)});
  };
  const auto other = [&](const CharDfa* names, const Parts& value) {
    const ExprId key = names == nullptr ? forms_.string() : forms_.string_of(grammar_.dfa(*names, Spelling::kJson));
    return grammar_.seq({key, forms_.colon(), compile_parts(value)});
  };
  Members members;
  bool can_be_empty = false;
  if (!object_members(flat, {named, other, forms_.comma()}, members, can_be_empty)) return grammar_.never();
  const ExprId list =
      members.max == 0 ? grammar_.never() : grammar_.seq({grammar_.members(std::move(members)), forms_.inner_space()});
  return forms_.brackets("{", can_be_empty ? grammar_.optional(list) : list, "}");
}

ExprId SchemaCompiler::build_array(const Flat& flat) {
  const uint32_t min = highest(flat, "minItems", 0);
  const uint32_t max = lowest(flat, "maxItems", kUnbounded);
  if (min > max) return grammar_.never();
  size_t fixed = 0;
  Parts contains;
  uint32_t contained = 0;
  for (const Json* schema : flat.cores) {
    const auto& s = *schema;
    if (s.contains("prefixItems")) fixed = std::max(fixed, s["prefixItems"].size());
    if (s.contains("items") && s["items"].is_array()) fixed = std::max(fixed, s["items"].size());
    if (s.contains("uniqueItems") && s["uniqueItems"] == Json(true) && max > 1)
      unsupported(s, "uniqueItems", "is not supported for arrays of more than one item");
    if (s.contains("unevaluatedItems")) sees_all(flat, s, "unevaluatedItems");
    if (!s.contains("contains")) continue;
    const uint32_t least = s.contains("minContains") ? count_of(s, "minContains") : 1;
    if (s.contains("maxContains")) unsupported(s, "maxContains", "is not supported");
    if (least == 0) continue;
    if (!contains.empty()) unsupported(s, "contains", "two of them on one array are not supported");
    contains.assign(1, {&s["contains"]});
    contained = least;
  }
  const auto item_at = [&](size_t index) {
    Parts parts;
    const Json* unevaluated = nullptr;
    for (const Json* schema : flat.cores) {
      const auto& s = *schema;
      const bool old_tuple = s.contains("items") && s["items"].is_array();
      const Json* prefix = s.contains("prefixItems") ? &s["prefixItems"] : old_tuple ? &s["items"] : nullptr;
      const char* rest = old_tuple ? "additionalItems" : "items";
      if (prefix != nullptr && index < prefix->size()) {
        parts.push_back({&(*prefix)[index]});
      } else if (s.contains(rest)) {
        parts.push_back({&s[rest]});
      } else if (schema == flat.cores.front() && s.contains("unevaluatedItems")) {
        unevaluated = &s["unevaluatedItems"];
      }
    }
    if (parts.empty() && unevaluated != nullptr) parts.push_back({unevaluated});
    return parts;
  };
  constexpr size_t kMaxPrefix = 1000;
  if (fixed > kMaxPrefix) {
    fail(Status::ResourceExhausted("{}/prefixItems: more than {}", document_.path(*flat.cores.front()), kMaxPrefix));
    return grammar_.never();
  }
  Grammar& g = grammar_;
  const ExprId other = compile_parts(item_at(fixed));
  const ExprId next = g.seq({forms_.comma(), other});
  if (!contains.empty()) {
    if (fixed > 0 || min > contained || max != kUnbounded) {
      unsupported(*flat.cores.front(), "contains", "is not supported together with prefixItems, minItems or maxItems");
    } else {
      Parts parts = item_at(0);
      parts.insert(parts.end(), contains.begin(), contains.end());
      const ExprId wanted = compile_parts(parts);
      const ExprId one_more = g.seq({g.repeat(next, 0, kUnbounded), forms_.comma(), wanted});
      return forms_.brackets(
          "[",
          g.seq({g.repeat(g.seq({other, forms_.comma()}), 0, kUnbounded), wanted,
                 g.repeat(one_more, contained - 1, contained - 1), g.repeat(next, 0, kUnbounded), forms_.inner_space()}),
          "]");
    }
  }
  const auto from = [&](uint32_t taken) {
    return std::pair{min > taken ? min - taken : 0, max == kUnbounded ? kUnbounded : max - std::min(max, taken)};
  };
  // From the last fixed place to the first: each may be followed by the rest.
  const auto fixed_count = static_cast<uint32_t>(std::min<size_t>(fixed, max));
  ExprId rest = g.empty();
  if (fixed_count > 0 && max > fixed_count) {
    const auto [low, high] = from(fixed_count);
    rest = g.repeat(next, low, high);
  }
  for (uint32_t i = fixed_count; i-- > 0;) {
    const ExprId item = compile_parts(item_at(i));
    const ExprId here = g.seq({i > 0 ? forms_.comma() : g.empty(), item, rest});
    rest = min > i ? here : g.optional(here);
  }
  if (fixed_count == 0 && max > 0) {
    const auto [low, high] = from(1);
    rest = g.seq({other, g.repeat(next, low, high)});
    if (min == 0) rest = g.optional(rest);
  }
  return forms_.brackets("[", g.seq({rest, forms_.inner_space()}), "]");
}

}  // namespace deepinfer::grammar
