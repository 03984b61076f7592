#include "server/otlp_exporter.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/build_info.h"
#include "server/key_ring.h"
#include "telemetry/otlp.h"

namespace deepinfer::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;
using telemetry::RequestRecord;

constexpr size_t kBatch = 256;         ///< requests in one exchange
constexpr size_t kMaxReply = 1 << 20;  ///< bytes
constexpr double kFirstPause = 0.25;   ///< seconds before the second attempt; doubled for each further one
constexpr size_t kMaxUrl = 2048;

std::chrono::steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

/// Whether the same may succeed later, as OTLP has it.
bool retryable(int status) { return status == 0 || status == 429 || status == 502 || status == 503 || status == 504; }

/// One exchange; the status, 0 if there was none.
asio::awaitable<void> post(const OtlpEndpoint& endpoint, const std::string& body, double timeout, int& status) {
  error_code error;
  auto executor = co_await asio::this_coro::executor;
  asio::ip::tcp::resolver resolver(executor);
  const auto found = co_await resolver.async_resolve(endpoint.host, endpoint.port, redirect_error(use_awaitable, error));
  if (error) co_return;
  beast::tcp_stream stream(executor);
  stream.expires_after(to_duration(timeout));
  co_await stream.async_connect(found, redirect_error(use_awaitable, error));
  if (error) co_return;
  http::request<http::string_body> request{http::verb::post, endpoint.path, 11};
  request.set(http::field::host, endpoint.port == "80" ? endpoint.host : endpoint.host + ":" + endpoint.port);
  request.set(http::field::user_agent, "deepinfer");
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = body;
  request.prepare_payload();
  co_await http::async_write(stream, request, redirect_error(use_awaitable, error));
  if (error) co_return;
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> reply;
  reply.body_limit(kMaxReply);
  co_await http::async_read(stream, buffer, reply, redirect_error(use_awaitable, error));
  if (!error) status = static_cast<int>(reply.get().result_int());
}

class OtlpExporterImpl final : public OtlpExporter {
 public:
  OtlpExporterImpl(std::shared_ptr<telemetry::TraceRecorder> recorder, OtlpOptions options, OtlpEndpoint endpoint)
      : recorder_(std::move(recorder)), options_(std::move(options)), endpoint_(std::move(endpoint)) {
    recorder_->on_closed([this](const RequestRecord& record) { take(record); });
    thread_ = std::thread([this] { work(); });
  }
  ~OtlpExporterImpl() override { close(); }

  void close() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    news_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  int64_t exported() const override { return exported_; }
  int64_t dropped() const override { return dropped_; }
  int64_t failures() const override { return failures_; }

 private:
  void take(const RequestRecord& record) {
    const auto parent = telemetry::parse_trace_parent(record.names.trace_parent);
    if (parent.has_value() && !parent->sampled) return;
    bool full = false;
    {
      const std::lock_guard lock(mutex_);
      if (stop_ || queue_.size() >= options_.max_queued) {
        dropped_ += telemetry::otlp_span_count(record);
        return;
      }
      queue_.push_back(record);
      full = queue_.size() >= kBatch;
    }
    if (full) news_.notify_one();
  }

  void work() {
    std::vector<RequestRecord> batch;
    while (true) {
      bool last = false;
      {
        std::unique_lock lock(mutex_);
        news_.wait_for(lock, to_duration(options_.interval), [&] { return stop_ || queue_.size() >= kBatch; });
        last = stop_;
        batch.clear();
        while (!queue_.empty() && batch.size() < kBatch) {
          batch.push_back(std::move(queue_.front()));
          queue_.pop_front();
        }
      }
      if (!batch.empty()) send(batch);
      if (last && batch.empty()) return;
    }
  }

  void send(const std::vector<RequestRecord>& batch) {
    const telemetry::OtlpSource source{.service_name = options_.service_name,
                                       .service_version = std::string(build_version()),
                                       .start = recorder_->start(),
                                       .start_unix_ns = recorder_->start_unix_ns(),
                                       .random_hex = random_hex};
    const std::string body = telemetry::otlp_traces(batch, source);
    int64_t spans = 0;
    for (const RequestRecord& record : batch) spans += telemetry::otlp_span_count(record);
    double pause = kFirstPause;
    for (int attempt = 1;; ++attempt) {
      const int status = exchange(body);
      if (status / 100 == 2) {
        exported_ += spans;
        return;
      }
      ++failures_;
      if (!retryable(status) || attempt >= options_.attempts || !sleep(pause)) break;
      pause *= 2;
    }
    dropped_ += spans;
  }

  int exchange(const std::string& body) {
    int status = 0;
    asio::io_context context;
    asio::co_spawn(context, post(endpoint_, body, options_.timeout, status), asio::detached);
    // A resolver knows no time limit of its own.
    context.run_for(to_duration(2 * options_.timeout));
    return status;
  }

  /// False: it is to end.
  bool sleep(double seconds) {
    std::unique_lock lock(mutex_);
    return !news_.wait_for(lock, to_duration(seconds), [&] { return stop_; });
  }

  const std::shared_ptr<telemetry::TraceRecorder> recorder_;
  const OtlpOptions options_;
  const OtlpEndpoint endpoint_;
  std::atomic<int64_t> exported_{0}, dropped_{0}, failures_{0};
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<RequestRecord> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

Result<OtlpEndpoint> parse_otlp_endpoint(std::string_view url) {
  const auto refuse = [&](std::string_view why) {
    return Err(Status::InvalidArgument("\"{}\": {}, must be as http://HOST:4318/v1/traces", url.substr(0, 200), why));
  };
  constexpr std::string_view kScheme = "http://";
  if (url.size() > kMaxUrl) return refuse("is too long");
  for (const char c : url) {
    if (c <= ' ' || c > '~') return refuse("has a character that must be escaped");
  }
  if (url.starts_with("https://")) return refuse("TLS is not supported: use a collector beside the server");
  if (!url.starts_with(kScheme)) return refuse("is not an http URL");
  std::string_view rest = url.substr(kScheme.size());
  OtlpEndpoint out;
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (slash < rest.size()) out.path = rest.substr(slash);
  std::string_view authority = rest.substr(0, slash);
  if (authority.find('@') != std::string_view::npos) return refuse("user names are not supported");
  const bool v6 = authority.starts_with('[');
  const size_t colon = v6 ? authority.find(':', std::min(authority.find(']'), authority.size())) : authority.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view port = authority.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos ||
        std::stoi(std::string(port)) < 1 || std::stoi(std::string(port)) > 65535)
      return refuse("the port must be from 1 to 65535");
    out.port = port;
    authority = authority.substr(0, colon);
  }
  if (v6) {
    if (!authority.ends_with(']')) return refuse("the address has no ]");
    authority = authority.substr(1, authority.size() - 2);
  }
  if (authority.empty()) return refuse("has no host");
  out.host = authority;
  return out;
}

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::Create(std::shared_ptr<telemetry::TraceRecorder> recorder,
                                                           const OtlpOptions& options) {
  DI_ASSIGN_OR_RETURN(OtlpEndpoint endpoint, parse_otlp_endpoint(options.endpoint));
  return std::make_unique<OtlpExporterImpl>(std::move(recorder), options, std::move(endpoint));
}

}  // namespace deepinfer::server
