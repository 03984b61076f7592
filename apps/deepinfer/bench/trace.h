#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "workload.h"

namespace deepinfer::bench {

inline constexpr int64_t kMaxTraceBytes = int64_t{64} << 20;
inline constexpr size_t kMaxTraceRows = 1'000'000;

/// Reads a trace, whose first line tells its form: our JSON Lines (bench/README.md has the fields), those of Mooncake
/// (timestamp in ms, input_length, output_length, hash_ids of blocks of 512 tokens) or Azure's CSV (TIMESTAMP, ContextTokens,
/// GeneratedTokens; times count from the first). Empty lines are skipped. Errors name line and field. Rows come back in the
/// order of the file.
Result<std::vector<TraceRow>> parse_trace(std::string_view text);

/// The same from a file; "-" is standard input. Errors start with the file's name.
Result<std::vector<TraceRow>> load_trace(const std::string& path);

}  // namespace deepinfer::bench
