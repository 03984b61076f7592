// Numbers and strings of a conjunction of schemas.

#include "grammar/number_pattern.h"
#include "grammar/schema_compiler.h"
#include "grammar/string_formats.h"

namespace deepinfer::grammar {

ExprId SchemaCompiler::build_number(const Flat& flat, bool fraction) {
  NumberBounds bounds;
  bounds.integer = !fraction;
  for (const Json* schema : flat.cores) {
    const auto decimal = [&](const char* keyword) -> std::optional<Decimal> {
      if (!schema->contains(keyword) || !(*schema)[keyword].is_number()) return std::nullopt;
      auto value = Decimal::From((*schema)[keyword]);
      if (!value) unsupported(*schema, keyword, "a number of more than 400 digits");
      return value;
    };
    const auto flag = [&](const char* keyword) { return schema->contains(keyword) && (*schema)[keyword] == Json(true); };
    if (const auto value = decimal("minimum")) bounds.raise_low({*value, flag("exclusiveMinimum")});
    if (const auto value = decimal("maximum")) bounds.lower_high({*value, flag("exclusiveMaximum")});
    if (const auto value = decimal("exclusiveMinimum")) bounds.raise_low({*value, true});
    if (const auto value = decimal("exclusiveMaximum")) bounds.lower_high({*value, true});
    if (const auto value = decimal("multipleOf")) {
      if (value->negative || value->zero()) {
        fail(Status::InvalidArgument("{}/multipleOf: must be above zero", document_.path(*schema)));
        return grammar_.never();
      }
      bounds.multiples.push_back(*value);
    }
  }
  for (const Json* schema : flat.cores) {
    if (!schema->contains("x-not-enum")) continue;
    for (const Json& value : (*schema)["x-not-enum"]) {
      if (!value.is_number()) continue;
      if (const auto number = Decimal::From(value)) bounds.excluded.push_back(*number);
    }
  }
  if (!bounds.low && !bounds.high && bounds.multiples.empty() && bounds.excluded.empty())
    return fraction ? forms_.number() : forms_.integer();
  auto dfa = dfa_of_numbers(bounds, work_);
  if (!dfa && dfa.error().code() == StatusCode::kUnimplemented) {
    unsupported(*flat.cores.front(), "multipleOf", dfa.error().message());
    bounds.multiples.clear();
    dfa = dfa_of_numbers(bounds, work_);
  }
  if (!dfa) return fail(dfa.error()), grammar_.never();
  return grammar_.dfa(*std::move(dfa), Spelling::kText);
}

ExprId SchemaCompiler::string_body(const Flat& flat, Spelling spelling, const CharDfa* within) {
  const uint32_t min = highest(flat, "minLength", 0);
  const uint32_t max = lowest(flat, "maxLength", kUnbounded);
  if (min > max) return grammar_.never();
  std::vector<std::pair<std::string, bool>> patterns;  // (pattern to search for, must be absent)
  std::vector<std::vector<uint32_t>> excluded;
  for (const Json* schema : flat.cores) {
    if (schema->contains("pattern")) patterns.emplace_back((*schema)["pattern"].get<std::string>(), false);
    if (schema->contains("x-not-pattern")) patterns.emplace_back((*schema)["x-not-pattern"].get<std::string>(), true);
    if (schema->contains("format")) {
      const auto name = (*schema)["format"].get<std::string>();
      if (const auto pattern = format_pattern(name)) {
        patterns.emplace_back("^(" + std::string(*pattern) + ")$", false);
      } else if (is_unsupported_format(name)) {
        unsupported(*schema, "format", fmt::format("\"{}\" is not supported", name));
      } else {
        note(fmt::format("{}/format: \"{}\" is not a format of JSON Schema", document_.path(*schema), name));
      }
    }
    if (schema->contains("x-not-enum")) {
      for (const Json& value : (*schema)["x-not-enum"]) {
        if (!value.is_string()) continue;
        const auto codes = decode_utf8(value.get_ref<const std::string&>());
        if (codes) excluded.push_back(*codes);
      }
    }
  }
  const auto named_failure = [&](const std::string& pattern, const Status& status) {
    for (const Json* schema : flat.cores) {
      for (const char* keyword : {"pattern", "x-not-pattern"}) {
        if (!schema->contains(keyword) || (*schema)[keyword] != Json(pattern)) continue;
        if (status.code() == StatusCode::kResourceExhausted)
          return fail(status.with_context(document_.path(*schema) + "/pattern"));
        return unsupported(*schema, "pattern", status.message());
      }
    }
    fail(status);
  };
  if (patterns.empty() && excluded.empty() && within == nullptr) {
    const Spelling free = spelling == Spelling::kJson ? Spelling::kJsonFree : spelling;
    return grammar_.repeat(grammar_.chars(CodeSet::All(), free), min, max);
  }
  if (patterns.size() == 1 && excluded.empty() && !patterns[0].second && within == nullptr) {
    auto regex = parse_regex(patterns[0].first, RegexScope::kSearch, work_.limits());
    if (!regex)
      return named_failure(patterns[0].first, regex.error()), grammar_.repeat(grammar_.chars(CodeSet::All(), spelling), min, max);
    if (min == 0 && max == kUnbounded) return lower_regex(*regex, spelling, grammar_);
    // One repeated class: the lengths are bounds of its count.
    const RegexNode* node = regex->get();
    while (node->kind == RegexNode::Kind::kSeq && node->parts.size() == 1) node = node->parts[0].get();
    if (node->kind == RegexNode::Kind::kRepeat && node->parts[0]->kind == RegexNode::Kind::kChars) {
      return grammar_.repeat(grammar_.chars(node->parts[0]->chars, spelling), std::max(min, node->min), std::min(max, node->max));
    }
  }
  CharDfa dfa = dfa_of_lengths(patterns.empty() ? min : 0, patterns.empty() ? max : kUnbounded, work_);
  for (const auto& [pattern, absent] : patterns) {
    const auto found = document_.pattern_dfa(pattern);
    if (!found) {
      named_failure(pattern, found.error());
      continue;
    }
    dfa = intersect(dfa, absent ? complement(**found, work_) : **found, work_);
  }
  if (within != nullptr) dfa = intersect(dfa, *within, work_);
  if (!excluded.empty()) dfa = intersect(dfa, complement(dfa_of_words(excluded, work_), work_), work_);
  // Lengths last: where the pattern has few texts, large bounds cost nothing.
  if (!patterns.empty() && (min > 0 || max != kUnbounded)) dfa = intersect(dfa, dfa_of_lengths(min, max, work_), work_);
  return grammar_.dfa(std::move(dfa), spelling);
}

ExprId SchemaCompiler::build_string(const Flat& flat) { return forms_.string_of(string_body(flat, Spelling::kJson)); }

}  // namespace deepinfer::grammar
