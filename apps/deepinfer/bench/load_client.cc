#include "load_client.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "sse_reader.h"

namespace deepinfer::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr size_t kMaxErrorBytes = 4096;
constexpr uint32_t kMaxHeaderBytes = 64 * 1024;
constexpr auto kTick = std::chrono::milliseconds(10);

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(std::min(seconds, 1e8)));
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t integer(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? std::max<int64_t>(0, found->get<int64_t>()) : 0;
}

/// What one event of a stream says.
struct Chunk {
  bool text = false;  ///< some of the answer, the reasoning or a call
  bool bad = false;
  std::string error;
};

Chunk read_chunk(std::string_view data, LoadRecord& record) {
  Chunk chunk;
  const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    chunk.bad = true;
    return chunk;
  }
  if (const auto error = json.find("error"); error != json.end() && !error->is_null()) {
    chunk.error = error->is_object() && error->contains("message") && (*error)["message"].is_string()
                      ? (*error)["message"].get<std::string>()
                      : error->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  const auto filled = [](const Json& object, const char* key) {
    const auto found = object.find(key);
    if (found == object.end()) return false;
    return (found->is_string() && !found->get_ref<const std::string&>().empty()) || (found->is_array() && !found->empty());
  };
  if (const auto choices = json.find("choices"); choices != json.end() && choices->is_array()) {
    for (const Json& choice : *choices) {
      if (!choice.is_object()) continue;
      chunk.text = chunk.text || filled(choice, "text");
      const auto delta = choice.find("delta");
      if (delta == choice.end() || !delta->is_object()) continue;
      for (const char* key : {"content", "reasoning_content", "reasoning", "tool_calls"})
        chunk.text = chunk.text || filled(*delta, key);
    }
  }
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    record.counted_by_server = true;
    record.output_tokens = integer(*usage, "completion_tokens");
    if (const int64_t prompt = integer(*usage, "prompt_tokens"); prompt > 0) record.input_tokens = prompt;
    if (const auto details = usage->find("prompt_tokens_details"); details != usage->end() && details->is_object())
      record.cached_tokens = integer(*details, "cached_tokens");
  }
  return chunk;
}

class Load {
 public:
  Load(const Endpoint& endpoint, const std::vector<LoadRequest>& requests, const LoadOptions& options)
      : endpoint_(endpoint), requests_(requests), options_(options), room_(context_), ticker_(context_) {}

