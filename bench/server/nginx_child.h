#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace deepinfer::bench {

/// nginx with a static body, for a yardstick: the same request from the same client over the same sockets, and nothing to
/// compute.
class NginxChild {
 public:
  /// Answers any request for `path`, POST included, with `body` as JSON. NotFound: there is no nginx here.
  static Result<NginxChild> Start(const std::string& path, const std::string& body, int workers);
  ~NginxChild();
  NginxChild(NginxChild&& other) noexcept;
  NginxChild(const NginxChild&) = delete;

  int port() const { return port_; }
  const std::string& version() const { return version_; }  ///< "nginx/1.22.1"

 private:
  NginxChild(pid_t pid, int port, std::string folder, std::string version);
  pid_t pid_;
  int port_;
  std::string folder_, version_;
};

}  // namespace deepinfer::bench
