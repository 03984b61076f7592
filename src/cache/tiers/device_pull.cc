#include "cache/tiers/device_pull.h"

#include <algorithm>
#include <thread>

#include "cache/tiers/tier_workers.h"

namespace deepinfer {

DevicePull::DevicePull(Places places, const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                       const KvPullTerms& terms, PageCopies::Fence after)
    : places_(std::move(places)),
      match_(match),
      keys_(std::move(keys)),
      pages_(std::move(pages)),
      terms_(terms),
      after_(after),
      left_(places_.below->shape().group_bytes.size(), match.pages),
      copies_(left_.size()) {
  const size_t tiers = places_.below->tier_names().size();
  result_.pages_by_tier.resize(tiers);
  result_.bytes_by_tier.resize(tiers);
  result_.begin = steady_seconds();
}

bool DevicePull::wait(int64_t group) {
  const auto at = static_cast<size_t>(group);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || finished_ || left_[at] == 0; });
  if (failed_ || left_[at] > 0) return false;
  const std::vector<PageCopies::Ticket> copies = copies_[at];
  lock.unlock();
  for (const PageCopies::Ticket copy : copies) places_.copies->operators_wait(copy);
  return true;
}

bool DevicePull::done() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

void DevicePull::cancel() {
  stop_.request_stop();
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (below_ != nullptr) below_->cancel();
  if (begun_) return;
  // Its turn has not come, and it will find nothing to do.
  failed_ = finished_ = true;
  result_.miss = KvStoreMiss::kCancelled;
  result_.end = steady_seconds();
  changed_.notify_all();
}

void DevicePull::wait_done() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return finished_; });
}

void DevicePull::run() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    begun_ = true;
  }
  // Not all of the memory for one: a short pull shall not wait for a long one to be over.
  const int64_t most = std::max<int64_t>(places_.staging->total() / 2, 1);
  bool whole = true;
  for (Part part; whole && part.first < match_.pages; part.first += part.pages()) {
    part.copies.clear();
    part.staged = places_.staging->acquire(std::min(most, match_.pages - part.first), stop_.get_token());
    if (part.staged.empty()) {
      const std::lock_guard lock(mutex_);
      failed_ = true;
      result_.miss = KvStoreMiss::kCancelled;
      break;
    }
    whole = run_part(part);
    for (const PageCopies::Ticket copy : part.copies) places_.copies->wait(copy);
    places_.staging->release(part.staged);
  }
  finish();
}

bool DevicePull::run_part(Part& part) {
  const auto groups = static_cast<int64_t>(left_.size());
  const KvTierMatch match = match_of(part);
  const auto keys = keys_.begin() + part.first;
  KvPullTerms terms = terms_;
  terms.worth_seconds *= static_cast<double>(part.pages()) / static_cast<double>(match_.pages);
  {
    const std::lock_guard lock(mutex_);
    below_ = places_.below->pull(match, {keys, keys + part.pages()}, part.staged, terms);
    if (stop_.stop_requested()) below_->cancel();
  }
  int64_t group = 0;
  for (; group < groups && below_->wait(group); ++group) copy(part, group, group + 1, part.pages());
  if (group < groups) below_->cancel();
  while (!below_->done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  const KvPull::Result& result = below_->result();
  // What came whole behind a group that didn't.
  if (group < groups) copy(part, group, groups, result.good_pages);

  const std::lock_guard lock(mutex_);
  result_.good_pages += result.good_pages;
  for (size_t tier = 0; tier < result_.pages_by_tier.size(); ++tier) {
    result_.pages_by_tier[tier] += result.pages_by_tier[tier];
    result_.bytes_by_tier[tier] += result.bytes_by_tier[tier];
  }
  result_.miss = result.miss;
  below_.reset();
  if (group < groups) failed_ = true;
  changed_.notify_all();
  return group == groups;
}

KvTierMatch DevicePull::match_of(const Part& part) const {
  KvTierMatch match = match_;
  match.runs.clear();
  match.pages = part.pages();
  int64_t begin = 0;
  for (const KvTierMatch::Run& run : match_.runs) {
    const int64_t from = std::max(begin, part.first), end = std::min(begin + run.pages, part.first + part.pages());
    if (from < end) match.runs.push_back({run.tier, end - from});
    begin += run.pages;
  }
  return match;
}

void DevicePull::copy(Part& part, int64_t group, int64_t end, int64_t pages) {
  const KvPageShape& shape = places_.below->shape();
  const int64_t offset = shape.group_offset(group);
  int64_t bytes = 0;
  for (int64_t g = group; g < end; ++g) bytes += shape.group_bytes[static_cast<size_t>(g)];
  std::vector<CopyPiece> pieces;
  for (int64_t i = 0; i < pages; ++i) {
    pieces.push_back({.device = pages_[static_cast<size_t>(part.first + i)] + offset,
                      .host = part.staged[static_cast<size_t>(i)] + offset,
                      .bytes = bytes});
  }
  if (pieces.empty()) return;
  const PageCopies::Ticket ticket = places_.copies->to_device(pieces, after_);
  part.copies.push_back(ticket);
  const std::lock_guard lock(mutex_);
  for (int64_t g = group; g < end; ++g) {
    left_[static_cast<size_t>(g)] -= pages;
    copies_[static_cast<size_t>(g)].push_back(ticket);
  }
  changed_.notify_all();
}

void DevicePull::finish() {
  const std::lock_guard lock(mutex_);
  result_.end = steady_seconds();
  finished_ = true;
  changed_.notify_all();
}

}  // namespace deepinfer
