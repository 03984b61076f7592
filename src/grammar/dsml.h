#pragma once

#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/json_forms.h"

namespace deepinfer::grammar {

/// Lowers the DSML tool-call form (spec/protocol §4.7, §14). `string="true"` goes with the raw text of a string that the schema
/// allows, `string="false"` with JSON of its other types. No escapes exist: a raw value can't contain "</｜DSML｜" as text or
/// token.
Result<ExprId> lower_dsml(const DsmlSpec& spec, const TokenVocabulary& vocabulary, Grammar& grammar,
                          std::vector<std::string>& ignored);

}  // namespace deepinfer::grammar
