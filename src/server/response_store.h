#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace deepinfer::server {

/// The Responses that GET /v1/responses/{id} can find: those in progress, and the latest finished ones. An entry belongs to the
/// key that made it; others see nothing. Thread-safe.
class ResponseStore {
 public:
  ResponseStore(int64_t max_entries, int64_t max_bytes) : max_entries_(max_entries), max_bytes_(max_bytes) {}

  /// `body`: what GET answers meanwhile; `cancel`: ends it.
  void begin(const std::string& id, int64_t key, std::string body, std::function<void()> cancel);
  /// An empty body removes the entry.
  void finish(const std::string& id, std::string body);

  std::optional<std::string> get(const std::string& id, int64_t key) const;
  enum class Cancel : uint8_t { kUnknown, kDone, kCancelled };
  Cancel cancel(const std::string& id, int64_t key);

 private:
  struct Entry {
    int64_t key = -1;
    std::string body;
    std::function<void()> cancel;          ///< in progress
    std::list<std::string>::iterator age;  ///< finished
  };
  void trim();

  const int64_t max_entries_, max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  std::list<std::string> finished_;  ///< oldest first
  int64_t bytes_ = 0;                ///< of finished bodies
};

}  // namespace deepinfer::server
