#pragma once

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <string>

#include "server/application.h"
#include "server/http_head.h"
#include "server/io_thread.h"
#include "server/transport.h"

namespace deepinfer::server {

/// What connections share.
struct SessionContext {
  Application* application = nullptr;
  Application::Listener listener = Application::Listener::kPublic;
  asio::thread_pool* workers = nullptr;      ///< for what takes long
  std::atomic<int64_t>* buffered = nullptr;  ///< bytes of bodies in memory, all connections together
};

/// One connection: reads a request, has it answered, writes the answer, and again. Lives on its thread alone.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionContext context, std::shared_ptr<IoThread> io, std::unique_ptr<Transport> transport);
  ~Session();

  asio::awaitable<void> run();
  /// Between requests: it can be closed without loss.
  bool idle() const { return idle_; }
  /// Ends it at once.
  void close();

 private:
  struct Signal;

  enum class Read : uint8_t { kOk, kClosed, kTimeout, kTooLarge, kNotHttp };
  asio::awaitable<bool> serve_one();
  asio::awaitable<Read> read_head(size_t& length);
  asio::awaitable<std::optional<Reply>> read_body(const RequestHead& head, HttpRequest& request, const Match& match);
  asio::awaitable<Outcome> answer(const HttpRequest& request, const Match& match);
  asio::awaitable<bool> send(Reply reply, bool keep_alive);
  asio::awaitable<bool> send_generation(std::unique_ptr<Generation> generation, bool keep_alive);
  asio::awaitable<bool> wait_for_news(Signal& signal);
  asio::awaitable<bool> write(std::string_view first, std::string_view second);
  void trace_write(int64_t begin, RequestId request, size_t bytes);
  asio::awaitable<void> linger();
  std::string reply_head(const Reply& reply, bool keep_alive, bool chunked) const;
  void watch_peer(std::shared_ptr<Signal> signal);
  void record(int status, const GenerationSummary* summary, std::string_view note);

  /// From now on, operations that take longer than this are cancelled, and `timed_out_` is set.
  void set_deadline(double seconds);
  void clear_deadline();

  const SessionContext context_;
  Application& app_;
  const ServerOptions& options_;
  const std::shared_ptr<IoThread> io_;
  const std::unique_ptr<Transport> transport_;
  asio::steady_timer deadline_;
  int64_t deadline_number_ = 0;
  bool timed_out_ = false;
  bool closed_ = false;
  bool idle_ = true;
  std::string buffer_;  ///< received, not yet used
  std::string remote_;
  std::shared_ptr<Signal> signal_;  ///< of the generation under way

  // Of the request under way.
  RequestHead head_;
  Match match_;
  std::chrono::steady_clock::time_point started_;
  int64_t sent_ = 0;
  int64_t budget_ = 0;  ///< its share of `buffered`
};

}  // namespace deepinfer::server
