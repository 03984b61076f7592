#pragma once

#include "grammar/schema_document.h"

namespace deepinfer::grammar {

/// Whether a value is valid, for values that stand in the schema itself (enum, const). Follows the keywords that the compiler
/// knows; an error names one that it can't decide.
class SchemaEvaluator {
 public:
  explicit SchemaEvaluator(SchemaDocument& document) : document_(document) {}
  Result<bool> valid(const Json& schema, const Json& value) { return check(schema, value, 0); }

 private:
  Result<bool> check(const Json& schema, const Json& value, int64_t depth);
  Result<bool> check_combined(const Json& schema, const Json& value, int64_t depth);
  Result<bool> check_object(const Json& schema, const Json& value, int64_t depth);
  Result<bool> check_array(const Json& schema, const Json& value, int64_t depth);
  Result<bool> check_string(const Json& schema, const std::string& value);
  Result<bool> check_number(const Json& schema, const Json& value);

  SchemaDocument& document_;
};

/// Equal as JSON values: the order of members and the spelling of numbers do not count.
bool same_value(const Json& a, const Json& b);
/// "null", "boolean", "integer" (whole numbers), "number", "string", "array" or "object".
std::string_view type_of(const Json& value);

}  // namespace deepinfer::grammar
