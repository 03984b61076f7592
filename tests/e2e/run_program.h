#pragma once

#include <string>
#include <vector>

namespace deepinfer::testing {

struct ProgramRun {
  int code = -1;  ///< exit code; 128 + signal if it was killed
  std::string out;
  std::string err;
};

struct ProgramOptions {
  std::string input = {};              ///< standard input
  int signal_at_first_output = 0;      ///< sent once something has come out
  bool close_at_first_output = false;  ///< standard output is closed then, as `head` does
  std::vector<int> closed = {};        ///< standard streams that the program starts without, as after `2>&-` in a shell
  bool full = false;                   ///< standard error is a full device, where nothing can be written
};

/// Runs the built program to its end. After two minutes it is killed.
ProgramRun run_program(const std::vector<std::string>& arguments, const ProgramOptions& options = {});

/// A copy of models/nano that a test may damage.
std::string copy_of_nano();

}  // namespace deepinfer::testing