  LoadRun run() {
    run_.records.resize(requests_.size());
    const double cpu = cpu_seconds();
    start_ = Clock::now();
    asio::co_spawn(context_, dispatch(), asio::detached);
    asio::co_spawn(context_, tick(), asio::detached);
    context_.run();
    run_.cpu_seconds = cpu_seconds() - cpu;
    run_.records.resize(static_cast<size_t>(next_));
    for (const LoadRecord& record : run_.records) {
      if (record.finished > run_.seconds) run_.seconds = record.finished;
    }
    return std::move(run_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  asio::awaitable<void> dispatch() {
    asio::steady_timer timer(context_);
    for (const LoadRequest& request : requests_) {
      error_code ignored;
      timer.expires_at(start_ + nanoseconds(request.at));
      // Bursts go out together: a timer for each would let answers in between.
      if (timer.expiry() > Clock::now()) co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      while (!run_.stopped && options_.max_concurrency > 0 && in_flight_ >= options_.max_concurrency) {
        room_.expires_at(Clock::time_point::max());
        co_await room_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
      if (run_.stopped) break;
      ++in_flight_;
      run_.peak_in_flight = std::max(run_.peak_in_flight, in_flight_);
      asio::co_spawn(context_, answer(request, run_.records[static_cast<size_t>(next_++)]), asio::detached);
    }
    all_sent_ = true;
    if (in_flight_ == 0) ticker_.cancel();
  }

  /// Measures how late the loop is, shows progress, and ends a run that is stopped.
  asio::awaitable<void> tick() {
    for (int64_t count = 0; !over(); ++count) {
      error_code ignored;
      ticker_.expires_after(kTick);
      co_await ticker_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      if (over()) break;
      run_.lag.push_back(std::max(0.0, std::chrono::duration<double>(Clock::now() - ticker_.expiry()).count()));
      if (count % 10 != 0) continue;
      if (options_.progress) options_.progress({done_, static_cast<int64_t>(requests_.size()), in_flight_, failed_});
      if (options_.stop && options_.stop()) {
        run_.stopped = true;
        room_.cancel();
        for (beast::tcp_stream* stream : open_) stream->cancel();
      }
    }
  }
  bool over() const { return (all_sent_ || run_.stopped) && in_flight_ == 0; }

  asio::awaitable<void> answer(const LoadRequest& request, LoadRecord& record) {
    record.planned = request.at;
    record.input_tokens = request.input_tokens;
    record.sent = now();
    try {
      bool heard = false;
      const bool reused = !idle_.empty();
      co_await exchange(request, record, heard);
      // A server may close a connection that was idle just when the request goes out.
      if (!record.ok() && reused && !heard && !run_.stopped) {
        idle_.clear();
        record.error.clear();
        co_await exchange(request, record, heard);
      }
    } catch (const std::exception& error) {
      record.error = error.what();
    }
    record.finished = now();
    if (record.ok() && record.output_tokens == 0) record.error = "an answer without a token";
    ++done_;
    failed_ += record.ok() ? 0 : 1;
    --in_flight_;
    room_.cancel();
    if (over()) ticker_.cancel();
  }

  asio::awaitable<void> exchange(const LoadRequest& request, LoadRecord& record, bool& heard) {
    error_code error;
    auto token = asio::redirect_error(asio::use_awaitable, error);
    const auto failed = [&](const char* what) { record.error = fmt::format("{}: {}", what, error.message()); };
    const Clock::time_point deadline = start_ + nanoseconds(record.sent + options_.request_timeout);
    std::unique_ptr<beast::tcp_stream> stream = std::make_unique<beast::tcp_stream>(context_);
    const bool reused = !idle_.empty();
    if (reused) {
      stream = std::move(idle_.back());
      idle_.pop_back();
    }
    const Opened opened(*this, stream.get());
    const auto limit = [&] { stream->expires_at(std::min(deadline, Clock::now() + nanoseconds(options_.timeout))); };
    if (!reused) {
      if (addresses_.empty()) {
        tcp::resolver resolver(context_);
        const auto found = co_await resolver.async_resolve(endpoint_.host, endpoint_.port, token);
        if (error) co_return failed("resolve");
        addresses_.assign(found.begin(), found.end());
      }
      limit();
      co_await stream->async_connect(addresses_, token);
      if (error) co_return failed("connect");
      stream->socket().set_option(tcp::no_delay(true), error);
    }

    http::request<http::string_body> message(http::verb::post, endpoint_.path, 11);
    message.set(http::field::host, endpoint_.host + ":" + endpoint_.port);
    message.set(http::field::content_type, "application/json");
    message.set(http::field::accept, "text/event-stream");
    if (!endpoint_.api_key.empty()) message.set(http::field::authorization, "Bearer " + endpoint_.api_key);
    message.body() = request.body;
    message.prepare_payload();
    limit();
    co_await http::async_write(*stream, message, token);
    if (error) co_return failed("write");

    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    parser.header_limit(kMaxHeaderBytes);
    co_await http::async_read_header(*stream, buffer, parser, token);
    if (error) co_return failed("read");
    heard = true;
    const bool fine = parser.get().result_int() == 200;
    std::string refusal;
    std::array<char, 16384> piece{};
    SseReader events;
    int64_t chunks = 0;
    bool ended = false;
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      // A read whose bytes are there already is not stopped by the stream's own time.
      if (Clock::now() >= deadline) {
        record.error = "the answer did not end in time";
        co_return;
      }
      limit();
      co_await http::async_read_some(*stream, buffer, parser, token);
      if (error == http::error::need_buffer) error = {};
      if (error) co_return failed("read");
      const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
      if (!fine) {
        refusal += got.substr(0, kMaxErrorBytes - std::min(refusal.size(), kMaxErrorBytes));
        continue;
      }
      const double time = now();
      const bool small = events.push(got, [&](std::string_view data) {
        if (data == "[DONE]") {
          ended = true;
          return;
        }
        Chunk chunk = read_chunk(data, record);
        if (chunk.bad) record.error = "an event that is not JSON";
        if (!chunk.error.empty()) record.error = std::move(chunk.error);
        if (!chunk.text) return;
        if (chunks++ == 0) {
          record.first_token = time;
        } else {
          record.gaps.push_back(static_cast<float>(time - record.last_token));
        }
        record.last_token = time;
      });
      if (!small) record.error = "an event of more than 16 MiB";
      if (!record.ok()) co_return;
    }
    if (!fine) {
      record.error = fmt::format("HTTP {}: {}", parser.get().result_int(), refusal.substr(0, 300));
    } else if (!ended) {
      record.error = "the stream ended without [DONE]";
    }
    if (!record.counted_by_server) record.output_tokens = chunks;
    if (parser.keep_alive() && record.ok()) idle_.push_back(std::move(stream));
  }

  /// Streams that a stopped run has to interrupt.
  struct Opened {
    Opened(Load& owner, beast::tcp_stream* opened) : load(owner), stream(opened) { load.open_.push_back(stream); }
    ~Opened() { load.open_.erase(std::find(load.open_.begin(), load.open_.end(), stream)); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    Load& load;
    beast::tcp_stream* stream;
  };

  const Endpoint& endpoint_;
  const std::vector<LoadRequest>& requests_;
  const LoadOptions& options_;
  asio::io_context context_{1};
  asio::steady_timer room_, ticker_;
  Clock::time_point start_;
  std::vector<tcp::endpoint> addresses_;
  std::vector<beast::tcp_stream*> open_;
  std::vector<std::unique_ptr<beast::tcp_stream>> idle_;
  int64_t next_ = 0, in_flight_ = 0, done_ = 0, failed_ = 0;
  bool all_sent_ = false;
  LoadRun run_;
};

}  // namespace

Result<Endpoint> Endpoint::Parse(const char* flag, const std::string& url, const std::string& path) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&] { return Err(Status::InvalidArgument("{} is \"{}\", must be http://HOST[:PORT]", flag, url)); };
  if (!url.starts_with(kScheme)) return wrong();
  std::string place = url.substr(kScheme.size());
  Endpoint out;
  if (const size_t slash = place.find('/'); slash != std::string::npos) {
    out.path = place.substr(slash);
    while (out.path.ends_with('/')) out.path.pop_back();
    place.resize(slash);
  } else {
    out.path.clear();
  }
  const size_t colon = place.rfind(':');
  out.host = place.substr(0, colon);
  out.port = colon == std::string::npos ? "80" : place.substr(colon + 1);
  if (out.host.empty() || out.port.empty() || out.port.find_first_not_of("0123456789") != std::string::npos) return wrong();
  if (out.path.ends_with("/v1") && path.starts_with("/v1/")) out.path.resize(out.path.size() - 3);
  out.path += path;
  return out;
}

