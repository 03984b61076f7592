#pragma once

#include "protocol/vectors.h"

namespace deepinfer::testing {

// What one case of tests/data/protocol/NAME.json demands, as check_NAME.
void check_parse(const Json& test);            // output_parser_test.cc
void check_parse_hardening(const Json& test);  // output_parser_test.cc
void check_reject(const Json& test);           // request_test.cc
void check_render(const Json& test);           // render_test.cc
void check_settings(const Json& test);         // request_test.cc
void check_stream(const Json& test);           // stream_test.cc

}  // namespace deepinfer::testing
