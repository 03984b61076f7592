#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::cli {

/// From here on SIGINT and SIGTERM only set a flag, the second one kills; SIGPIPE is ignored, so that writing fails instead.
void catch_signals();
bool interrupted();

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

/// Everything in `path`, which may be a pipe, or of standard input if `path` is "-"; an error above `limit` bytes.
Result<std::string> read_input(const std::string& path, int64_t limit);

/// Writes to standard output and flushes. kCancelled: the reader has gone away (a closed pipe).
Status write_output(std::string_view text);

/// One line on standard error.
void print_error(std::string_view message);

/// `text` in one line: control characters become \xNN.
std::string one_line(std::string_view text);

}  // namespace deepinfer::cli
