#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "serve/endpoint.h"

namespace deepinfer::testing {

/// Answers each request on a free port of the loopback interface with bytes that a test chooses, right or wrong. One thread for
/// each connection.
class ScriptedServer {
 public:
  /// What is sent for a request, which is the `number`th of all connections and has this body; "" closes the connection.
  using Reply = std::function<std::string(int64_t number, const std::string& body)>;

  /// `forever` is sent after a reply, again and again. With a `certificate`, a folder of cert.pem and key.pem, it speaks TLS, and
  /// closes connections without the goodbye of TLS.
  explicit ScriptedServer(Reply reply, std::string forever = "", const std::string& certificate = "");
  ~ScriptedServer();

  bench::Endpoint endpoint() const;
  int64_t connections() const { return connections_; }
  int64_t requests() const { return requests_; }

 private:
  void serve(boost::asio::ip::tcp::socket& socket);
  template <typename Stream>
  void talk(Stream& stream);

  Reply reply_;
  std::string forever_;
  std::optional<boost::asio::ssl::context> tls_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> connections_ = 0, requests_ = 0;
  std::thread thread_;
};

/// A whole answer of HTTP/1.1.
std::string http_answer(const std::string& body, const std::string& status = "200 OK");
/// An event of a stream.
std::string sse_event(const std::string& data);

}  // namespace deepinfer::testing
