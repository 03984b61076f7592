#include "serve/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <optional>
#include <vector>

#include "terminal.h"

namespace deepinfer::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kMaxHeaderBytes = 64 * 1024;
constexpr size_t kMaxRefusalBytes = 4096;
constexpr size_t kShownRefusalBytes = 300;
constexpr size_t kMaxDocumentBytes = size_t{16} << 20;

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e8)));
}

auto into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

/// A connection, with or without TLS.
class Connection {
 public:
  Connection(asio::io_context& context, ssl::context* tls) {
    if (tls != nullptr) {
      secure_.emplace(context, *tls);
    } else {
      plain_.emplace(context);
    }
  }
  beast::tcp_stream& tcp_layer() { return secure_ ? beast::get_lowest_layer(*secure_) : *plain_; }
  beast::ssl_stream<beast::tcp_stream>* secure() { return secure_ ? &*secure_ : nullptr; }
  beast::tcp_stream& plain() { return *plain_; }

 private:
  std::optional<beast::tcp_stream> plain_;
  std::optional<beast::ssl_stream<beast::tcp_stream>> secure_;
};

class HttpClientImpl final : public HttpClient {
 public:
  HttpClientImpl(asio::io_context& context, const Endpoint& endpoint, HttpTimeouts timeouts, std::optional<ssl::context> tls)
      : context_(context), endpoint_(endpoint), timeouts_(timeouts), tls_(std::move(tls)) {}

  asio::awaitable<HttpReply> exchange(const std::string& path, const std::string* body, BodySink sink) override {
    const Clock::time_point deadline = Clock::now() + to_duration(timeouts_.whole);
    for (bool again = false;; again = true) {
      Attempt attempt;
      attempt.deadline = deadline;
      std::unique_ptr<Connection> connection;
      const bool used_before = !again && !idle_.empty();
      if (used_before) {
        connection = std::move(idle_.back());
        idle_.pop_back();
      } else {
        connection = std::make_unique<Connection>(context_, tls_ ? &*tls_ : nullptr);
      }
      const Busy busy(*this, *connection);
      if (!used_before) co_await connect(*connection, attempt);
      if (cancelled_) attempt.reply.error = "cancelled";
      if (attempt.reply.error.empty()) {
        if (auto* secure = connection->secure()) {
          co_await talk(*secure, *connection, path, body, sink, attempt);
        } else {
          co_await talk(connection->plain(), *connection, path, body, sink, attempt);
        }
      }
      // A server may close a connection that was idle just when the request goes out.
      if (used_before && !attempt.heard && !attempt.reply.error.empty() && !cancelled_) {
        idle_.clear();
        continue;
      }
      if (attempt.reusable && !cancelled_) idle_.push_back(std::move(connection));
      co_return std::move(attempt.reply);
    }
  }

  void cancel() override {
    cancelled_ = true;
    for (Connection* connection : busy_) connection->tcp_layer().cancel();
  }

 private:
  struct Attempt {
    HttpReply reply;
    Clock::time_point deadline;
    bool heard = false;  ///< the head of a reply
    bool reusable = false;

    void fail(const char* doing, const error_code& error) {
      reply.error = cli::one_line(fmt::format("{}: {}", doing, error.message()));
    }
  };

  /// Connections that `cancel` has to interrupt.
  struct Busy {
    Busy(HttpClientImpl& owner, Connection& used) : client(owner), connection(&used) { client.busy_.push_back(connection); }
    ~Busy() { client.busy_.erase(std::find(client.busy_.begin(), client.busy_.end(), connection)); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    HttpClientImpl& client;
    Connection* connection;
  };

  void limit(Connection& connection, const Attempt& attempt) const {
    connection.tcp_layer().expires_at(std::min(attempt.deadline, Clock::now() + to_duration(timeouts_.silence)));
  }

  asio::awaitable<void> connect(Connection& connection, Attempt& attempt) {
    error_code error;
    if (addresses_.empty()) {
      const auto found = co_await tcp::resolver(context_).async_resolve(endpoint_.host, endpoint_.port, into(error));
      if (error) co_return attempt.fail("resolve", error);
      addresses_.assign(found.begin(), found.end());
    }
    limit(connection, attempt);
    co_await connection.tcp_layer().async_connect(addresses_, into(error));
    if (error) co_return attempt.fail("connect", error);
    connection.tcp_layer().socket().set_option(tcp::no_delay(true), error);
    auto* secure = connection.secure();
    if (secure == nullptr) co_return;
    error_code no_address;
    asio::ip::make_address(endpoint_.host, no_address);
    if (no_address) SSL_set_tlsext_host_name(secure->native_handle(), endpoint_.host.c_str());  // addresses are not sent
    if (!endpoint_.insecure) secure->set_verify_callback(ssl::host_name_verification(endpoint_.host));
    limit(connection, attempt);
    co_await secure->async_handshake(ssl::stream_base::client, into(error));
    if (error) attempt.fail("TLS", error);
  }

