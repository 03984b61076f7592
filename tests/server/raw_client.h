#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::testing {

struct HttpReply {
  int status = 0;                              ///< 0: the connection ended without one
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< chunks joined
  int64_t chunks = 0;
  bool complete = false;

  std::string header(const std::string& name) const;
  nlohmann::json json() const;
};

/// How long tests wait for what must come. Nothing is measured against it: it ends tests that would hang.
inline constexpr double kPatience = 120;

/// A blocking socket to 127.0.0.1 on which tests send what they like.
class RawClient {
 public:
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// False: the peer has closed or reset the connection.
  bool send(std::string_view bytes);
  /// The next reply. `head`: of a HEAD request.
  HttpReply receive(bool head = false);
  /// Whatever comes next, at most `limit` bytes; empty at the end or after the time.
  std::string read_some(double seconds = kPatience, size_t limit = 1 << 16);
  /// Nothing has come, and the peer has not left, for so long.
  bool quiet(double seconds) const;
  /// Waits for the peer to end the connection.
  bool ended();
  void half_close();
  /// Closes with a reset.
  void reset();
  void close();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::string buffer_;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

/// The text of a request with Host, Content-Length and, for a body, Content-Type.
std::string request_text(const std::string& method, const std::string& path, const std::string& body = "",
                         const Headers& headers = {});
/// One request on a connection of its own.
HttpReply call(int port, const std::string& method, const std::string& path, const std::string& body = "",
               const Headers& headers = {});

struct SseEvent {
  std::string name;
  std::string data;
};
std::vector<SseEvent> parse_sse(const std::string& text);

/// Waits until `condition` holds; false after the time.
template <typename Condition>
bool eventually(Condition condition) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatience);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > last) return false;
    struct timespec pause = {0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace deepinfer::testing
