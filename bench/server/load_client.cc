#include "load_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <utility>

namespace deepinfer::bench {

LoadClient::LoadClient(LoadClient&& o) noexcept
    : fd_(std::exchange(o.fd_, -1)),
      in_(std::move(o.in_)),
      body_(std::move(o.body_)),
      head_done_(o.head_done_),
      chunked_(o.chunked_),
      ordered_(o.ordered_),
      status_(o.status_),
      length_(o.length_),
      next_(o.next_) {}

bool LoadClient::connect(int port) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return false;
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return ::fcntl(fd_, F_SETFL, O_NONBLOCK) == 0;
}

void LoadClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool LoadClient::send(std::string_view request) {
  head_done_ = chunked_ = false;
  ordered_ = true;
  status_ = length_ = next_ = 0;
  body_.clear();
  return ::send(fd_, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
}

LoadClient::State LoadClient::read(std::vector<float>* latencies) {
  char piece[64 << 10];
  const ssize_t count = ::recv(fd_, piece, sizeof(piece), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR ? State::kOpen : State::kBroken;
  if (count == 0) return State::kBroken;
  in_.append(piece, static_cast<size_t>(count));
  return parse(latencies);
}

LoadClient::State LoadClient::parse(std::vector<float>* latencies) {
  if (!head_done_) {
    const size_t end = in_.find("\r\n\r\n");
    if (end == std::string::npos) return State::kOpen;
    const std::string_view head(in_.data(), end + 2);
    std::from_chars(head.data() + 9, head.data() + 12, status_);
    chunked_ = head.find("Transfer-Encoding: chunked\r\n") != std::string_view::npos;
    if (const size_t at = head.find("Content-Length: "); at != std::string_view::npos)
      std::from_chars(head.data() + at + 16, head.data() + head.size(), length_);
    in_.erase(0, end + 4);
    head_done_ = true;
  }
  if (!chunked_) {
    if (static_cast<int64_t>(in_.size()) < length_) return State::kOpen;
    in_.erase(0, static_cast<size_t>(length_));
    return State::kDone;
  }
  while (true) {
    const size_t line = in_.find("\r\n");
    if (line == std::string::npos) return State::kOpen;
    size_t size = 0;
    std::from_chars(in_.data(), in_.data() + line, size, 16);
    if (in_.size() < line + 2 + size + 2) return State::kOpen;
    body_.append(in_, line + 2, size);
    in_.erase(0, line + 2 + size + 2);
    if (size == 0) return State::kDone;
    size_t at = 0;
    for (size_t end = 0; (end = body_.find("\n\n", at)) != std::string::npos; at = end + 2)
      take_event(std::string_view(body_).substr(at, end - at), latencies);
    body_.erase(0, at);
  }
}

void LoadClient::take_event(std::string_view data, std::vector<float>* latencies) {
  constexpr std::string_view kContent = "\"content\":\"";
  const size_t found = data.find(kContent);
  if (found == std::string_view::npos) return;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  const char* at = data.data() + found + kContent.size();
  const char* const end = data.data() + data.size();
  while (at < end && *at != '"') {
    int64_t number = 0, made = 0;
    const auto first = std::from_chars(at, end, number);
    if (first.ec != std::errc() || *first.ptr != ':') break;
    const auto second = std::from_chars(first.ptr + 1, end, made);
    if (second.ec != std::errc()) break;
    ordered_ = ordered_ && number == next_;
    ++next_;
    if (latencies != nullptr) latencies->push_back(static_cast<float>(static_cast<double>(now - made) * 1e-9));
    at = second.ptr + 1;
  }
}

}  // namespace deepinfer::bench
