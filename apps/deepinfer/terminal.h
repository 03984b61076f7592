#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer::cli {

/// Opens /dev/null in place of standard streams that are closed, or files and sockets would take their numbers and get what is
/// written to them. Reading the input and writing the output still fail, as they do when closed; messages go nowhere.
void open_standard_streams();

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

/// Writes to standard error, as well as that goes: nobody can be told that it failed.
void print_diagnostic(std::string_view text);

/// One line on standard error.
void print_error(std::string_view message);

/// `text` in one line: control characters become \xNN.
std::string one_line(std::string_view text);

}  // namespace deepinfer::cli
