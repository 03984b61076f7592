#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "grammar/expr.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {

using Json = nlohmann::ordered_json;

/// The pieces of JSON text.
class JsonForms {
 public:
  JsonForms(Grammar& grammar, JsonSpace space);

  Grammar& grammar() { return grammar_; }
  /// White space behind an opening bracket or before a closing one.
  ExprId inner_space() const { return inner_space_; }
  /// "," and ":" with the white space behind them.
  ExprId comma() const { return comma_; }
  ExprId colon() const { return colon_; }

  /// A string of min to max characters; any escape may be used.
  ExprId string(uint32_t min = 0, uint32_t max = kUnbounded);
  /// A string whose characters are spelled in the shortest way.
  ExprId string_of(ExprId body) { return grammar_.seq({grammar_.literal("\""), body, grammar_.literal("\"")}); }
  ExprId number();
  ExprId integer();
  ExprId any_value() { return grammar_.rule(value_rule()); }
  ExprId any_object() { return any_value(), grammar_.rule(object_rule_); }
  ExprId any_array() { return any_value(), grammar_.rule(array_rule_); }
  /// This value, members in this order.
  ExprId value(const Json& value);
  /// "[" items "]"; `items` has its own separators.
  ExprId brackets(std::string_view open, ExprId items, std::string_view close);
  /// A pattern that is known to be right.
  ExprId text_pattern(std::string_view pattern);

 private:
  RuleId value_rule();

  Grammar& grammar_;
  ExprId inner_space_;
  ExprId comma_;
  ExprId colon_;
  bool have_value_ = false;
  RuleId value_rule_ = 0;
  RuleId object_rule_ = 0;
  RuleId array_rule_ = 0;
};

/// A member key as it is spelled, with quotes.
std::string json_string(std::string_view text);

/// Parses JSON whose size and nesting are within limits.
Result<Json> parse_json(std::string_view text, std::string_view what, const CompileLimits& limits);

}  // namespace deepinfer::grammar
