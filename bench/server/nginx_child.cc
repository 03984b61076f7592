#include "nginx_child.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "load_client.h"

namespace deepinfer::bench {
namespace {

constexpr const char* kProgram = "nginx";

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  int port = 0;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    port = ntohs(address.sin_port);
  ::close(fd);
  return port;
}

/// What a command prints, standard error included.
std::string output_of(const std::string& command) {
  std::string out;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  char piece[256];
  while (std::fgets(piece, sizeof(piece), pipe) != nullptr) out += piece;
  ::pclose(pipe);
  return out;
}

std::string configuration(const std::string& folder, const std::string& path, int port, int workers) {
  std::string text = ::geteuid() == 0 ? "user root root;\n" : "";
  text += fmt::format("daemon off;\nworker_processes {};\npid {}/pid;\nerror_log {}/error.log crit;\n", workers, folder, folder);
  text += "events { worker_connections 4096; }\nhttp {\n  access_log off;\n  tcp_nodelay on;\n  keepalive_requests 1000000000;\n";
  for (const char* kind : {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"})
    text += fmt::format("  {}_temp_path {}/{};\n", kind, folder, kind);
  text += "  open_file_cache max=16;\n  default_type application/json;\n";
  // Files are for GET; the second line serves them to POST as well.
  text += fmt::format("  server {{\n    listen 127.0.0.1:{};\n    root {}/html;\n    error_page 405 =200 {};\n  }}\n}}\n", port,
                      folder, path);
  return text;
}

}  // namespace

Result<NginxChild> NginxChild::Start(const std::string& path, const std::string& body, int workers) {
  std::string version = output_of(fmt::format("{} -v", kProgram));
  const size_t at = version.find("nginx/");
  if (at == std::string::npos) return Err(Status::NotFound("there is no nginx here (apt-get install nginx-light)"));
  version = version.substr(at, version.find_first_of(" \n", at) - at);
  std::string folder = (std::filesystem::temp_directory_path() / "deepinfer-nginx-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return Err(Status::Internal("no temporary folder"));
  const int port = free_port();
  const std::filesystem::path file = folder + "/html" + path;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << body;
  std::ofstream(folder + "/nginx.conf") << configuration(folder, path, port, workers);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDERR_FILENO);
    ::execlp(kProgram, kProgram, "-p", folder.c_str(), "-c", (folder + "/nginx.conf").c_str(), static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  NginxChild child(pid, port, folder, std::move(version));
  for (int i = 0; i < 200; ++i) {
    LoadClient probe;
    if (probe.connect(port)) return child;
    ::usleep(20'000);
  }
  return Err(Status::Internal("nginx did not start: {}", output_of(fmt::format("cat {}/error.log", folder))));
}

NginxChild::NginxChild(pid_t pid, int port, std::string folder, std::string version)
    : pid_(pid), port_(port), folder_(std::move(folder)), version_(std::move(version)) {}

NginxChild::NginxChild(NginxChild&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      port_(other.port_),
      folder_(std::move(other.folder_)),
      version_(std::move(other.version_)) {}

NginxChild::~NginxChild() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace deepinfer::bench
