#pragma once

#include <memory>
#include <string>

#include "server/application.h"

namespace deepinfer::server {

/// Listens and serves until it is told to end. Every member may be called from any thread.
class Server {
 public:
  /// Binds the listeners and starts serving. Errors name the flag.
  static Result<std::unique_ptr<Server>> Create(ServerOptions options, Backend backend, std::shared_ptr<EventLog> log);
  /// Ends at once what still runs.
  virtual ~Server() = default;

  virtual int port() const = 0;
  virtual int admin_port() const = 0;  ///< -1: none
  virtual std::string url() const = 0;
  virtual Application& application() = 0;

  /// No new generations; the server ends when those there are have ended, or after the drain timeout.
  virtual void drain() = 0;
  /// SIGINT and SIGTERM drain from here on; the second one ends the process with exit code 130.
  virtual void handle_signals() = 0;
  /// Returns when the server has drained. The engine is shut down then if the drain timeout had come.
  virtual void wait() = 0;

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 protected:
  Server() = default;
};

}  // namespace deepinfer::server
