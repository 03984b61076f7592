#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer {

/// What lies between the engine and the readers of one request. The engine pushes; news that nobody has read is merged, so at
/// most one Output per choice waits, whatever the reader does. Thread-safe.
class RequestStream {
 public:
  /// `cancel` is called by readers, any number of times, from any thread.
  /// `prepared` false: until `set_prepared`.
  RequestStream(RequestId id, int64_t choices, std::function<void(RequestId)> cancel, bool prepared = true);

  RequestId id() const { return id_; }
  void push(Output output);
  void set_prepared(std::vector<std::string> unenforced);

  std::optional<Output> poll();
  /// Waits until there is news, everything has ended or `until` has come.
  std::optional<Output> wait(std::optional<std::chrono::steady_clock::time_point> until);
  bool finished() const;
  bool prepared() const;
  std::vector<std::string> unenforced() const;
  void cancel() { cancel_(id_); }
  void set_callback(std::function<void()> on_news);

 private:
  std::optional<Output> take();
  bool ended() const { return open_ == 0 && waiting_.empty(); }

  const RequestId id_;
  const std::function<void(RequestId)> cancel_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::optional<Output>> pending_;  ///< by choice
  std::deque<int64_t> waiting_;                 ///< choices with news, oldest first
  Usage usage_;  ///< as of the last push: merged news are read in another order, and usage never goes back
  bool prepared_;
  std::vector<std::string> unenforced_;
  int64_t open_;  ///< choices whose last output has not been pushed
  /// Called without the lock; behind a pointer so that a call under way outlives its replacement.
  std::shared_ptr<const std::function<void()>> callback_;
};

}  // namespace deepinfer
