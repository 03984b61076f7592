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
  ++places_.counts->failed;
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
  bool whole = true;
  for (int64_t first = 0; whole && first < match_.pages;) {
    Part part{.first = first, .memory = {}, .copies = {}};
    const Stretch stretch = stretch_at(first);
    whole = stretch.lent ? run_lent(part, stretch.pages) : run_staged(part, stretch.pages);
    first += part.pages();
  }
  if (!whole) ++places_.counts->failed;
  const std::lock_guard lock(mutex_);
  result_.end = steady_seconds();
  finished_ = true;
  changed_.notify_all();
}

DevicePull::Stretch DevicePull::stretch_at(int64_t first) const {
  Stretch stretch;
  int64_t begin = 0;
  for (const KvTierMatch::Run& run : match_.runs) {
    const int64_t end = begin + run.pages;
    const bool lent = places_.host != nullptr && run.tier == 0;
    if (end > first) {
      if (stretch.pages > 0 && lent != stretch.lent) break;
      stretch.lent = lent;
      stretch.pages += end - std::max(begin, first);
    }
    begin = end;
  }
  return stretch;
}

bool DevicePull::run_lent(Part& part, int64_t pages) {
  const double now = wall_seconds();
  KvPull::Result result;
  result.pages_by_tier.resize(result_.pages_by_tier.size());
  result.bytes_by_tier.resize(result_.bytes_by_tier.size());
  std::vector<const uint8_t*> lent;
  for (int64_t i = 0; i < pages; ++i) {
    const uint8_t* page = nullptr;
    result.miss = KvStoreMiss::kCancelled;
    if (!stop_.stop_requested())
      page = places_.host->lend(keys_[static_cast<size_t>(part.first + i)], match_.exact, now, result.miss);
    if (page == nullptr) break;
    lent.push_back(page);
    part.memory.push_back(const_cast<uint8_t*>(page));  // copies to the device only read it
  }
  result.good_pages = part.pages();
  const bool whole = part.pages() == pages;
  for (int64_t group = 0; group < static_cast<int64_t>(left_.size()); ++group) copy(part, group, group + 1, part.pages());
  result.pages_by_tier[0] = part.pages();
  result.bytes_by_tier[0] = part.pages() * places_.below->shape().page_bytes();
  places_.counts->lent_pages += part.pages();
  if (!whole) ++places_.counts->lent_misses[static_cast<size_t>(result.miss)];
  add(result, whole);
  wait_copies(part);
  places_.host->give_back(lent);
  const auto keys = std::span(keys_).first(static_cast<size_t>(part.first + part.pages()));
  if (part.pages() > 0) places_.below->touch(keys, terms_.cache_class);
  return whole;
}

bool DevicePull::run_staged(Part& part, int64_t pages) {
  // Not all of the memory for one: a short pull shall not wait for a long one to be over.
  const int64_t most = std::max<int64_t>(places_.staging->total() / 2, 1);
  part.memory = places_.staging->acquire(std::min(most, pages), stop_.get_token());
  if (part.memory.empty()) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    result_.miss = KvStoreMiss::kCancelled;
    return false;
  }
  const bool whole = pull_staged(part);
  wait_copies(part);
  places_.staging->release(part.memory);
  return whole;
}

bool DevicePull::pull_staged(Part& part) {
  const auto groups = static_cast<int64_t>(left_.size());
  const KvTierMatch match = match_of(part);
  const auto keys = keys_.begin() + part.first;
  KvPullTerms terms = terms_;
  terms.worth_seconds *= static_cast<double>(part.pages()) / static_cast<double>(match_.pages);
  {
    const std::lock_guard lock(mutex_);
    below_ = places_.below->pull(match, {keys, keys + part.pages()}, part.memory, terms);
    if (stop_.stop_requested()) below_->cancel();
  }
  int64_t group = 0;
  for (; group < groups && below_->wait(group); ++group) copy(part, group, group + 1, part.pages());
  const bool whole = group == groups;
  if (!whole) below_->cancel();
  while (!below_->done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  const KvPull::Result& result = below_->result();
  // What came whole behind a group that didn't.
  if (!whole) copy(part, group, groups, result.good_pages);
  add(result, whole);
  const std::lock_guard lock(mutex_);
  below_.reset();
  return whole;
}

void DevicePull::wait_copies(const Part& part) {
  for (const PageCopies::Ticket copy : part.copies) places_.copies->wait(copy);
}

void DevicePull::add(const KvPull::Result& part, bool whole) {
  const std::lock_guard lock(mutex_);
  result_.good_pages += part.good_pages;
  for (size_t tier = 0; tier < result_.pages_by_tier.size(); ++tier) {
    result_.pages_by_tier[tier] += part.pages_by_tier[tier];
    result_.bytes_by_tier[tier] += part.bytes_by_tier[tier];
  }
  result_.miss = whole ? KvStoreMiss::kNone : part.miss;
  failed_ = failed_ || !whole;
  changed_.notify_all();
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
                      .host = part.memory[static_cast<size_t>(i)] + offset,
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

}  // namespace deepinfer
