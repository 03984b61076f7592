#pragma once

#include <nlohmann/json.hpp>

namespace deepinfer::testing {

/// Checks a value against a schema by the plain text of JSON Schema: independent of src/grammar, which it is there to judge.
/// Patterns are matched by std::regex. Knows the keywords that the generated schemas of the tests use.
bool valid_json(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value, const nlohmann::ordered_json& root);

}  // namespace deepinfer::testing
