#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "deepinfer/engine.h"

namespace deepinfer {

/// What stands behind a RequestHandle: the engine pushes, the caller reads. News of one choice that nobody has read are merged.
class RequestStream {
 public:
  /// `choices`: how many will end. `cancel` is called by RequestHandle::cancel, from the caller's thread.
  RequestStream(RequestId id, int64_t choices, std::function<void(RequestId)> cancel);

  void push(Output output);

  RequestId id() const { return id_; }
  std::optional<Output> next();
  std::optional<Output> poll();
  std::optional<Output> next_for(std::chrono::nanoseconds timeout);
  bool finished() const;
  void cancel();
  void set_callback(std::function<void()> on_news);

 private:
  bool read_everything() const { return pending_.empty() && open_choices_ == 0; }
  std::optional<Output> take();

  const RequestId id_;
  const std::function<void(RequestId)> cancel_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Output> pending_;  ///< at most one per choice
  int64_t open_choices_;
  std::function<void()> on_news_;
};

}  // namespace deepinfer
