#include "server/raw_client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace deepinfer::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::string HttpReply::header(const std::string& name) const {
  const auto at = headers.find(name);
  return at == headers.end() ? "" : at->second;
}

nlohmann::json HttpReply::json() const {
  auto value = nlohmann::json::parse(body, nullptr, false);
  return value.is_discarded() ? nlohmann::json("not JSON: " + body.substr(0, 200)) : value;
}

RawClient::RawClient(int port) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) throw std::runtime_error("cannot connect");
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

RawClient::~RawClient() { close(); }

void RawClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RawClient::half_close() { ::shutdown(fd_, SHUT_WR); }

void RawClient::reset() {
  const linger l{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
  close();
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd p{fd_, POLLOUT, 0};
    if (::poll(&p, 1, static_cast<int>(kPatience * 1000)) <= 0) return false;
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

std::string RawClient::read_some(double seconds, size_t limit) {
  if (!buffer_.empty()) return std::exchange(buffer_, {});
  pollfd p{fd_, POLLIN, 0};
  if (::poll(&p, 1, static_cast<int>(seconds * 1000)) <= 0) return "";
  std::string piece(limit, '\0');
  const ssize_t count = ::recv(fd_, piece.data(), piece.size(), 0);
  piece.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return piece;
}

bool RawClient::quiet(double seconds) const {
  pollfd p{fd_, POLLIN, 0};
  return ::poll(&p, 1, static_cast<int>(seconds * 1000)) == 0;
}

bool RawClient::ended() {
  const auto last = Clock::now() + std::chrono::duration<double>(kPatience);
  while (Clock::now() < last) {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, 50) <= 0) continue;
    char piece[4096];
    if (::recv(fd_, piece, sizeof(piece), 0) <= 0) return true;
  }
  return false;
}

HttpReply RawClient::receive(bool head) {
  const auto last = Clock::now() + std::chrono::duration<double>(kPatience);
  const auto more = [&] {
    const double left = std::chrono::duration<double>(last - Clock::now()).count();
    if (left <= 0) return false;
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(left * 1000) + 1) <= 0) return false;
    char piece[1 << 16];
    const ssize_t count = ::recv(fd_, piece, sizeof(piece), 0);
    if (count > 0) buffer_.append(piece, static_cast<size_t>(count));
    return count > 0;
  };
  HttpReply reply;
  size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!more()) return reply;
  }
  const std::string text = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  reply.status = std::atoi(text.c_str() + text.find(' '));
  for (size_t at = text.find("\r\n") + 2; at < text.size();) {
    const size_t stop = text.find("\r\n", at);
    const size_t colon = text.find(": ", at);
    reply.headers[lower(text.substr(at, colon - at))] = text.substr(colon + 2, stop - colon - 2);
    at = stop + 2;
  }
  if (head || reply.status == 204 || reply.status == 100) {
    reply.complete = true;
  } else if (reply.header("transfer-encoding") == "chunked") {
    while (true) {
      size_t line = 0;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!more()) return reply;
      }
      const size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!more()) return reply;
      }
      reply.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) break;
      ++reply.chunks;
    }
    reply.complete = true;
  } else if (!reply.header("content-length").empty()) {
    const size_t size = std::stoul(reply.header("content-length"));
    while (buffer_.size() < size) {
      if (!more()) return reply;
    }
    reply.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    reply.complete = true;
  } else {
    while (more()) {
    }
    reply.body = std::exchange(buffer_, {});
    reply.complete = true;
  }
  return reply;
}

std::string request_text(const std::string& method, const std::string& path, const std::string& body, const Headers& headers) {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n";
  bool typed = false;
  for (const auto& [name, value] : headers) {
    text += name + ": " + value + "\r\n";
    typed = typed || lower(name) == "content-type";
  }
  if (!body.empty() && !typed) text += "Content-Type: application/json\r\n";
  if (!body.empty() || method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

HttpReply call(int port, const std::string& method, const std::string& path, const std::string& body, const Headers& headers) {
  RawClient client(port);
  client.send(request_text(method, path, body, headers));
  return client.receive(method == "HEAD");
}

std::vector<SseEvent> parse_sse(const std::string& text) {
  std::vector<SseEvent> events;
  SseEvent event;
  for (size_t at = 0; at < text.size();) {
    const size_t stop = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, stop - at);
    if (line.starts_with("event: ")) event.name = line.substr(7);
    if (line.starts_with("data: ")) event.data = line.substr(6);
    if (line.empty() && !event.data.empty()) events.push_back(std::exchange(event, {}));
    at = stop + 1;
  }
  return events;
}

}  // namespace deepinfer::testing
