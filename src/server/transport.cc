#include "server/transport.h"

#include <array>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace deepinfer::server {
namespace {

using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;

std::array<asio::const_buffer, 2> buffers(std::string_view first, std::string_view second) {
  return {asio::const_buffer(first.data(), first.size()), asio::const_buffer(second.data(), second.size())};
}

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(tcp::socket socket) : socket_(std::move(socket)) {}
  tcp::socket& socket() override { return socket_; }
  asio::awaitable<void> handshake(error_code& error) override {
    error = {};
    co_return;
  }
  asio::awaitable<size_t> read(asio::mutable_buffer buffer, error_code& error) override {
    co_return co_await socket_.async_read_some(buffer, redirect_error(use_awaitable, error));
  }
  asio::awaitable<void> write(std::string_view first, std::string_view second, error_code& error) override {
    co_await asio::async_write(socket_, buffers(first, second), redirect_error(use_awaitable, error));
  }
  asio::awaitable<void> finish(error_code& error) override {
    socket_.shutdown(tcp::socket::shutdown_send, error);
    co_return;
  }

 private:
  tcp::socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(tcp::socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}
  tcp::socket& socket() override { return stream_.next_layer(); }
  asio::awaitable<void> handshake(error_code& error) override {
    co_await stream_.async_handshake(asio::ssl::stream_base::server, redirect_error(use_awaitable, error));
  }
  asio::awaitable<size_t> read(asio::mutable_buffer buffer, error_code& error) override {
    co_return co_await stream_.async_read_some(buffer, redirect_error(use_awaitable, error));
  }
  asio::awaitable<void> write(std::string_view first, std::string_view second, error_code& error) override {
    co_await asio::async_write(stream_, buffers(first, second), redirect_error(use_awaitable, error));
  }
  asio::awaitable<void> finish(error_code& error) override {
    co_await stream_.async_shutdown(redirect_error(use_awaitable, error));
  }

 private:
  asio::ssl::stream<tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<Transport> make_plain_transport(tcp::socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> make_tls_transport(tcp::socket socket, asio::ssl::context& context) {
  return std::make_unique<TlsTransport>(std::move(socket), context);
}

}  // namespace deepinfer::server
