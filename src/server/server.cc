#include "server/server.h"

#include <signal.h>
#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <mutex>

#include "server/session.h"

namespace deepinfer::server {
namespace {

using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr auto kDrainPoll = std::chrono::milliseconds(10);
constexpr auto kLastWords = std::chrono::seconds(2);  ///< for clients to read how a cancelled answer ended
constexpr int kInterruptedExit = 130;

/// As many descriptors as the system lets this process have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Result<tcp::acceptor> listen(asio::io_context& context, const char* flag, const std::string& host, int port) {
  error_code error;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) return Err(Status::InvalidArgument("--{}: \"{}\" is not an IP address", flag, host));
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(port));
  tcp::acceptor acceptor(context);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (error) return Err(Status::InvalidArgument("cannot listen on {}:{}: {}", host, port, error.message()));
  return acceptor;
}

Result<std::unique_ptr<asio::ssl::context>> make_tls(const ServerOptions& options) {
  if (options.ssl_certfile.empty()) return nullptr;
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1 |
                           asio::ssl::context::no_compression,
                       error);
  ::SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION);
  context->use_certificate_chain_file(options.ssl_certfile, error);
  if (error) return Err(Status::InvalidArgument("--ssl-certfile: {}: {}", options.ssl_certfile, error.message()));
  context->use_private_key_file(options.ssl_keyfile, asio::ssl::context::pem, error);
  if (error) return Err(Status::InvalidArgument("--ssl-keyfile: {}: {}", options.ssl_keyfile, error.message()));
  return context;
}

class ServerImpl final : public Server {
 public:
  ServerImpl(ServerOptions options, Backend backend, std::shared_ptr<EventLog> log)
      : engine_(backend.engine),
        workers_(static_cast<size_t>(options.threads)),
        application_(std::move(options), std::move(backend), std::move(log)) {
    for (int i = 0; i < application_.options().threads; ++i) threads_.push_back(std::make_shared<IoThread>());
    metrics_ = &application_.metrics();
    application_.on_drain([this] { drain(); });
  }

  ~ServerImpl() override {
    closing_ = true;
    for (const auto& io : threads_) {
      io->post([this, io] {
        close_acceptors(*io);
        close_sessions(*io, true);
      });
    }
    wait_for_connections();
    workers_.join();
    wait_for_connections();  // those that a worker held
    for (const auto& io : threads_) io->end();
  }

  Status start() {
    const ServerOptions& options = application_.options();
    raise_descriptor_limit();
    DI_ASSIGN_OR_RETURN(tls_, make_tls(options));
    asio::io_context& first = threads_.front()->context;
    DI_ASSIGN_OR_RETURN(tcp::acceptor acceptor, listen(first, "host", options.host, options.port));
    port_ = acceptor.local_endpoint().port();
    acceptors_.push_back(std::make_unique<tcp::acceptor>(std::move(acceptor)));
    if (options.admin_port >= 0) {
      DI_ASSIGN_OR_RETURN(tcp::acceptor admin, listen(first, "admin-host", options.admin_host, options.admin_port));
      admin_port_ = admin.local_endpoint().port();
      acceptors_.push_back(std::make_unique<tcp::acceptor>(std::move(admin)));
    }
    for (size_t i = 0; i < acceptors_.size(); ++i) {
      const auto listener = i == 0 ? Application::Listener::kPublic : Application::Listener::kAdmin;
      asio::co_spawn(first, accept(*acceptors_[i], listener), asio::detached);
    }
    for (const auto& io : threads_) io->start();
    return Status::Ok();
  }

  int port() const override { return port_; }
  int admin_port() const override { return admin_port_; }
  std::string url() const override {
    const ServerOptions& o = application_.options();
    const bool v6 = o.host.find(':') != std::string::npos;
    return fmt::format("{}://{}{}{}:{}", tls_ ? "https" : "http", v6 ? "[" : "", o.host, v6 ? "]" : "", port_);
  }
  Application& application() override { return application_; }

  void drain() override {
    {
      const std::lock_guard lock(mutex_);
      if (application_.draining()) return;
      application_.start_draining();
    }
    application_.log().write(EventLog::Level::kInfo, "draining", {{"generations", application_.metrics().generations.load()}});
    for (const auto& io : threads_) io->post([this, io] { close_sessions(*io, false); });
    changed_.notify_all();
  }

