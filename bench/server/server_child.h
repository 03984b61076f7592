#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace deepinfer::bench {

struct ServerChildOptions {
  std::string tokenizer;
  double rate = 20;
  int64_t tokens = 32;
  int64_t max_num_seqs = 65536;
  int threads = 2;
};

/// The server with a fake engine in a process of its own, so that its costs can be told from the client's.
class ServerChild {
 public:
  /// Call before this process has threads.
  static Result<ServerChild> Start(const ServerChildOptions& options);
  ~ServerChild();
  ServerChild(ServerChild&& other) noexcept;
  ServerChild(const ServerChild&) = delete;

  int port() const { return port_; }
  double cpu_seconds() const;
  int64_t resident_bytes() const;
  int64_t descriptors() const;

 private:
  ServerChild(pid_t pid, int port) : pid_(pid), port_(port) {}
  pid_t pid_;
  int port_;
};

}  // namespace deepinfer::bench
