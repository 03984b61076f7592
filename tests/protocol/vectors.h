#pragma once

// The conformance data of tests/data/protocol (spec/protocol §12).

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "protocol/api.h"
#include "protocol/json_input.h"
#include "protocol/output_reader.h"

namespace deepinfer::testing {

/// tests/data/protocol/NAME.json
Json read_vectors(const std::string& name);
/// Calls `test` for every case, with its id on the trace, and checks how many there were.
void for_each_case(const std::string& name, size_t expected, const std::function<void(const Json&)>& test);

Api api_of(const Json& test);
ModelVersion version_of(const Json& test);
/// The reference's rules with the case's conversion options; `reference_01` with the placeholder check.
ConversionOptions conversion_options(const Json& test);
ParsingOptions parsing_options(const Json& options);
/// The members of a parsing vector's `options`, and "hardened".
ModelFinish model_finish(const Json& name);

/// Output events as the vectors write them: neighbours joined, empty ones dropped, without completion_tokens.
struct ReadOutput {
  Json items = Json::array();
  int64_t completion_tokens = 0;
};
ReadOutput read_output(const ParsingOptions& options, const std::vector<std::string>& chunks, const Json& finish);

/// Starts of the characters of `text`, and its end.
std::vector<size_t> character_borders(const std::string& text);

}  // namespace deepinfer::testing
