#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace deepinfer::server {

class Session;

/// A thread with its event loop and the connections that live on it. What an engine thread may post to holds a reference, so that
/// the loop is there as long as anybody could.
class IoThread {
 public:
  boost::asio::io_context context{1};
  std::set<Session*> sessions;  ///< of the thread alone

  void start() {
    thread_ = std::thread([this] { context.run(); });
  }
  /// From any thread: `handler` runs on this one, or is dropped when it has ended.
  template <typename Handler>
  void post(Handler&& handler) {
    const std::lock_guard lock(mutex_);
    if (!ended_) boost::asio::post(context, std::forward<Handler>(handler));
  }
  /// Ends the thread and runs what is left: a handler that stayed in the loop and held a reference would keep the loop for ever.
  void end() {
    context.stop();
    if (thread_.joinable()) thread_.join();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    context.restart();
    context.poll();
  }

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{context.get_executor()};
  std::mutex mutex_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace deepinfer::server
