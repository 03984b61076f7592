#include "server/session.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <ctime>

namespace deepinfer::server {
namespace {

namespace http = boost::beast::http;
using asio::redirect_error;
using asio::use_awaitable;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kDiscardBytes = 8 << 10;  ///< what is read to be thrown away
constexpr size_t kLargeBody = 32 << 10;    ///< from here on a worker parses, so that the loop goes on
constexpr int kClientLeft = 499;           ///< in the log; nobody reads it
constexpr double kLingerSeconds = 2;
constexpr int64_t kLingerBytes = int64_t{256} << 20;
constexpr auto kPeerCheck = std::chrono::milliseconds(250);

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Whether an x-request-id can be taken over into headers and logs.
bool usable_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  for (const char c : id) {
    const bool fine = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
                      c == '.' || c == ':';
    if (!fine) return false;
  }
  return true;
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[64];
  std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text;
}

/// The peer will send nothing more, although bytes from before may be unread.
bool peer_finished(int fd) {
  pollfd p{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

/// Between a generation, whose news comes from engine threads, and the connection that waits for it.
struct Session::Signal {
  explicit Signal(std::shared_ptr<IoThread> thread) : io(std::move(thread)), timer(io->context), peer_timer(io->context) {}
  const std::shared_ptr<IoThread> io;
  asio::steady_timer timer, peer_timer;
  std::atomic<bool> posted{false};
  bool news = false;   ///< from here on of the connection's thread alone
  bool left = false;   ///< the client has gone
  bool active = true;  ///< somebody still waits

  /// From any thread.
  static void notify(const std::shared_ptr<Signal>& signal) {
    if (signal->posted.exchange(true)) return;
    signal->io->post([signal] {
      signal->posted = false;
      signal->wake();
    });
  }
  void wake() {
    news = true;
    timer.cancel();
  }
};

Session::Session(SessionContext context, std::shared_ptr<IoThread> io, std::unique_ptr<Transport> transport)
    : context_(context),
      app_(*context.application),
      options_(app_.options()),
      io_(std::move(io)),
      transport_(std::move(transport)),
      deadline_(io_->context) {
  io_->sessions.insert(this);
  ++app_.metrics().connections;
  ++app_.metrics().connections_total;
  error_code error;
  const auto peer = transport_->socket().remote_endpoint(error);
  if (!error) remote_ = fmt::format("{}:{}", peer.address().to_string(), peer.port());
}

Session::~Session() {
  io_->sessions.erase(this);
  --app_.metrics().connections;
  *context_.buffered -= budget_;
}

void Session::close() {
  closed_ = true;
  error_code error;
  transport_->socket().close(error);
  deadline_.cancel();
  if (signal_ != nullptr) signal_->wake();
}

void Session::set_deadline(double seconds) {
  timed_out_ = false;
  deadline_.expires_after(to_duration(seconds));
  deadline_.async_wait([weak = weak_from_this(), number = ++deadline_number_](const error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || self->deadline_number_ != number) return;
    self->timed_out_ = true;
    error_code ignored;
    self->transport_->socket().cancel(ignored);
  });
}

void Session::clear_deadline() {
  ++deadline_number_;
  deadline_.cancel();
}

asio::awaitable<void> Session::run() {
  const auto self = shared_from_this();
  error_code error;
  set_deadline(options_.header_timeout);
  co_await transport_->handshake(error);
  clear_deadline();
  bool more = !error;
  while (more && !closed_) more = co_await serve_one();
  if (!error && !closed_) co_await linger();
  transport_->socket().close(error);
}

/// False: the connection is over.
asio::awaitable<bool> Session::serve_one() {
  head_ = {};
  match_ = {};
  sent_ = 0;
  *context_.buffered -= std::exchange(budget_, 0);
  idle_ = buffer_.empty();
  size_t length = 0;
  const Read got = co_await read_head(length);
  idle_ = false;
  started_ = Clock::now();
  if (got == Read::kClosed) co_return false;
  if (got == Read::kTimeout && buffer_.empty()) co_return false;  // nobody asked anything
  if (got == Read::kNotHttp) {
    head_.status = 400;
    head_.fault = "this is not HTTP";
  } else if (got == Read::kOk) {
    head_ = parse_head(std::string_view(buffer_).substr(0, length), {.max_headers = options_.max_headers});
  } else {
    head_.status = got == Read::kTimeout ? 408 : 431;
    head_.fault = got == Read::kTimeout ? fmt::format("the head took longer than {} s", options_.header_timeout)
                                        : fmt::format("the head has more than {} bytes", options_.max_header_bytes);
  }
  HttpRequest& request = head_.request;
  request.remote = remote_;
  const std::string_view given = request.header("x-request-id");
  request.id = usable_id(given) ? std::string(given) : random_hex(16);
  if (head_.status != 0) {
    co_await send(app_.error_reply(match_, request.path, ApiError::Http(head_.status, head_.fault)), false);
    co_return false;
  }
  auto refusal = app_.refuse_early(context_.listener, request, match_);
  const bool has_body = head_.framing.chunked || head_.framing.length > 0;
  if (!refusal.has_value()) {
    if (has_body) {
      refusal = co_await read_body(head_, request, match_);
      if (closed_) co_return false;
    } else {
      buffer_.erase(0, length);
    }
  } else if (!has_body) {
    // Refused, but the connection is in step: it can go on.
    buffer_.erase(0, length);
    co_return co_await send(*std::move(refusal), head_.keep_alive && !app_.draining());
  }
  if (refusal.has_value()) {
    co_await send(*std::move(refusal), false);
    co_return false;
  }
  Outcome outcome = co_await answer(request, match_);
  request.body = std::string();
  *context_.buffered -= std::exchange(budget_, 0);
  const bool keep_alive = head_.keep_alive && !app_.draining();
  if (auto* reply = std::get_if<Reply>(&outcome)) co_return co_await send(std::move(*reply), keep_alive);
  co_return co_await send_generation(std::get<std::unique_ptr<Generation>>(std::move(outcome)), keep_alive);
}

asio::awaitable<Session::Read> Session::read_head(size_t& length) {
  size_t searched = 0;
  bool begun = !buffer_.empty();
  set_deadline(begun ? options_.header_timeout : options_.idle_timeout);
  const auto limit = static_cast<size_t>(options_.max_header_bytes);
  std::string piece(4096, '\0');
  while (true) {
    // One empty line before a request is tolerated, as RFC 9112 2.2 asks.
    if (searched == 0 && buffer_.starts_with("\r\n")) buffer_.erase(0, 2);
    // A client of TLS would wait for its answer as long as we for the end of a head.
    if (!buffer_.empty() && !may_begin_request(buffer_.front())) {
      clear_deadline();
      co_return Read::kNotHttp;
    }
    const size_t from = searched > 3 ? searched - 3 : 0;
    const size_t end = buffer_.find("\r\n\r\n", from);
    // Lines that end in LF alone never complete a head: what the parser is shown then is refused.
    const size_t bare = buffer_.find("\n\n", from);
    searched = buffer_.size();
    if (const size_t stop = std::min(end == std::string::npos ? end : end + 4, bare == std::string::npos ? bare : bare + 2);
        stop != std::string::npos) {
      length = stop;
      clear_deadline();
      co_return stop > limit ? Read::kTooLarge : Read::kOk;
    }
    if (buffer_.size() > limit) {
      clear_deadline();
      co_return Read::kTooLarge;
    }
    error_code error;
    const size_t count = co_await transport_->read(asio::buffer(piece), error);
    if (error) {
      clear_deadline();
      co_return timed_out_ && !closed_ ? Read::kTimeout : Read::kClosed;
    }
    buffer_.append(piece, 0, count);
    if (!begun) {
      begun = true;
      idle_ = false;
      set_deadline(options_.header_timeout);
    }
  }
}

/// A reply if the body is refused; the connection is then out of step.
asio::awaitable<std::optional<Reply>> Session::read_body(const RequestHead& head, HttpRequest& request, const Match& match) {
  const auto refuse = [&](int status, std::string why) -> std::optional<Reply> {
    return app_.error_reply(match, request.path, ApiError::Http(status, std::move(why)));
  };
  const int64_t limit = options_.max_body_bytes;
  if (head.framing.length > limit)
    co_return refuse(413, fmt::format("the body has {} bytes, at most {} are taken", head.framing.length, limit));
  const auto claim = [&](int64_t bytes) {
    if (bytes <= budget_) return true;
    const int64_t more = bytes - budget_;
    budget_ = bytes;
    return (*context_.buffered += more) <= options_.max_buffered_bytes;
  };
  if (!claim(head.framing.length)) co_return refuse(503, "too many large requests at once");
  if (head.expect_continue) {
    if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n", "")) {
      close();
      co_return std::nullopt;
    }
  }
  http::request_parser<http::string_body> parser;
  parser.eager(true);
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes + kReadBytes));  // the head has been checked
  parser.body_limit(static_cast<uint64_t>(limit));
  set_deadline(options_.body_timeout);
  std::string piece(kReadBytes, '\0');
  while (true) {
    error_code error;
    const size_t used = parser.put(asio::buffer(buffer_), error);
    buffer_.erase(0, used);
    if (error == http::error::need_more) error = {};
    if (error == http::error::body_limit) co_return refuse(413, fmt::format("the body has more than {} bytes", limit));
    if (error) co_return refuse(400, fmt::format("the body is not framed as its head says: {}", error.message()));
    if (parser.is_done()) break;
    if (buffer_.size() > static_cast<size_t>(options_.max_header_bytes)) co_return refuse(400, "a chunk's head is too long");
    if (!claim(static_cast<int64_t>(parser.get().body().size()))) co_return refuse(503, "too many large requests at once");
    const size_t count = co_await transport_->read(asio::buffer(piece), error);
    if (error && timed_out_ && !closed_)
      co_return refuse(408, fmt::format("the body took longer than {} s", options_.body_timeout));
    if (error) {
      close();  // it left in the middle
      co_return std::nullopt;
    }
    buffer_.append(piece, 0, count);
  }
  clear_deadline();
  request.body = std::move(parser.get().body());
  co_return std::nullopt;
}

