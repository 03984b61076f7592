#pragma once

#include <string_view>

#include "grammar/expr.h"

namespace deepinfer::grammar {

/// Lowers a grammar in the GBNF/XGrammar dialect: `name ::= ...`, `|`, `( )`, `* + ? {m,n}`, "strings", [classes], `.`, `#
/// comments`. The rule `root` is the start. Direct left recursion (a ::= a x | y) is rewritten as a repetition, which has the
/// same texts; left recursion over several rules is refused later, by name. Errors name line and column.
Result<ExprId> lower_ebnf(std::string_view text, Grammar& grammar);

}  // namespace deepinfer::grammar
