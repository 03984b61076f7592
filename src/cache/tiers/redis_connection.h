#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "cache/tiers/redis_url.h"

struct redisReader;  // hiredis's; its headers stay out of ours

namespace deepinfer {

/// What Redis answered to one command.
struct RedisReply {
  enum class Kind : uint8_t { kNothing, kNil, kInteger, kText, kError, kArray };
  struct Element {
    bool nil = true;
    std::string_view text;  ///< valid as long as the reply
  };
  Kind kind = Kind::kNothing;
  int64_t integer = 0;
  std::string_view text() const { return bytes; }
  size_t size() const { return elements.size(); }
  Element at(size_t i) const;

  struct Place {
    size_t begin = 0;
    int64_t size = -1;  ///< negative: nil
  };
  std::string bytes;            ///< the text, or those of all elements
  std::vector<Place> elements;  ///< where they are in `bytes`
};

/// Commands for one batch, in Redis's protocol.
class RedisCommands {
 public:
  void add(std::span<const std::string_view> words);
  void add(std::initializer_list<std::string_view> words) { add(std::span(words.begin(), words.size())); }
  size_t size() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  size_t count_ = 0;
};

/// A connection on which nothing takes longer than it may: socket calls never block, and each batch has a deadline on the steady
/// clock (steady_seconds). Replies are read by hiredis. After any error the connection is of no use any more. Replies are
/// bounded: a server that sends more than was asked for is left. One thread at a time.
class RedisConnection {
 public:
  /// Connects, and makes itself known if the URL says how. Looking up a host's name may take longer than the deadline.
  static Result<std::unique_ptr<RedisConnection>> Open(const RedisUrl& url, double deadline, const std::stop_token& stop);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  /// Sends the commands, then hands over their replies in order. An error reply is handed over too; it is no error of the call.
  Status run(const RedisCommands& commands, FunctionRef<void(size_t command, const RedisReply& reply)> receive, double deadline,
             const std::stop_token& stop);

 private:
  struct FreeReader {
    void operator()(redisReader* reader) const;
  };
  explicit RedisConnection(RedisUrl url);

  Status connect(double deadline, const std::stop_token& stop);
  Status greet(double deadline, const std::stop_token& stop);
  /// Waits until the socket is ready for `events`.
  Status wait(short events, double deadline, const std::stop_token& stop) const;
  Status failed(std::string_view what, int error) const;

  const RedisUrl url_;
  int socket_ = -1;
  RedisReply reply_;  ///< being put together
  std::unique_ptr<redisReader, FreeReader> reader_;
};

}  // namespace deepinfer
