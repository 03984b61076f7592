#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "telemetry/span.h"

namespace deepinfer::telemetry {

struct Interval {
  int64_t begin = -1, end = -1;  ///< now_ns; begin -1: it did not happen, or not yet
  bool known() const { return begin >= 0; }
  int64_t length() const { return end - begin; }
};

/// Who asked, as far as HTTP knows.
struct RequestNames {
  std::string id;            ///< what the client got: "chatcmpl-..."
  std::string x_request_id;  ///< of the HTTP request
  std::string trace_parent;  ///< its `traceparent` header (W3C Trace Context), checked by the reader
  std::string model;
};

struct RequestCounts {
  int64_t prompt_tokens = 0, cached_tokens = 0, replayed_tokens = 0, completion_tokens = 0, preemptions = 0;
};

/// One request of the engine, from arrival to end.
struct RequestRecord {
  uint64_t request = 0;
  RequestNames names;
  RequestCounts counts;
  int64_t arrival = -1, first_token = -1, end = -1;  ///< now_ns; -1: not yet
  std::string finish;                                ///< how it ended; empty: not yet
  std::array<Interval, kPhases> phases;

  const Interval& phase(Phase p) const { return phases[static_cast<size_t>(p)]; }
  Interval& phase(Phase p) { return phases[static_cast<size_t>(p)]; }
};

/// The latest requests with their phases. What the spans say in detail and forget soon, this keeps in short. Thread-safe.
class RequestLog {
 public:
  explicit RequestLog(size_t capacity) : capacity_(capacity) {}

  /// Changes the record of `request`, made if there is none: `change(RequestRecord&)`, under the lock.
  template <typename Change>
  void update(uint64_t request, Change change) {
    const std::lock_guard lock(mutex_);
    change(at(request));
  }

  /// The latest `count`, newest first.
  std::vector<RequestRecord> latest(size_t count) const;
  /// Those with this id, x-request-id or number, oldest first.
  std::vector<RequestRecord> find(std::string_view id) const;

 private:
  RequestRecord& at(uint64_t request);

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<RequestRecord> records_;  ///< a ring: number n lies at n % capacity
  size_t added_ = 0;
  std::unordered_map<uint64_t, size_t> where_;
};

}  // namespace deepinfer::telemetry