asio::awaitable<Outcome> Session::answer(const HttpRequest& request, const Match& match) {
  if (request.body.size() < kLargeBody) co_return app_.handle(request, match);
  std::optional<Outcome> outcome;
  const auto work = [&]() -> asio::awaitable<void> {
    outcome = app_.handle(request, match);
    co_return;
  };
  co_await asio::co_spawn(*context_.workers, work, use_awaitable);
  co_return *std::move(outcome);
}

std::string Session::reply_head(const Reply& reply, bool keep_alive, bool chunked) const {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, reason_phrase(reply.status));
  const auto add = [&head](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  add("Date", http_date());
  if (!reply.content_type.empty()) add("Content-Type", reply.content_type);
  std::vector<Header> headers;
  app_.decorate(head_.request, match_, headers);
  for (const Header& h : reply.headers) add(h.first, h.second);
  for (const Header& h : headers) add(h.first, h.second);
  if (chunked) {
    add("Transfer-Encoding", "chunked");
  } else if (reply.status != 204 && reply.status != 304 && reply.content_type != "text/event-stream") {
    add("Content-Length", std::to_string(reply.body.size()));
  }
  if (!keep_alive) {
    add("Connection", "close");
  } else if (head_.version == 10) {
    add("Connection", "keep-alive");
  }
  head += "\r\n";
  return head;
}

