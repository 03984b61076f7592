#include "telemetry/chrome_trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>

#include "base/json_line.h"

namespace deepinfer::telemetry {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(50);
constexpr std::string_view kEnd = "\n]\n";
constexpr int64_t kLastWords = 512;  ///< room for the event that says that the file is full
constexpr int kProcess = 1;

using Buffer = fmt::memory_buffer;

/// Microseconds with three digits behind the point, as the format wants them.
struct Micros {
  int64_t ns;
};

void append(Buffer& out, Micros t) {
  const auto size = static_cast<uint64_t>(std::max<int64_t>(0, t.ns));
  fmt::format_to(std::back_inserter(out), "{}.{:03}", size / 1000, size % 1000);
}

/// What one thread does one after the other is a row of its own; everything else may overlap and is told as begin and end of
/// something with an id.
bool sequential(const Span& span) {
  return span.category == Category::kEngine || span.category == Category::kDevice || span.category == Category::kOp;
}

void append_args(Buffer& out, const Span& span) {
  const auto put = [&]<typename... T>(fmt::format_string<T...> text, T&&... values) {
    fmt::format_to(std::back_inserter(out), text, std::forward<T>(values)...);
  };
  put(R"("args":{{)");
  bool first = true;
  const auto arg = [&](std::string_view name, int64_t value) {
    put(R"({}"{}":{})", first ? "" : ",", name, value);
    first = false;
  };
  if (span.step >= 0) arg("step", span.step);
  if (span.request != 0) arg("request", static_cast<int64_t>(span.request));
  for (size_t i = 0; i < span.args.size() && span.args[i].name != nullptr; ++i) arg(span.args[i].name, span.args[i].value);
  put("}}");
}

void append_event(Buffer& out, const Span& span, int64_t start) {
  const auto put = [&]<typename... T>(fmt::format_string<T...> text, T&&... values) {
    fmt::format_to(std::back_inserter(out), text, std::forward<T>(values)...);
  };
  const int track = static_cast<int>(span.category) + 1;
  if (sequential(span)) {
    put(R"({{"ph":"X","pid":{},"tid":{},"cat":"{}","name":"{}","ts":)", kProcess, track, category_name(span.category), span.name);
    append(out, {span.begin - start});
    put(R"(,"dur":)");
    append(out, {span.end - span.begin});
    put(",");
    append_args(out, span);
    put("}}");
    return;
  }
  // The steps of a request lie beside its phases: they may reach over the end of one.
  const std::string_view category =
      span.category == Category::kRequest && span.step >= 0 ? "request step" : category_name(span.category);
  for (const bool begin : {true, false}) {
    put(R"({}{{"ph":"{}","pid":{},"tid":{},"cat":"{}","id":"{}","name":"{}","ts":)", begin ? "" : ",\n", begin ? 'b' : 'e',
        kProcess, track, category, span.request, span.name);
    append(out, {(begin ? span.begin : span.end) - start});
    if (begin) {
      put(",");
      append_args(out, span);
    }
    put("}}");
  }
}

class ChromeTraceImpl final : public ChromeTrace {
 public:
  ChromeTraceImpl(std::shared_ptr<TraceRecorder> recorder, Options options, int fd)
      : recorder_(std::move(recorder)), options_(std::move(options)), fd_(fd) {}
  ~ChromeTraceImpl() override { (void)close(); }

  Status begin() {
    Buffer head;
    const auto name = [&](std::string_view what, int track, std::string_view value, bool first = false) {
      fmt::format_to(std::back_inserter(head), R"({}{{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":{}}}}})",
                     first ? "[\n" : ",\n", kProcess, track, what, json_quote(value));
    };
    name("process_name", 0, options_.process_name, true);
    for (size_t i = 0; i < kCategories; ++i) name("thread_name", static_cast<int>(i) + 1, track_name(static_cast<Category>(i)));
    DI_RETURN_IF_ERROR(write({head.data(), head.size()}));
    thread_ = std::thread([this] { work(); });
    return Status::Ok();
  }

  Status close() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    news_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (fd_ >= 0 && ::close(fd_) != 0 && error_.ok()) error_ = failure("close");
    fd_ = -1;
    return error_;
  }

  int64_t bytes() const override { return size_.load(); }

 private:
  Status failure(const char* what) const { return Status::Unavailable("{}: {}: {}", options_.path, what, std::strerror(errno)); }

  /// Over the end of the array, and ends it again.
  Status write(std::string_view text) {
    std::string piece(text);
    piece += kEnd;
    for (size_t done = 0; done < piece.size();) {
      const ssize_t n =
          ::pwrite(fd_, piece.data() + done, piece.size() - done, static_cast<off_t>(at_ + static_cast<int64_t>(done)));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return failure("write");
      done += static_cast<size_t>(n);
    }
    at_ += static_cast<int64_t>(text.size());
    size_ = at_ + static_cast<int64_t>(kEnd.size());
    return Status::Ok();
  }

  void work() {
    for (bool last = false; !last;) {
      {
        std::unique_lock lock(mutex_);
        news_.wait_for(lock, kInterval, [&] { return stop_; });
        last = stop_;
      }
      spans_.clear();
      recorder_->count_dropped(recorder_->read(cursor_, spans_, last));
      if (!full_ && error_.ok() && !spans_.empty()) take_over();
    }
  }

  void take_over() {
    Buffer text;
    size_t written = 0;
    for (; written < spans_.size() && !full_; ++written) {
      const size_t before = text.size();
      text.append(std::string_view(",\n"));
      append_event(text, spans_[written], recorder_->start());
      full_ = at_ + static_cast<int64_t>(text.size()) + kLastWords > options_.max_bytes;
      if (full_) text.resize(before);
    }
    if (full_) {
      fmt::format_to(std::back_inserter(text),
                     ",\n"
                     R"({{"ph":"i","s":"g","pid":{},"tid":1,"cat":"engine","name":"the file is full","ts":)",
                     kProcess);
      append(text, {now_ns() - recorder_->start()});
      text.append(std::string_view("}"));
    }
    error_ = write({text.data(), text.size()});
  }

  const std::shared_ptr<TraceRecorder> recorder_;
  const Options options_;
  int fd_;
  int64_t at_ = 0;  ///< where the end of the array is
  std::atomic<int64_t> size_{0};
  // Of the thread alone, and of `close` behind it.
  TraceRecorder::Cursor cursor_{};
  std::vector<Span> spans_;
  bool full_ = false;
  Status error_;

  std::mutex mutex_;
  std::condition_variable news_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<ChromeTrace>> ChromeTrace::Create(std::shared_ptr<TraceRecorder> recorder, const Options& options) {
  const int fd = ::open(options.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Err(Status::InvalidArgument("{}: {}", options.path, std::strerror(errno)));
  auto trace = std::make_unique<ChromeTraceImpl>(std::move(recorder), options, fd);
  DI_RETURN_IF_ERROR(trace->begin());
  return trace;
}

}  // namespace deepinfer::telemetry
