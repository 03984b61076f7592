#include "engine/request_stream.h"

#include <iterator>

namespace deepinfer {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
}

void merge(Output& to, Output&& from) {
  for (int64_t& text_end : from.text_ends) text_end += static_cast<int64_t>(to.text.size());
  append(to.text_ends, std::move(from.text_ends));
  append(to.tokens, std::move(from.tokens));
  to.text += from.text;
  append(to.logprobs, std::move(from.logprobs));
  append(to.prompt_logprobs, std::move(from.prompt_logprobs));
  to.finish = from.finish;
  to.stop_reason = std::move(from.stop_reason);
  to.error = std::move(from.error);
}

}  // namespace

RequestStream::RequestStream(RequestId id, int64_t choices, std::function<void(RequestId)> cancel, bool prepared)
    : id_(id), cancel_(std::move(cancel)), pending_(static_cast<size_t>(choices)), prepared_(prepared), open_(choices) {}

void RequestStream::set_prepared(std::vector<std::string> unenforced) {
  const std::lock_guard lock(mutex_);
  prepared_ = true;
  unenforced_ = std::move(unenforced);
}

bool RequestStream::prepared() const {
  const std::lock_guard lock(mutex_);
  return prepared_;
}

std::vector<std::string> RequestStream::unenforced() const {
  const std::lock_guard lock(mutex_);
  return unenforced_;
}

void RequestStream::push(Output output) {
  output.text_ends.assign(output.tokens.size(), static_cast<int64_t>(output.text.size()));
  std::shared_ptr<const std::function<void()>> callback;
  {
    const std::lock_guard lock(mutex_);
    std::optional<Output>& slot = pending_[static_cast<size_t>(output.index)];
    if (output.finish.has_value()) --open_;
    usage_ = std::move(output.usage);
    if (slot.has_value()) {
      merge(*slot, std::move(output));
    } else {
      waiting_.push_back(output.index);
      slot = std::move(output);
    }
    callback = callback_;
  }
  news_.notify_all();
  if (callback != nullptr) (*callback)();
}

std::optional<Output> RequestStream::take() {
  if (waiting_.empty()) return std::nullopt;
  std::optional<Output>& slot = pending_[static_cast<size_t>(waiting_.front())];
  waiting_.pop_front();
  std::optional<Output> output = std::exchange(slot, std::nullopt);
  output->usage = usage_;
  return output;
}

std::optional<Output> RequestStream::poll() {
  const std::lock_guard lock(mutex_);
  return take();
}

std::optional<Output> RequestStream::wait(std::optional<std::chrono::steady_clock::time_point> until) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !waiting_.empty() || ended(); };
  if (until.has_value()) {
    news_.wait_until(lock, *until, ready);
  } else {
    news_.wait(lock, ready);
  }
  return take();
}

bool RequestStream::finished() const {
  const std::lock_guard lock(mutex_);
  return ended();
}

void RequestStream::set_callback(std::function<void()> on_news) {
  std::shared_ptr<const std::function<void()>> callback;
  bool news = false;
  if (on_news) callback = std::make_shared<const std::function<void()>>(std::move(on_news));
  {
    const std::lock_guard lock(mutex_);
    callback_ = callback;
    news = !waiting_.empty();
  }
  if (news && callback != nullptr) (*callback)();
}

RequestHandle::RequestHandle(std::shared_ptr<RequestStream> stream) : stream_(std::move(stream)) {}
RequestId RequestHandle::id() const { return stream_->id(); }
std::optional<Output> RequestHandle::next() { return stream_->wait(std::nullopt); }
std::optional<Output> RequestHandle::poll() { return stream_->poll(); }
std::optional<Output> RequestHandle::next_for(std::chrono::nanoseconds timeout) {
  using Time = std::chrono::steady_clock::time_point;
  const Time now = std::chrono::steady_clock::now();
  // Longer than the clock goes: for ever.
  if (timeout > Time::max() - now) return stream_->wait(std::nullopt);
  return stream_->wait(now + timeout);
}
bool RequestHandle::finished() const { return stream_->finished(); }
bool RequestHandle::prepared() const { return stream_->prepared(); }
std::vector<std::string> RequestHandle::unenforced() const { return stream_->unenforced(); }
void RequestHandle::cancel() { stream_->cancel(); }
void RequestHandle::set_callback(std::function<void()> on_news) { stream_->set_callback(std::move(on_news)); }

}  // namespace deepinfer
