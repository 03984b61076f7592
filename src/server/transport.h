#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <memory>
#include <string_view>

namespace deepinfer::server {

namespace asio = boost::asio;
using boost::system::error_code;

/// Bytes to and from one peer, with or without TLS. One operation of a kind at a time; errors are left in `error`.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual asio::ip::tcp::socket& socket() = 0;
  virtual asio::awaitable<void> handshake(error_code& error) = 0;
  virtual asio::awaitable<size_t> read(asio::mutable_buffer buffer, error_code& error) = 0;
  /// All of both.
  virtual asio::awaitable<void> write(std::string_view first, std::string_view second, error_code& error) = 0;
  /// Tells the peer that nothing follows.
  virtual asio::awaitable<void> finish(error_code& error) = 0;
};

std::unique_ptr<Transport> make_plain_transport(asio::ip::tcp::socket socket);
std::unique_ptr<Transport> make_tls_transport(asio::ip::tcp::socket socket, asio::ssl::context& context);

}  // namespace deepinfer::server
