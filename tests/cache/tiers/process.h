#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace deepinfer::store_testing {

/// What a process of its own does for a test: this program, started anew, as a fork of a process with threads may start none
/// itself. `body` gets the arguments and returns the exit code. Instances are global.
struct ProcessRole {
  using Body = int (*)(const std::vector<std::string>& arguments);
  ProcessRole(const char* name, Body body);
};

/// The exit code of a role that may not do what it is for, as a reason to skip the test.
inline constexpr int kNotPermitted = 77;

/// Starts it. What it writes to `kProcessOutput` can be read from `output`, if that is not null; the caller closes it.
inline constexpr int kProcessOutput = 3;
pid_t start_process(const std::string& role, const std::vector<std::string>& arguments, int* output = nullptr);
/// Waits for its end; negative: the signal that ended it.
int wait_for_process(pid_t process);
/// Reads a byte of `output` at a time, then kills the process with SIGKILL. At `wanted` bytes rather than at a time: a busy
/// machine changes nothing. Returns how many came.
int64_t kill_after(pid_t process, int output, int64_t wanted);

}  // namespace deepinfer::store_testing
