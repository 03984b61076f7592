#include "apps/scripted_server.h"

#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <memory>
#include <vector>

namespace deepinfer::testing {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

}  // namespace

ScriptedServer::ScriptedServer(Reply reply, std::string forever, const std::string& certificate)
    : reply_(std::move(reply)), forever_(std::move(forever)), acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {
  if (!certificate.empty()) {
    tls_.emplace(asio::ssl::context::tls_server);
    tls_->use_certificate_file(certificate + "/cert.pem", asio::ssl::context::pem);
    tls_->use_private_key_file(certificate + "/key.pem", asio::ssl::context::pem);
  }
  thread_ = std::thread([this] {
    std::vector<std::thread> connections;
    while (true) {
      error_code error;
      auto socket = std::make_shared<tcp::socket>(context_);
      acceptor_.accept(*socket, error);
      if (stop_ || error) break;
      ++connections_;
      connections.emplace_back([this, socket] { serve(*socket); });
    }
    for (std::thread& t : connections) t.join();
  });
}

ScriptedServer::~ScriptedServer() {
  stop_ = true;
  error_code ignored;
  tcp::socket wake(context_);
  wake.connect(acceptor_.local_endpoint(), ignored);
  thread_.join();
}

bench::Endpoint ScriptedServer::endpoint() const {
  return {.host = "127.0.0.1",
          .port = std::to_string(acceptor_.local_endpoint().port()),
          .path = "/v1/completions",
          .api_key = "k",
          .tls = tls_.has_value()};
}

void ScriptedServer::serve(tcp::socket& socket) {
  if (!tls_) return talk(socket);
  asio::ssl::stream<tcp::socket&> stream(socket, *tls_);
  error_code error;
  stream.handshake(asio::ssl::stream_base::server, error);
  if (!error) talk(stream);
  socket.close(error);
}

template <typename Stream>
void ScriptedServer::talk(Stream& stream) {
  asio::streambuf in;
  error_code error;
  while (!stop_) {
    const size_t head = asio::read_until(stream, in, "\r\n\r\n", error);
    if (error) return;
    const auto text_of = [&](size_t size) {
      std::string text(asio::buffers_begin(in.data()), asio::buffers_begin(in.data()) + static_cast<std::ptrdiff_t>(size));
      in.consume(size);
      return text;
    };
    const std::string text = text_of(head);
    const size_t at = text.find("Content-Length: ");
    const size_t length = at == std::string::npos ? 0 : std::stoul(text.substr(at + 16));
    if (in.size() < length) asio::read(stream, in, asio::transfer_exactly(length - in.size()), error);
    if (error) return;
    const std::string reply = reply_(requests_++, text_of(length));
    if (reply.empty()) return;
    asio::write(stream, asio::buffer(reply), error);
    while (!forever_.empty() && !error && !stop_) {
      asio::write(stream, asio::buffer(forever_), error);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (error || reply.find("\r\n\r\n") == std::string::npos || reply.find("Connection: close") != std::string::npos) return;
  }
}

std::string http_answer(const std::string& body, const std::string& status) {
  return "HTTP/1.1 " + status + "\r\nContent-Type: text/event-stream\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string sse_event(const std::string& data) { return "data: " + data + "\n\n"; }

}  // namespace deepinfer::testing
