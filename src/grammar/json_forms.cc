#include "grammar/json_forms.h"

namespace deepinfer::grammar {

JsonForms::JsonForms(Grammar& grammar, JsonSpace space) : grammar_(grammar) {
  ExprId gap = grammar.empty();
  if (space == JsonSpace::kFlexible) {
    const ExprId indent = grammar.repeat(grammar.chars(CodeSet({{' ', ' '}, {'\t', '\t'}}), Spelling::kText), 0, 32);
    gap = grammar.alt({grammar.empty(), grammar.literal(" "), grammar.seq({grammar.literal("\n"), indent})});
  }
  inner_space_ = gap;
  const bool spaced = space == JsonSpace::kSpaced;
  comma_ = spaced ? grammar.literal(", ") : grammar.seq({grammar.literal(","), gap});
  colon_ = spaced ? grammar.literal(": ") : grammar.seq({grammar.literal(":"), gap});
}

ExprId JsonForms::string(uint32_t min, uint32_t max) {
  return string_of(grammar_.repeat(grammar_.chars(CodeSet::All(), Spelling::kJsonFree), min, max));
}

ExprId JsonForms::text_pattern(std::string_view pattern) {
  const auto regex = parse_regex(pattern, RegexScope::kWhole, CompileLimits());
  DI_CHECK(regex.has_value(), "{}: {}", pattern, regex.error().message());
  return lower_regex(*regex, Spelling::kText, grammar_);
}

ExprId JsonForms::number() { return text_pattern("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?"); }

ExprId JsonForms::integer() { return text_pattern("0|-?[1-9][0-9]*"); }

ExprId JsonForms::brackets(std::string_view open, ExprId items, std::string_view close) {
  return grammar_.seq({grammar_.literal(open), inner_space_, items, grammar_.literal(close)});
}

RuleId JsonForms::value_rule() {
  if (have_value_) return value_rule_;
  have_value_ = true;
  Grammar& g = grammar_;
  value_rule_ = g.new_rule("JSON value");
  object_rule_ = g.new_rule("JSON object");
  array_rule_ = g.new_rule("JSON array");
  const ExprId value = g.rule(value_rule_);
  const ExprId member = g.seq({string(), colon_, value});
  const ExprId members = g.seq({member, g.repeat(g.seq({comma_, member}), 0, kUnbounded), inner_space_});
  g.set_body(object_rule_, brackets("{", g.optional(members), "}"));
  const ExprId items = g.seq({value, g.repeat(g.seq({comma_, value}), 0, kUnbounded), inner_space_});
  g.set_body(array_rule_, brackets("[", g.optional(items), "]"));
  g.set_body(value_rule_, g.alt({string(), number(), g.literal("true"), g.literal("false"), g.literal("null"),
                                 g.rule(object_rule_), g.rule(array_rule_)}));
  return value_rule_;
}

ExprId JsonForms::value(const Json& value) {
  Grammar& g = grammar_;
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const bool whole = number > -1e15 && number < 1e15 && number == static_cast<double>(static_cast<int64_t>(number));
    if (whole) return g.alt({g.literal(fmt::format("{}", static_cast<int64_t>(number))), g.literal(value.dump())});
  }
  if (!value.is_structured())
    return g.literal(value.is_string() ? json_string(value.get_ref<const std::string&>()) : value.dump());
  std::vector<ExprId> parts;
  const auto separate = [&] {
    if (!parts.empty()) parts.push_back(comma_);
  };
  for (const auto& [key, item] : value.items()) {
    separate();
    if (value.is_object()) parts.push_back(g.seq({g.literal(json_string(key)), colon_}));
    parts.push_back(this->value(item));
  }
  if (!parts.empty()) parts.push_back(inner_space_);
  return value.is_object() ? brackets("{", g.seq(std::move(parts)), "}") : brackets("[", g.seq(std::move(parts)), "]");
}

std::string json_string(std::string_view text) {
  const auto codes = decode_utf8(text);
  std::string out = "\"";
  for (const uint32_t code : codes.value_or(std::vector<uint32_t>{})) out += spell(code, Spelling::kJson);
  return out + "\"";
}

Result<Json> parse_json(std::string_view text, std::string_view what, const CompileLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.source_bytes) {
    return Err(Status::ResourceExhausted("{}: {} bytes, the limit is {}", what, text.size(), limits.source_bytes));
  }
  int64_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        quoted = false;
    } else if (text[i] == '"') {
      quoted = true;
    } else if (text[i] == '{' || text[i] == '[') {
      if (++depth > limits.depth) return Err(Status::ResourceExhausted("{}: nested deeper than {}", what, limits.depth));
    } else if (text[i] == '}' || text[i] == ']') {
      --depth;
    }
  }
  Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_discarded()) return Err(Status::InvalidArgument("{}: not valid JSON", what));
  return parsed;
}

}  // namespace deepinfer::grammar
