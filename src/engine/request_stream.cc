// The smallest version that the command line can be tested with, until the engine's own replaces this file. So do the names and
// parsers at the end.

#include "engine/request_stream.h"

#include <algorithm>
#include <utility>

namespace deepinfer {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void merge(Output& into, Output&& news) {
  append(into.tokens, std::move(news.tokens));
  append(into.logprobs, std::move(news.logprobs));
  append(into.prompt_logprobs, std::move(news.prompt_logprobs));
  into.text += news.text;
  if (news.finish.has_value()) into.finish = news.finish;
  into.stop_reason = std::move(news.stop_reason);
  if (!news.error.ok()) into.error = std::move(news.error);
  into.usage = news.usage;
}

}  // namespace

RequestStream::RequestStream(RequestId id, int64_t choices, std::function<void(RequestId)> cancel)
    : id_(id), cancel_(std::move(cancel)), open_choices_(choices) {}

void RequestStream::push(Output output) {
  std::function<void()> on_news;
  {
    const std::lock_guard lock(mutex_);
    if (output.finish.has_value()) --open_choices_;
    const auto same =
        std::find_if(pending_.begin(), pending_.end(), [&](const Output& other) { return other.index == output.index; });
    if (same == pending_.end()) {
      pending_.push_back(std::move(output));
    } else {
      merge(*same, std::move(output));
    }
    on_news = on_news_;
  }
  changed_.notify_all();
  if (on_news) on_news();
}

std::optional<Output> RequestStream::take() {
  if (pending_.empty()) return std::nullopt;
  Output first = std::move(pending_.front());
  pending_.pop_front();
  return first;
}

std::optional<Output> RequestStream::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !pending_.empty() || open_choices_ == 0; });
  return take();
}

std::optional<Output> RequestStream::poll() {
  const std::lock_guard lock(mutex_);
  return take();
}

std::optional<Output> RequestStream::next_for(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !pending_.empty() || open_choices_ == 0; });
  return take();
}

bool RequestStream::finished() const {
  const std::lock_guard lock(mutex_);
  return read_everything();
}

void RequestStream::cancel() { cancel_(id_); }

void RequestStream::set_callback(std::function<void()> on_news) {
  std::function<void()> now;
  {
    const std::lock_guard lock(mutex_);
    on_news_ = std::move(on_news);
    if (!pending_.empty()) now = on_news_;
  }
  if (now) now();
}

RequestHandle::RequestHandle(std::shared_ptr<RequestStream> stream) : stream_(std::move(stream)) {}
RequestId RequestHandle::id() const { return stream_->id(); }
std::optional<Output> RequestHandle::next() { return stream_->next(); }
std::optional<Output> RequestHandle::poll() { return stream_->poll(); }
std::optional<Output> RequestHandle::next_for(std::chrono::nanoseconds timeout) { return stream_->next_for(timeout); }
bool RequestHandle::finished() const { return stream_->finished(); }
void RequestHandle::cancel() { stream_->cancel(); }
void RequestHandle::set_callback(std::function<void()> on_news) { stream_->set_callback(std::move(on_news)); }

std::string_view finish_reason_name(FinishReason reason) {
  constexpr std::string_view kNames[] = {"stop", "length", "cancelled", "deadline", "error"};
  return kNames[static_cast<size_t>(reason)];
}

std::string_view cache_miss_name(CacheMiss miss) {
  constexpr std::string_view kNames[] = {"none", "too_short", "not_cached", "inexact", "disabled"};
  return kNames[static_cast<size_t>(miss)];
}

Result<ReplayMode> parse_replay_mode(std::string_view text) {
  if (text == "bounded") return ReplayMode::kBounded;
  if (text == "exact") return ReplayMode::kExact;
  return Err(Status::InvalidArgument("is \"{}\", must be bounded or exact", text));
}
std::string_view replay_mode_name(ReplayMode mode) { return mode == ReplayMode::kBounded ? "bounded" : "exact"; }

Result<DecoderReplay> parse_decoder_replay(std::string_view text) {
  if (text == "compact") return DecoderReplay::kCompact;
  if (text == "off") return DecoderReplay::kOff;
  return Err(Status::InvalidArgument("is \"{}\", must be compact or off", text));
}
std::string_view decoder_replay_name(DecoderReplay mode) { return mode == DecoderReplay::kCompact ? "compact" : "off"; }

Status EngineOptions::apply_environment() { return Status::Ok(); }

}  // namespace deepinfer