  void handle_signals() override {
    signals_ = std::make_unique<asio::signal_set>(threads_.front()->context, SIGINT, SIGTERM);
    wait_for_signal(1);
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return application_.draining(); });
    const Metrics& metrics = application_.metrics();
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(application_.options().drain_timeout));
    while (metrics.generations > 0 && Clock::now() < until) changed_.wait_for(lock, kDrainPoll);
    if (metrics.generations > 0) {
      application_.log().write(EventLog::Level::kWarning, "drain timeout", {{"generations", metrics.generations.load()}});
      engine_->shutdown(Engine::Shutdown::kCancel);
      const auto last = Clock::now() + kLastWords;
      while (metrics.generations > 0 && Clock::now() < last) changed_.wait_for(lock, kDrainPoll);
    }
    // The last replies are on their way; their connections end by themselves.
    const auto last = Clock::now() + kLastWords;
    while (metrics.connections > 0 && Clock::now() < last) {
      for (const auto& io : threads_) io->post([this, io] { close_sessions(*io, false); });
      changed_.wait_for(lock, kDrainPoll);
    }
    application_.log().write(EventLog::Level::kInfo, "drained", {});
  }

 private:
  void wait_for_connections() const {
    const auto last = Clock::now() + kLastWords;
    while (metrics_->connections > 0 && Clock::now() < last) std::this_thread::sleep_for(kDrainPoll);
  }

  void wait_for_signal(int number) {
    signals_->async_wait([this, number](const error_code& error, int which) {
      if (error) return;
      if (number > 1) std::_Exit(kInterruptedExit);
      application_.log().write(EventLog::Level::kInfo, "signal", {{"number", which}});
      wait_for_signal(number + 1);
      drain();
    });
  }

  void close_acceptors(IoThread& io) {
    if (&io != threads_.front().get()) return;
    error_code error;
    for (const auto& acceptor : acceptors_) acceptor->close(error);
    if (signals_) signals_->cancel(error);
  }

  /// On the thread of `io`.
  static void close_sessions(IoThread& io, bool all) {
    const std::set<Session*> sessions = io.sessions;  // closing may end some
    for (Session* session : sessions) {
      if (io.sessions.contains(session) && (all || session->idle())) session->close();
    }
  }

  asio::awaitable<void> accept(tcp::acceptor& acceptor, Application::Listener listener) {
    asio::steady_timer pause(threads_.front()->context);
    Metrics& metrics = application_.metrics();
    for (size_t next = 0; !closing_; ++next) {
      const std::shared_ptr<IoThread>& io = threads_[next % threads_.size()];
      error_code error;
      tcp::socket socket = co_await acceptor.async_accept(io->context, redirect_error(use_awaitable, error));
      if (closing_ || error == asio::error::operation_aborted || error == asio::error::bad_descriptor) break;
      if (error) {
        // Out of descriptors, most likely: connections that end make room.
        application_.log().write(EventLog::Level::kError, "accept failed", {{"error", error.message()}});
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(redirect_error(use_awaitable, error));
        continue;
      }
      if (metrics.connections >= application_.options().max_connections) {
        refuse(std::move(socket));
        continue;
      }
      socket.set_option(tcp::no_delay(true), error);
      start_session(io, std::move(socket), listener);
    }
  }

  void start_session(const std::shared_ptr<IoThread>& io, tcp::socket socket, Application::Listener listener) {
    const bool tls = tls_ != nullptr && listener == Application::Listener::kPublic;
    auto transport = tls ? make_tls_transport(std::move(socket), *tls_) : make_plain_transport(std::move(socket));
    const SessionContext context{&application_, listener, &workers_, &buffered_};
    io->post([this, io, context, transport = std::move(transport)]() mutable {
      if (closing_) return;
      const auto session = std::make_shared<Session>(context, io, std::move(transport));
      asio::co_spawn(
          io->context, [session] { return session->run(); }, asio::detached);
    });
  }

  void refuse(tcp::socket socket) {
    ++application_.metrics().connections_refused;
    constexpr std::string_view kText =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    error_code error;
    socket.non_blocking(true, error);
    if (tls_ == nullptr) socket.send(asio::buffer(kText), 0, error);
    socket.close(error);
  }

  Engine* const engine_;
  std::vector<std::shared_ptr<IoThread>> threads_;
  asio::thread_pool workers_;
  std::atomic<int64_t> buffered_{0};
  std::atomic<bool> closing_{false};
  Application application_;
  Metrics* metrics_ = nullptr;
  std::unique_ptr<asio::ssl::context> tls_;
  std::vector<std::unique_ptr<tcp::acceptor>> acceptors_;
  std::unique_ptr<asio::signal_set> signals_;
  int port_ = 0, admin_port_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Create(ServerOptions options, Backend backend, std::shared_ptr<EventLog> log) {
  DI_RETURN_IF_ERROR(options.validate());
  auto server = std::make_unique<ServerImpl>(std::move(options), std::move(backend), std::move(log));
  DI_RETURN_IF_ERROR(server->start());
  return server;
}

}  // namespace deepinfer::server
