#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "commands.h"

namespace deepinfer::testing {

/// What a command left: its exit code, as main would give it, and what it wrote.
struct CommandOutput {
  int code = 0;
  std::string out, err;
};

/// Parses `arguments`, in reading order, and runs the command that they choose.
inline CommandOutput run_command(CLI::App& app, cli::Command& chosen, std::vector<std::string> arguments) {
  CommandOutput result;
  std::reverse(arguments.begin(), arguments.end());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  try {
    app.parse(arguments);
    const Result<int> code = chosen();
    result.code = code ? *code : 1;
    if (!code) std::fputs(code.error().message().c_str(), stderr);
  } catch (const CLI::ParseError& error) {
    result.code = 1;
    std::fputs(error.what(), stderr);
  }
  std::fflush(stderr);
  result.out = ::testing::internal::GetCapturedStdout();
  result.err = ::testing::internal::GetCapturedStderr();
  return result;
}

}  // namespace deepinfer::testing
