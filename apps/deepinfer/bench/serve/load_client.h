#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "serve/answer_reader.h"
#include "serve/endpoint.h"

namespace deepinfer::bench {

/// One request of a session.
struct LoadTurn {
  int64_t input_tokens = 0;  ///< that it adds to what was said before; the server's own count goes before
  double think_time = 0;     ///< seconds after the answer before it
};

/// Requests one after the other, each with what was said before it; a single request is a session of one turn.
struct LoadSession {
  double at = 0;                ///< seconds from the start; sessions are in this order
  std::string body;             ///< of the first turn, ready to be sent
  std::vector<LoadTurn> turns;  ///< at least one
};

struct LoadProgress {
  int64_t done = 0, total = 0, in_flight = 0, failed = 0;
};

struct LoadOptions {
  int64_t max_concurrency = 0;    ///< requests in flight; 0: any number
  int64_t num_clients = 0;        ///< sessions at a time; 0: any number
  double timeout = 600;           ///< seconds that a request may be silent
  double request_timeout = 3600;  ///< seconds that a whole answer may take, however lively it is
  /// The body of turn `answers.size()` of a session, for those behind the first.
  std::function<std::string(int64_t session, const std::vector<std::string>& answers)> next_body = {};
  std::function<bool()> stop = {};  ///< asked about ten times a second; true: nothing more is sent, and what runs is given up
  std::function<void(const LoadProgress&)> progress = {};
};

struct LoadRun {
  std::vector<LoadRecord> records;  ///< of the requests that were sent, in the order of sending
  int64_t not_sent = 0;             ///< turns behind one that failed, and what a stopped run had left
  double seconds = 0;               ///< from the first request to the last answer
  bool stopped = false;
  int64_t peak_in_flight = 0;
  std::vector<double> lag;  ///< seconds by which a timer of the event loop was late, about a hundred times a second
  double cpu_seconds = 0;   ///< of this process
};

/// Sends the sessions over HTTP/1.1 with connections that are kept, and reads their streams: one thread, the caller's. Whatever
/// the server does ends as a record with an error, never later than `timeout` after its last byte or `request_timeout` after it
/// was sent. Errors: a file of authorities that cannot be read.
Result<LoadRun> run_load(const Endpoint& endpoint, const std::vector<LoadSession>& sessions, const LoadOptions& options);

}  // namespace deepinfer::bench
