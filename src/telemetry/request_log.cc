#include "telemetry/request_log.h"

#include <algorithm>
#include <charconv>

namespace deepinfer::telemetry {

RequestRecord& RequestLog::at(uint64_t request) {
  if (const auto found = where_.find(request); found != where_.end()) return records_[found->second];
  const size_t place = added_++ % capacity_;
  if (place == records_.size()) {
    records_.emplace_back();
  } else {
    where_.erase(records_[place].request);
    records_[place] = {};
  }
  where_[request] = place;
  records_[place].request = request;
  return records_[place];
}

std::vector<RequestRecord> RequestLog::latest(size_t count) const {
  std::vector<RequestRecord> out;
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < std::min(count, records_.size()); ++i) out.push_back(records_[(added_ - 1 - i) % capacity_]);
  return out;
}

std::vector<RequestRecord> RequestLog::find(std::string_view id) const {
  std::vector<RequestRecord> out;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  const bool is_number = !id.empty() && error == std::errc() && end == id.data() + id.size();
  const std::lock_guard lock(mutex_);
  for (size_t i = records_.size(); i > 0; --i) {
    const RequestRecord& r = records_[(added_ - i) % capacity_];
    if ((is_number && r.request == number) || (!id.empty() && (r.names.id == id || r.names.x_request_id == id))) out.push_back(r);
  }
  return out;
}

}  // namespace deepinfer::telemetry
