#pragma once

#include "serve/serve_flags.h"
#include "serve/serve_result.h"

namespace deepinfer::bench {

/// Finds out which model the server has, unless the plan names one, and, with a short request, what it knows of what the format
/// asks for: fields that it refuses are left out, which standard error says. Errors: it cannot be reached, or refuses everything.
Status probe(ServePlan& plan, bool with_request);

/// One run at `rate`, with at most `limit` clients or requests at a time. The same seed gives the same requests.
Result<ServeResult> run_once(const ServePlan& plan, double rate, int64_t limit, int64_t num_prompts, uint64_t seed);

}  // namespace deepinfer::bench
