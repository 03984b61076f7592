#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <set>
#include <thread>

namespace deepinfer::server {

class Session;

/// A thread with its event loop and the connections that live on it. What an engine thread may post to holds a reference, so that
/// the loop is there as long as anybody could.
struct IoThread {
  boost::asio::io_context context{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{context.get_executor()};
  std::set<Session*> sessions;  ///< of the thread alone
  std::thread thread;
};

}  // namespace deepinfer::server
