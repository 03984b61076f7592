#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/status.h"

namespace deepinfer::cli {

/// What the command line chose: runs the command, gives the exit code. An error is printed in one line by `main`, exit code 1.
using Command = std::function<Result<int>()>;

/// Exit code of a command that SIGINT or SIGTERM ended early, as shells have it.
inline constexpr int kInterruptedExit = 130;

/// Each declares a subcommand; when that is parsed, `chosen` is set.
void add_generate_command(CLI::App& app, Command& chosen);
void add_inspect_command(CLI::App& app, Command& chosen);
void add_eval_command(CLI::App& app, Command& chosen);
void add_chat_command(CLI::App& app, Command& chosen);
void add_serve_command(CLI::App& app, Command& chosen);

}  // namespace deepinfer::cli
