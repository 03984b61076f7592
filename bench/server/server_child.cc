#include "server_child.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "server/fake_engine.h"
#include "server/server.h"

namespace deepinfer::bench {
namespace {

/// The child: writes its port, or 0, and serves until it is told to end.
int serve(const ServerChildOptions& o, int out) {
  int port = 0;
  auto tokenizer = Tokenizer::Load(o.tokenizer);
  if (!tokenizer) {
    fmt::print(stderr, "{}\n", tokenizer.error().message());
    return static_cast<int>(::write(out, &port, sizeof(port)));
  }
  EngineOptions engine_options;
  engine_options.model = "fake";
  engine_options.max_num_seqs = o.max_num_seqs;
  const auto engine =
      server::make_fake_engine(*tokenizer, engine_options, {.rate = o.rate, .tokens = o.tokens, .timestamps = true});
  server::ServerOptions options;
  options.port = 0;
  options.threads = o.threads;
  options.max_connections = 100'000;
  options.drain_timeout = 1;
  server::Backend backend;
  backend.engine = engine.get();
  backend.tokenizer = *tokenizer;
  backend.conversion.default_thinking = false;
  backend.policy.max_model_len = engine->model().max_model_len;
  auto server =
      server::Server::Create(options, std::move(backend), std::make_shared<server::EventLog>(server::EventLog::Format::kOff));
  if (server) port = (*server)->port();
  if (::write(out, &port, sizeof(port)) != sizeof(port) || port == 0) return 1;
  (*server)->handle_signals();
  (*server)->wait();
  return 0;
}

}  // namespace

Result<ServerChild> ServerChild::Start(const ServerChildOptions& options) {
  int pipe[2];
  if (::pipe(pipe) != 0) return Err(Status::Internal("no pipe"));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(pipe[0]);
    std::_Exit(serve(options, pipe[1]));
  }
  ::close(pipe[1]);
  int port = 0;
  const bool read = ::read(pipe[0], &port, sizeof(port)) == sizeof(port);
  ::close(pipe[0]);
  ServerChild child(pid, port);
  if (!read || port == 0) return Err(Status::Internal("the server did not start"));
  return child;
}

ServerChild::ServerChild(ServerChild&& other) noexcept : pid_(std::exchange(other.pid_, -1)), port_(other.port_) {}

ServerChild::~ServerChild() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

double ServerChild::cpu_seconds() const {
  std::ifstream in(fmt::format("/proc/{}/stat", pid_));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

int64_t ServerChild::resident_bytes() const {
  std::ifstream in(fmt::format("/proc/{}/statm", pid_));
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t ServerChild::descriptors() const {
  const std::filesystem::directory_iterator fds(fmt::format("/proc/{}/fd", pid_));
  return std::distance(begin(fds), end(fds));
}

}  // namespace deepinfer::bench
