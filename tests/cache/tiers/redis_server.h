#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/tiers/redis_connection.h"

namespace deepinfer::store_testing {

/// A real Redis server on a socket in a directory of its own, stopped by its process id.
class RedisServer {
 public:
  /// Null if the program isn't installed: the test is skipped then. `options`: of the command line.
  static std::unique_ptr<RedisServer> Start(const std::string& directory, std::vector<std::string> options = {});
  ~RedisServer() { kill(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  std::string url() const { return "unix://" + directory_ + "/redis.sock"; }
  /// SIGKILL; what it held is lost.
  void kill();
  void start();
  void pause();
  void resume();
  /// One command by a connection of its own; the reply's text or number, or its elements behind each other.
  std::string run(std::initializer_list<std::string_view> words) const;

 private:
  RedisServer(std::string directory, std::vector<std::string> options)
      : directory_(std::move(directory)), options_(std::move(options)) {}

  const std::string directory_;
  const std::vector<std::string> options_;
  pid_t process_ = -1;
};

}  // namespace deepinfer::store_testing
