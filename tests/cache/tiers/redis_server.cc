#include "cache/tiers/redis_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "cache/tiers/tier_workers.h"

namespace deepinfer::store_testing {
namespace {

constexpr double kPatience = 60;

/// Debian's redis-tools have the server too, under another name and without a service that starts by itself.
std::string find_program() {
  for (const char* path : {"/usr/bin/redis-server", "/usr/local/bin/redis-server", "/usr/bin/redis-check-rdb"}) {
    if (::access(path, X_OK) == 0) return path;
  }
  return {};
}

}  // namespace

std::unique_ptr<RedisServer> RedisServer::Start(const std::string& directory, std::vector<std::string> options) {
  if (find_program().empty()) return nullptr;
  std::unique_ptr<RedisServer> server(new RedisServer(directory, std::move(options)));
  server->start();
  return server;
}

void RedisServer::start() {
  const std::string program = find_program();
  // The name says what it is.
  std::vector<std::string> words = {"redis-server",
                                    "--port",
                                    "0",
                                    "--unixsocket",
                                    directory_ + "/redis.sock",
                                    "--save",
                                    "",
                                    "--dir",
                                    directory_,
                                    "--logfile",
                                    "redis.log",
                                    "--daemonize",
                                    "no"};
  words.insert(words.end(), options_.begin(), options_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ASSERT_EQ(::posix_spawn(&process_, program.c_str(), nullptr, nullptr, argv.data(), environ), 0);
  const double deadline = steady_seconds() + kPatience;
  const RedisUrl socket{.host = {}, .socket_path = directory_ + "/redis.sock"};
  while (steady_seconds() < deadline) {
    const auto connected = RedisConnection::Open(socket, steady_seconds() + 1, {});
    // One that asks for a password is there too.
    if (connected || connected.error().code() == StatusCode::kFailedPrecondition) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL() << "redis-server does not answer on " << socket.socket_path;
}

void RedisServer::kill() {
  if (process_ < 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = -1;
}

void RedisServer::pause() {
  ::kill(process_, SIGSTOP);
  int status = 0;
  ::waitpid(process_, &status, WUNTRACED);
  EXPECT_TRUE(WIFSTOPPED(status));
}

void RedisServer::resume() { ::kill(process_, SIGCONT); }

std::string RedisServer::run(std::initializer_list<std::string_view> words) const {
  auto connection = RedisConnection::Open(*parse_redis_url(url()), steady_seconds() + kPatience, {});
  EXPECT_TRUE(connection.has_value()) << connection.error().message();
  if (!connection) return {};
  RedisCommands commands;
  commands.add(words);
  std::string text;
  const Status status = (*connection)
                            ->run(commands,
                                  [&](size_t, const RedisReply& reply) {
                                    text = reply.kind == RedisReply::Kind::kInteger ? std::to_string(reply.integer) : reply.bytes;
                                  },
                                  steady_seconds() + kPatience, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return text;
}

}  // namespace deepinfer::store_testing
