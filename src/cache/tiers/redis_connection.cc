#include "cache/tiers/redis_connection.h"

#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "cache/tiers/tier_workers.h"

namespace deepinfer {
namespace {

constexpr size_t kMostElements = size_t{1} << 20;
constexpr size_t kMostReplyBytes = size_t{64} << 20;

// What hiredis calls while it reads. The root of a reply is the RedisReply itself; elements of an array are appended to it.

RedisReply* target(const redisReadTask* task) { return static_cast<RedisReply*>(task->privdata); }

void* add_text(const redisReadTask* task, const char* text, size_t size) {
  RedisReply* reply = target(task);
  if (task->parent != nullptr) {
    reply->elements.push_back({.begin = reply->bytes.size(), .size = static_cast<int64_t>(size)});
  } else {
    reply->kind = task->type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError : RedisReply::Kind::kText;
  }
  reply->bytes.append(text, size);
  return reply;
}
void* add_integer(const redisReadTask* task, long long value) {
  if (task->parent != nullptr) return add_text(task, "", 0);  // no command of ours has integers in an array
  target(task)->kind = RedisReply::Kind::kInteger;
  target(task)->integer = value;
  return target(task);
}
void* add_nil(const redisReadTask* task) {
  if (task->parent != nullptr) {
    target(task)->elements.emplace_back();
  } else {
    target(task)->kind = RedisReply::Kind::kNil;
  }
  return target(task);
}
template <typename Count>
void* add_array(const redisReadTask* task, Count elements) {
  // No command of ours has arrays in an array.
  if (task->parent != nullptr || elements < 0 || static_cast<size_t>(elements) > kMostElements) return nullptr;
  target(task)->kind = RedisReply::Kind::kArray;
  return target(task);
}

redisReplyObjectFunctions* functions() {
  static redisReplyObjectFunctions all = [] {
    redisReplyObjectFunctions some{};
    some.createString = [](const redisReadTask* task, char* text, size_t size) { return add_text(task, text, size); };
    some.createArray = [](const redisReadTask* task, auto elements) { return add_array(task, elements); };  // int or size_t
    some.createInteger = add_integer;
    some.createNil = add_nil;
    some.freeObject = [](void*) {};
    return some;
  }();
  return &all;
}

}  // namespace

RedisReply::Element RedisReply::at(size_t i) const {
  const Place& place = elements[i];
  if (place.size < 0) return {};
  return {.nil = false, .text = std::string_view(bytes).substr(place.begin, static_cast<size_t>(place.size))};
}

void RedisCommands::add(std::span<const std::string_view> words) {
  // By hand, as hiredis takes longer to format a thousand keys than Redis to look them up.
  const auto append_count = [this](char mark, size_t count) {
    const fmt::format_int digits(count);
    bytes_.append(1, mark).append(digits.data(), digits.size()).append("\r\n");
  };
  append_count('*', words.size());
  for (const std::string_view word : words) {
    append_count('$', word.size());
    bytes_.append(word).append("\r\n");
  }
  ++count_;
}

void RedisConnection::FreeReader::operator()(redisReader* reader) const { ::redisReaderFree(reader); }

RedisConnection::RedisConnection(RedisUrl url) : url_(std::move(url)), reader_(::redisReaderCreateWithFunctions(functions())) {
  DI_CHECK(reader_ != nullptr, "no memory for a reader of replies");
  reader_->privdata = &reply_;
}

RedisConnection::~RedisConnection() {
  if (socket_ >= 0) ::close(socket_);
}

Status RedisConnection::failed(std::string_view what, int error) const {
  return Status::Unavailable("{}: {}{}{}", url_.text(), what, error == 0 ? "" : ": ", error == 0 ? "" : std::strerror(error));
}

Result<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisUrl& url, double deadline,
                                                               const std::stop_token& stop) {
  std::unique_ptr<RedisConnection> connection(new RedisConnection(url));
  DI_RETURN_IF_ERROR(connection->connect(deadline, stop));
  DI_RETURN_IF_ERROR(connection->greet(deadline, stop));
  return connection;
}