asio::awaitable<bool> Session::write(std::string_view first, std::string_view second) {
  error_code error;
  set_deadline(options_.write_timeout);
  co_await transport_->write(first, second, error);
  clear_deadline();
  if (!error) sent_ += static_cast<int64_t>(first.size() + second.size());
  co_return !error;
}

void Session::trace_write(int64_t begin, RequestId request, size_t bytes) {
  app_.trace()->record({.name = "write",
                        .category = telemetry::Category::kNetwork,
                        .request = request,
                        .begin = begin,
                        .end = telemetry::now_ns(),
                        .args = {{{"bytes", static_cast<int64_t>(bytes)}}}});
}

asio::awaitable<bool> Session::send(Reply reply, bool keep_alive) {
  keep_alive = keep_alive && !reply.close;
  const std::string head = reply_head(reply, keep_alive, false);
  const bool with_body = head_.request.method != "HEAD";
  const bool written = co_await write(head, with_body ? std::string_view(reply.body) : std::string_view());
  record(written ? reply.status : kClientLeft, nullptr, head_.fault);
  co_return written&& keep_alive;
}

void Session::record(int status, const GenerationSummary* summary, std::string_view note) {
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  app_.record(head_.request, match_, status, sent_, seconds, summary, note);
}

void Session::watch_peer(std::shared_ptr<Signal> signal) {
  auto& socket = transport_->socket();
  socket.async_wait(asio::ip::tcp::socket::wait_read, [self = shared_from_this(), signal](const error_code& error) {
    if (error || !signal->active) return;
    char byte = 0;
    const int fd = self->transport_->socket().native_handle();
    const ssize_t count = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    const bool nothing = count < 0 && (errno == EAGAIN || errno == EINTR);
    if (count == 0 || (count < 0 && !nothing) || peer_finished(fd)) {
      signal->left = true;
      signal->wake();
      return;
    }
    // The next request is there already; whether the peer waits for its answer shows now and then.
    signal->peer_timer.expires_after(kPeerCheck);
    signal->peer_timer.async_wait([self, signal](const error_code& cancelled) {
      if (!cancelled && signal->active) self->watch_peer(signal);
    });
  });
}

