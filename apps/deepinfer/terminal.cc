#include "terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

namespace deepinfer::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

extern "C" void on_signal(int) { g_interrupted = 1; }

}  // namespace

void open_standard_streams() {
  constexpr std::pair<int, int> kStreams[] = {{STDIN_FILENO, O_WRONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_WRONLY}};
  for (const auto& [fd, mode] : kStreams) {
    // Lower ones are open by now, so the new one gets this number.
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) static_cast<void>(::open("/dev/null", mode));
  }
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

bool interrupted() { return g_interrupted != 0; }

bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) == 1; }
bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

Result<std::string> read_input(const std::string& path, int64_t limit) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  const int fd = standard ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return Err(Status::NotFound("{}: no such file", name));
  if (fd < 0) return Err(Status::InvalidArgument("{}: cannot open: {}", name, std::strerror(errno)));
  std::string text;
  Status status;
  while (status.ok()) {
    char buffer[64 << 10];
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = Status::DataLoss("{}: cannot read: {}", name, std::strerror(errno));
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > limit) status = Status::OutOfRange("{}: more than {} bytes", name, limit);
  }
  if (!standard) ::close(fd);
  if (!status.ok()) return Err(status);
  return text;
}

Status write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return Status::Ok();
  if (errno == EPIPE) return Status::Cancelled("standard output: the reader has gone away");
  return Status::DataLoss("standard output: cannot write: {}", std::strerror(errno));
}

// Not fmt::print, which throws when it cannot write.
void print_diagnostic(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
  static_cast<void>(std::fflush(stderr));
}

void print_error(std::string_view message) { print_diagnostic(fmt::format("deepinfer: {}\n", one_line(message))); }

std::string one_line(std::string_view text) {
  std::string out;
  for (const char ch : text) {
    const auto byte = static_cast<unsigned char>(ch);
    if (byte >= 0x20 && byte != 0x7f) {
      out += ch;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out;
}

}  // namespace deepinfer::cli
