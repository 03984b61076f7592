#pragma once

#include "grammar/schema_document.h"

namespace deepinfer::grammar {

/// A schema for exactly the values that `schema` does not allow, for `not`, `if` and `oneOf`. Besides the keywords of JSON Schema
/// it may use "x-not-enum" and "x-not-pattern". An error names the keyword that has no such form.
Result<Json> negate_schema(const SchemaDocument& document, const Json& schema, int depth = 0);

/// Keywords that say nothing about which values are valid.
bool is_annotation(std::string_view keyword);

}  // namespace deepinfer::grammar
