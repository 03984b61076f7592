#include "cache/tiers/pull_state.h"

#include <algorithm>
#include <limits>

#include "cache/tiers/tier_workers.h"

namespace deepinfer {
namespace {

/// A pull is looked at when this part of the time that computing takes is over, and ever so often again.
constexpr double kFirstCheck = 0.25, kCheckInterval = 0.125;
/// Weight of the latest pull in the estimates.
constexpr double kNews = 0.3;

void blend(double& estimate, double sample) { estimate = estimate > 0 ? (1 - kNews) * estimate + kNews * sample : sample; }

}  // namespace

PullState::PullState(std::shared_ptr<TiersCore> shared, const KvTierMatch& found, std::vector<PrefixKey> of_pages,
                     std::vector<uint8_t*> into, const KvPullTerms& on_terms)
    : core(std::move(shared)),
      match(found),
      keys(std::move(of_pages)),
      pages(std::move(into)),
      terms(on_terms),
      deadline(steady_seconds() + core->options.pull_seconds),
      shares(core->tiers.size()) {
  result.begin = deadline - core->options.pull_seconds;
  result.pages_by_tier.resize(core->tiers.size());
  result.bytes_by_tier.resize(core->tiers.size());
  left.assign(core->shape.group_bytes.size(), match.pages);
  arrived.assign(static_cast<size_t>(match.pages), 0);
  for (const KvTierMatch::Run& run : match.runs) {
    tier_of.insert(tier_of.end(), static_cast<size_t>(run.pages), run.tier);
    shares[run.tier].total_bytes += run.pages * core->shape.page_bytes();
  }
}

void PullState::count(size_t tier, int64_t bytes) {
  if (bytes == 0) return;
  Share& share = shares[tier];
  share.last = steady_seconds();
  if (share.bytes == 0) {
    share.first = share.last;
    share.first_bytes = bytes;
  }
  share.bytes += bytes;
}

void PullState::finish(std::unique_lock<std::mutex>& lock) {
  if (over) return;
  over = true;
  changed.wait(lock, [this] { return copying == 0; });
  result.end = steady_seconds();
  const auto groups = static_cast<int64_t>(left.size());
  while (result.good_pages < match.pages && arrived[static_cast<size_t>(result.good_pages)] == groups) ++result.good_pages;
  if (result.good_pages == match.pages) result.miss = KvStoreMiss::kNone;
  for (int64_t page = 0; page < result.good_pages; ++page) {
    const size_t tier = tier_of[static_cast<size_t>(page)];
    ++result.pages_by_tier[tier];
    result.bytes_by_tier[tier] += core->shape.page_bytes();
  }
  finished = true;
  if (result.miss != KvStoreMiss::kCancelled) learn(result.miss != KvStoreMiss::kSlow);
  touch();
  if (scratch.empty() && result.good_pages < match.pages) {
    const std::lock_guard counting(core->mutex);
    ++core->stats.pulls_failed;
  }
  changed.notify_all();
}

void PullState::fail(int64_t page, KvStoreMiss miss) {
  if (!failed || page < first_missing) {
    first_missing = page;
    result.miss = miss;
  }
  failed = true;
  changed.notify_all();
}

bool PullState::behind(double now) const {
  if (terms.worth_seconds <= 0) return false;
  const double part = (now - result.begin) / terms.worth_seconds;
  int64_t bytes = 0, total = 0;
  for (const Share& share : shares) {
    bytes += share.bytes;
    total += share.total_bytes;
  }
  return part >= 1 || (part >= kFirstCheck && static_cast<double>(bytes) < part * static_cast<double>(total));
}

double PullState::next_check() const {
  if (terms.worth_seconds <= 0) return deadline;
  const double worth = terms.worth_seconds;
  return std::min(deadline, std::max(result.begin + kFirstCheck * worth, steady_seconds() + kCheckInterval * worth));
}

void PullState::check_time(std::unique_lock<std::mutex>& lock) {
  if (over) return;
  const double now = steady_seconds();
  const bool hangs = now > deadline;
  if (!hangs && !behind(now)) return;
  for (size_t page = 0; page < arrived.size(); ++page) {
    if (arrived[page] == static_cast<int64_t>(left.size())) continue;
    if (hangs) core->tiers[tier_of[page]]->missed_limit();
    fail(static_cast<int64_t>(page), KvStoreMiss::kSlow);
    break;
  }
  stop.request_stop();
  {
    const std::lock_guard counting(core->mutex);
    ++core->stats.pulls_late;
  }
  finish(lock);
}

/// From what came, and from what was waited for in vain.
void PullState::learn(bool in_time) const {
  for (size_t i = 0; i < shares.size(); ++i) {
    const Share& share = shares[i];
    if (share.total_bytes == 0) continue;
    TierState& tier = *core->tiers[i];
    const std::lock_guard lock(tier.mutex);
    if (share.bytes == 0) {
      // All that is known is that it takes longer than this; a probe will tell.
      if (!in_time) tier.stats.latency_seconds = std::max(tier.stats.latency_seconds, terms.worth_seconds);
      continue;
    }
    blend(tier.stats.latency_seconds, share.first - result.begin);
    if (share.bytes > share.first_bytes && share.last > share.first) {
      blend(tier.stats.bytes_per_second, static_cast<double>(share.bytes - share.first_bytes) / (share.last - share.first));
    } else if (tier.stats.bytes_per_second == 0 && share.last > result.begin) {
      tier.stats.bytes_per_second = static_cast<double>(share.bytes) / (share.last - result.begin);
    }
  }
}

void PullState::touch() const {
  const std::shared_ptr<TierWriter> to = writer.lock();
  if (to == nullptr) return;
  int64_t page = 0;
  for (const KvTierMatch::Run& run : match.runs) {
    const int64_t end = std::min(page + run.pages, result.good_pages);
    if (page >= end) break;
    // In the slower tiers, too, where they are to outlive the one that they came from.
    for (size_t tier = run.tier; tier < core->tiers.size(); ++tier)
      to->touch(tier, {keys.begin() + page, keys.begin() + end}, terms.cache_class);
    page = end;
  }
}

}  // namespace deepinfer