Status RedisConnection::wait(short events, double deadline, const std::stop_token& stop) const {
  constexpr double kSliceSeconds = 0.02;  // until somebody looks at `stop` again
  for (;;) {
    if (stop.stop_requested()) return Status::Cancelled("{}: cancelled", url_.text());
    const double left = deadline - steady_seconds();
    if (left <= 0) return failed("no answer in time", 0);
    pollfd ready{.fd = socket_, .events = events, .revents = 0};
    const int found = ::poll(&ready, 1, static_cast<int>(std::ceil(std::min(left, kSliceSeconds) * 1000)));
    if (found > 0) return Status::Ok();
    if (found < 0 && errno != EINTR) return failed("poll", errno);
  }
}

Status RedisConnection::connect(double deadline, const std::stop_token& stop) {
  const auto try_address = [&](int family, const sockaddr* address, socklen_t size) -> Status {
    if (socket_ >= 0) ::close(socket_);
    socket_ = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0) return failed("socket", errno);
    if (::connect(socket_, address, size) == 0) return Status::Ok();
    if (errno != EINPROGRESS) return failed("connect", errno);
    DI_RETURN_IF_ERROR(wait(POLLOUT, deadline, stop));
    int error = 0;
    socklen_t length = sizeof(error);
    if (::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    return error == 0 ? Status::Ok() : failed("connect", error);
  };
  if (url_.host.empty()) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    DI_CHECK(url_.socket_path.size() < sizeof(address.sun_path), "a socket path of {} bytes", url_.socket_path.size());
    std::memcpy(address.sun_path, url_.socket_path.data(), url_.socket_path.size());
    return try_address(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(url_.host.c_str(), std::to_string(url_.port).c_str(), &hints, &found); error != 0) {
    return failed(fmt::format("look up {}: {}", url_.host, ::gai_strerror(error)), 0);
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  Status status = failed("no address", 0);
  for (const addrinfo* address = found; address != nullptr && !status.ok(); address = address->ai_next) {
    status = try_address(address->ai_family, address->ai_addr, address->ai_addrlen);
  }
  const int on = 1;
  if (status.ok()) (void)::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return status;
}

Status RedisConnection::greet(double deadline, const std::stop_token& stop) {
  RedisCommands commands;
  if (!url_.password.empty() && !url_.user.empty()) {
    commands.add({"AUTH", url_.user, url_.password});
  } else if (!url_.password.empty()) {
    commands.add({"AUTH", url_.password});
  }
  const std::string database = std::to_string(url_.database);
  if (url_.database != 0) commands.add({"SELECT", database});
  commands.add({"PING"});
  Status refused;
  DI_RETURN_IF_ERROR(run(
      commands,
      [&](size_t, const RedisReply& reply) {
        if (reply.kind != RedisReply::Kind::kError || !refused.ok()) return;
        refused = Status::FailedPrecondition("{}: refused: {}", url_.text(), reply.text().substr(0, 200));
      },
      deadline, stop));
  return refused;
}

Status RedisConnection::run(const RedisCommands& commands, FunctionRef<void(size_t command, const RedisReply& reply)> receive,
                            double deadline, const std::stop_token& stop) {
  std::string_view left = commands.bytes();
  size_t replies = 0, received = 0;
  std::array<char, size_t{64} << 10> buffer;
  while (replies < commands.size()) {
    DI_RETURN_IF_ERROR(wait(static_cast<short>(left.empty() ? POLLIN : POLLIN | POLLOUT), deadline, stop));
    if (!left.empty()) {
      const ssize_t sent = ::send(socket_, left.data(), left.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return failed("send", errno);
      if (sent > 0) left.remove_prefix(static_cast<size_t>(sent));
    }
    const ssize_t got = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got < 0) return failed("receive", errno);
    if (got == 0) return failed("closed by the server", 0);
    received += static_cast<size_t>(got);
    if (received > kMostReplyBytes) return failed(fmt::format("more than {} bytes of replies", kMostReplyBytes), 0);
    ::redisReaderFeed(reader_.get(), buffer.data(), static_cast<size_t>(got));
    for (;;) {
      void* whole = nullptr;
      if (::redisReaderGetReply(reader_.get(), &whole) != REDIS_OK) {
        return failed(fmt::format("not Redis's protocol: {}", reader_->errstr), 0);
      }
      if (whole == nullptr) break;
      if (replies == commands.size()) return failed("more replies than commands", 0);
      receive(replies++, reply_);
      reply_ = {};
    }
  }
  return Status::Ok();
}

}  // namespace deepinfer
