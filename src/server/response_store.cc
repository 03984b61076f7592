#include "server/response_store.h"

namespace deepinfer::server {

void ResponseStore::begin(const std::string& id, int64_t key, std::string body, std::function<void()> cancel) {
  const std::lock_guard lock(mutex_);
  entries_[id] = {key, std::move(body), std::move(cancel), finished_.end()};
}

void ResponseStore::finish(const std::string& id, std::string body) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  if (body.empty() || max_entries_ == 0) {
    entries_.erase(at);
    return;
  }
  at->second.cancel = nullptr;
  at->second.body = std::move(body);
  bytes_ += static_cast<int64_t>(at->second.body.size());
  at->second.age = finished_.insert(finished_.end(), id);
  trim();
}

void ResponseStore::trim() {
  while (!finished_.empty() && (static_cast<int64_t>(finished_.size()) > max_entries_ || bytes_ > max_bytes_)) {
    const auto at = entries_.find(finished_.front());
    bytes_ -= static_cast<int64_t>(at->second.body.size());
    entries_.erase(at);
    finished_.pop_front();
  }
}

std::optional<std::string> ResponseStore::get(const std::string& id, int64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end() || at->second.key != key) return std::nullopt;
  return at->second.body;
}

ResponseStore::Cancel ResponseStore::cancel(const std::string& id, int64_t key) {
  std::function<void()> cancel;
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(id);
    if (at == entries_.end() || at->second.key != key) return Cancel::kUnknown;
    if (!at->second.cancel) return Cancel::kDone;
    cancel = at->second.cancel;
  }
  cancel();
  return Cancel::kCancelled;
}

}  // namespace deepinfer::server