  http::request<http::string_body> message(const std::string& path, const std::string* body) const {
    http::request<http::string_body> out(body != nullptr ? http::verb::post : http::verb::get, path, 11);
    out.set(http::field::host, endpoint_.authority());
    out.set(http::field::user_agent, "deepinfer-bench");
    if (!endpoint_.api_key.empty()) out.set(http::field::authorization, "Bearer " + endpoint_.api_key);
    if (body != nullptr) {
      out.set(http::field::content_type, "application/json");
      out.set(http::field::accept, "text/event-stream");
      out.body() = *body;
    }
    out.prepare_payload();
    return out;
  }

  template <typename Stream>
  asio::awaitable<void> talk(Stream& stream, Connection& connection, const std::string& path, const std::string* body,
                             BodySink sink, Attempt& attempt) {
    error_code error;
    HttpReply& reply = attempt.reply;
    {
      const auto request = message(path, body);
      limit(connection, attempt);
      co_await http::async_write(stream, request, into(error));
      if (error) co_return attempt.fail("write", error);
    }
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    parser.header_limit(kMaxHeaderBytes);
    co_await http::async_read_header(stream, buffer, parser, into(error));
    if (error) co_return attempt.fail("read", error);
    attempt.heard = true;
    reply.status = static_cast<int>(parser.get().result_int());
    std::array<char, 16384> piece{};
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      // A read whose bytes are there already is not stopped by the stream's own time.
      if (Clock::now() >= attempt.deadline) {
        reply.error = "the answer did not end in time";
        co_return;
      }
      limit(connection, attempt);
      co_await http::async_read_some(stream, buffer, parser, into(error));
      if (error == http::error::need_buffer) error = {};
      // Some servers leave TLS without a goodbye; where the body ends with the connection, that is its end.
      const bool gone = error == ssl::error::stream_truncated;
      if (gone && parser.need_eof()) error = {};
      if (error) co_return attempt.fail("read", error);
      const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
      if (reply.status != 200) {
        reply.refusal += got.substr(0, kMaxRefusalBytes - std::min(reply.refusal.size(), kMaxRefusalBytes));
      } else if (!got.empty() && !sink(got)) {
        co_return;
      }
      if (gone) co_return;
    }
    attempt.reusable = parser.keep_alive();
  }

  asio::io_context& context_;
  const Endpoint endpoint_;
  const HttpTimeouts timeouts_;
  std::optional<ssl::context> tls_;
  std::vector<tcp::endpoint> addresses_;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::vector<Connection*> busy_;
  bool cancelled_ = false;
};

}  // namespace

std::string HttpReply::failure() const {
  if (!error.empty()) return error;
  if (status == 200) return {};
  return cli::one_line(fmt::format("HTTP {}: {}", status, std::string_view(refusal).substr(0, kShownRefusalBytes)));
}

Result<std::unique_ptr<HttpClient>> HttpClient::Create(asio::io_context& context, const Endpoint& endpoint,
                                                       HttpTimeouts timeouts) {
  std::optional<ssl::context> tls;
  if (endpoint.tls) {
    tls.emplace(ssl::context::tls_client);
    error_code error;
    if (endpoint.insecure) {
      tls->set_verify_mode(ssl::verify_none, error);
    } else {
      tls->set_verify_mode(ssl::verify_peer, error);
      if (endpoint.ca_file.empty()) {
        error_code ignored;  // without the system's authorities no server is believed, and the handshake says so
        tls->set_default_verify_paths(ignored);
      } else {
        tls->load_verify_file(endpoint.ca_file, error);
        if (error) return Err(Status::InvalidArgument("--cacert {}: {}", endpoint.ca_file, cli::one_line(error.message())));
      }
    }
  }
  return std::make_unique<HttpClientImpl>(context, endpoint, timeouts, std::move(tls));
}

Result<std::string> http_get(const Endpoint& endpoint, const std::string& path, double timeout) {
  asio::io_context context{1};
  DI_ASSIGN_OR_RETURN(const auto client, HttpClient::Create(context, endpoint, {.silence = timeout, .whole = timeout}));
  std::string document;
  const auto keep = [&](std::string_view piece) {
    document += piece;
    return document.size() <= kMaxDocumentBytes;
  };
  HttpReply reply;
  std::exception_ptr failure;
  const auto get = [&]() -> asio::awaitable<void> { reply = co_await client->exchange(path, nullptr, keep); };
  asio::co_spawn(context, get(), [&](std::exception_ptr thrown) { failure = std::move(thrown); });
  context.run();
  if (failure) std::rethrow_exception(failure);
  if (!reply.ok()) return Err(Status::FailedPrecondition("{}{}: {}", endpoint.url(), path, reply.failure()));
  if (document.size() > kMaxDocumentBytes)
    return Err(Status::OutOfRange("{}{}: more than {} bytes", endpoint.url(), path, kMaxDocumentBytes));
  return document;
}

}  // namespace deepinfer::bench
