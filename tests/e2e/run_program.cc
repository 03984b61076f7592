#include "e2e/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "checkpoint/temp_dir.h"
#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// Never two at once in one test program, so that no child inherits another's pipe.
struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  void close(int end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
};

/// Appends what there is; closes the reading end at the end of the stream.
void drain(Pipe& pipe, std::string& text) {
  char buffer[4096];
  const ssize_t n = ::read(pipe.ends[0], buffer, sizeof(buffer));
  if (n > 0) text.append(buffer, static_cast<size_t>(n));
  if (n <= 0) pipe.close(0);
}

}  // namespace

ProgramRun run_program(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  const std::string path = program();
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);

  Pipe in;
  Pipe out;
  Pipe err;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(in.ends[0], STDIN_FILENO);
    ::dup2(out.ends[1], STDOUT_FILENO);
    ::dup2(err.ends[1], STDERR_FILENO);
    if (options.full) ::dup2(::open("/dev/full", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    for (const int fd : options.closed) ::close(fd);
    std::signal(SIGPIPE, SIG_DFL);
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
  in.close(0);
  out.close(1);
  err.close(1);
  // Inputs of the tests fit into a pipe.
  if (!options.input.empty() && ::write(in.ends[1], options.input.data(), options.input.size()) < 0) in.close(1);
  in.close(1);

  ProgramRun run;
  bool acted = false;
  const auto end = Clock::now() + std::chrono::minutes(2);
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    if (Clock::now() > end) ::kill(pid, SIGKILL);
    pollfd fds[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    ::poll(fds, 2, 1000);
    if (fds[0].revents != 0) drain(out, run.out);
    if (fds[1].revents != 0) drain(err, run.err);
    if (!run.out.empty() && !acted) {
      acted = true;
      if (options.signal_at_first_output != 0) ::kill(pid, options.signal_at_first_output);
      if (options.close_at_first_output) out.close(0);
    }
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return run;
}

std::string copy_of_nano() {
  const std::string directory = scratch_dir("nano");
  std::filesystem::copy(nano_dir(), directory, std::filesystem::copy_options::recursive);
  return directory;
}

}  // namespace deepinfer::testing
