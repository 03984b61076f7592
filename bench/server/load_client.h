#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::bench {

/// A connection of the load tool: one request at a time, its reply read as it comes. Streams carry "k:T " for token k made at T
/// (server/fake_engine.h): the order is checked, and the time since then noted.
class LoadClient {
 public:
  LoadClient() = default;
  ~LoadClient() { close(); }
  LoadClient(LoadClient&& other) noexcept;
  LoadClient(const LoadClient&) = delete;

  bool connect(int port);
  void close();
  int fd() const { return fd_; }
  /// Starts a request. Requests are small, so they are taken at once.
  bool send(std::string_view request);
  /// Reads what there is. `latencies`: seconds between making and reading, one per token; may be null.
  enum class State : uint8_t { kOpen, kDone, kBroken };
  State read(std::vector<float>* latencies);

  int64_t tokens() const { return next_; }
  int64_t status() const { return status_; }
  int64_t length() const { return length_; }  ///< of the last reply that came in one piece
  bool ordered() const { return ordered_; }

 private:
  State parse(std::vector<float>* latencies);
  void take_event(std::string_view data, std::vector<float>* latencies);

  int fd_ = -1;
  std::string in_;    ///< received, not yet parsed
  std::string body_;  ///< of a stream, not yet a whole line
  bool head_done_ = false, chunked_ = false, ordered_ = true;
  int64_t status_ = 0, length_ = 0, next_ = 0;
};

}  // namespace deepinfer::bench
