#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "base/status.h"
#include "serve/endpoint.h"

namespace deepinfer::bench {

struct HttpTimeouts {
  double silence = 600;  ///< seconds without a byte, connecting and TLS included
  double whole = 3600;   ///< seconds of an exchange, however lively it is
};

/// How an exchange went.
struct HttpReply {
  int status = 0;       ///< 0: no head came
  std::string refusal;  ///< the body of a status that is not 200, its beginning
  std::string error;    ///< of the transport, in one line; empty: the reply came whole, or was no longer wanted

  bool ok() const { return error.empty() && status == 200; }
  /// The error, or the status with what the server says about it; empty if ok().
  std::string failure() const;
};

/// HTTP/1.1 to one server from one thread: any number of exchanges at a time, on connections that are kept and used again. One
/// that the server closed while it was idle is replaced once.
class HttpClient {
 public:
  /// Takes the body of a 200 as it comes; false: the rest is not wanted.
  using BodySink = FunctionRef<bool(std::string_view piece)>;

  /// Errors: a file of authorities that cannot be read.
  static Result<std::unique_ptr<HttpClient>> Create(boost::asio::io_context& context, const Endpoint& endpoint,
                                                    HttpTimeouts timeouts);
  virtual ~HttpClient() = default;

  /// A POST of JSON; a GET if `body` is null. Both strings and what the sink calls must live until it is over.
  virtual boost::asio::awaitable<HttpReply> exchange(const std::string& path, const std::string* body, BodySink sink) = 0;
  /// Ends whatever runs with an error; nothing may follow.
  virtual void cancel() = 0;
};

/// GET of a document of at most 16 MiB on a connection of its own; an error says what went wrong.
Result<std::string> http_get(const Endpoint& endpoint, const std::string& path, double timeout = 30);

}  // namespace deepinfer::bench