LoadRun run_load(const Endpoint& endpoint, const std::vector<LoadRequest>& requests, const LoadOptions& options) {
  return Load(endpoint, requests, options).run();
}

Result<std::string> http_get(const Endpoint& endpoint, const std::string& path, double timeout) {
  error_code error;
  http::response<http::string_body> response;
  asio::io_context context{1};
  // Of the stream's operations only those that do not block end in time.
  const auto get = [&]() -> asio::awaitable<void> {
    auto token = asio::redirect_error(asio::use_awaitable, error);
    const auto found = co_await tcp::resolver(context).async_resolve(endpoint.host, endpoint.port, token);
    if (error) co_return;
    beast::tcp_stream stream(context);
    stream.expires_after(nanoseconds(timeout));
    co_await stream.async_connect(found, token);
    if (error) co_return;
    http::request<http::empty_body> request(http::verb::get, path, 11);
    request.set(http::field::host, endpoint.host + ":" + endpoint.port);
    request.set(http::field::connection, "close");
    if (!endpoint.api_key.empty()) request.set(http::field::authorization, "Bearer " + endpoint.api_key);
    co_await http::async_write(stream, request, token);
    if (error) co_return;
    beast::flat_buffer buffer;
    co_await http::async_read(stream, buffer, response, token);
  };
  std::exception_ptr failure;
  asio::co_spawn(context, get(), [&](std::exception_ptr thrown) { failure = std::move(thrown); });
  context.run();
  if (failure) std::rethrow_exception(failure);
  if (error) return Err(Status::FailedPrecondition("{}{}: {}", endpoint.url(), path, error.message()));
  if (response.result_int() != 200)
    return Err(Status::FailedPrecondition("{}{}: HTTP {}: {}", endpoint.url(), path, response.result_int(),
                                          response.body().substr(0, 300)));
  return std::move(response.body());
}

}  // namespace deepinfer::bench