/// False: there has been none for as long as a stream may be silent.
asio::awaitable<bool> Session::wait_for_news(Signal& signal) {
  if (signal.news) co_return true;
  error_code cancelled;
  signal.timer.expires_after(to_duration(options_.ping_interval));
  co_await signal.timer.async_wait(redirect_error(use_awaitable, cancelled));
  co_return cancelled || signal.news;
}

asio::awaitable<bool> Session::send_generation(std::unique_ptr<Generation> generation, bool keep_alive) {
  const auto signal = std::make_shared<Signal>(io_);
  signal_ = signal;
  generation->set_callback([signal] { Signal::notify(signal); });
  watch_peer(signal);
  const bool streaming = generation->streaming();
  const bool chunked = head_.version == 11;
  Reply stream_reply;
  stream_reply.content_type = "text/event-stream";
  stream_reply.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  keep_alive = keep_alive && (!streaming || chunked);
  bool begun = false;
  bool alive = true;
  bool silent = false;
  std::string frame;
  while (alive && !signal->left && !closed_) {
    signal->news = false;
    std::string bytes = generation->advance();
    const bool done = generation->done();
    if (!begun && done && (!streaming || generation->failed())) break;  // goes out in one piece
    if (bytes.empty() && !done && silent && streaming && generation->prepared()) bytes = generation->keep_alive();
    if (streaming && (!bytes.empty() || done)) {
      frame.clear();
      if (!begun) {
        for (Header& header : generation->headers()) stream_reply.headers.push_back(std::move(header));
        frame = reply_head(stream_reply, keep_alive, chunked);
      }
      begun = true;
      if (!bytes.empty()) {
        if (chunked) {
          frame += fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
        } else {
          frame += bytes;
        }
      }
      if (done && chunked) frame += "0\r\n\r\n";
      const int64_t begin = app_.trace() != nullptr ? telemetry::now_ns() : 0;
      alive = co_await write(frame, "");
      if (app_.trace() != nullptr) trace_write(begin, generation->request(), frame.size());
    }
    if (done) break;
    if (alive && !signal->left && !closed_) silent = !co_await wait_for_news(*signal);
  }
  signal->active = false;
  signal->peer_timer.cancel();
  signal_ = nullptr;
  error_code ignored;
  transport_->socket().cancel(ignored);
  const GenerationSummary summary = generation->summary();
  const bool complete = generation->done();
  std::optional<Reply> whole;
  if (complete && !begun) whole = generation->reply();
  const bool failed = complete && generation->failed();
  const RequestId request = generation->request();
  generation.reset();
  if (whole.has_value()) {
    const std::string text = reply_head(*whole, keep_alive, false);
    const int64_t begin = app_.trace() != nullptr ? telemetry::now_ns() : 0;
    alive = co_await write(text, whole->body);
    if (app_.trace() != nullptr) trace_write(begin, request, text.size() + whole->body.size());
  }
  const bool left = !complete || !alive;
  if (left) ++app_.metrics().disconnects;
  record(left                ? kClientLeft
         : whole.has_value() ? whole->status
                             : 200,
         &summary,
         left     ? "the client left"
         : failed ? "ended with an error"
                  : "");
  co_return alive&& complete&& keep_alive;
}

/// A reply that was sent while the peer was still sending would be lost with a reset: it gets time to be read.
asio::awaitable<void> Session::linger() {
  error_code error;
  set_deadline(kLingerSeconds);
  co_await transport_->finish(error);
  std::string piece(kDiscardBytes, '\0');
  int64_t total = 0;
  error = {};
  while (!error && !closed_ && !timed_out_ && total < kLingerBytes) {
    const size_t count = co_await transport_->socket().async_read_some(asio::buffer(piece), redirect_error(use_awaitable, error));
    total += static_cast<int64_t>(count);
  }
  clear_deadline();
}

}  // namespace deepinfer::server
