#include "cache/tiers/tier_lookup.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <utility>

namespace deepinfer {

struct TierLookup::Request {
  std::vector<PrefixKey> keys;
  bool exact_only = false;
  std::function<void(KvTierMatch)> done;
  double begin = 0, deadline = 0;
  std::stop_source stop;
  std::mutex mutex;
  KvTierMatch match;
  size_t tier = 0;  ///< being asked
  bool finished = false;
};

struct TierLookup::Shared {
  std::shared_ptr<TiersCore> core;
  std::vector<std::unique_ptr<TierWorkers>> threads;  ///< one for each tier
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Request>> open;
  bool stopped = false;
};

TierLookup::TierLookup(std::shared_ptr<TiersCore> core) : shared_(std::make_shared<Shared>()), timer_(1) {
  for (size_t i = 0; i < core->tiers.size(); ++i) shared_->threads.push_back(std::make_unique<TierWorkers>(1));
  shared_->core = std::move(core);
}

TierLookup::~TierLookup() {
  std::vector<std::shared_ptr<Request>> open;
  {
    const std::lock_guard lock(shared_->mutex);
    open = shared_->open;
    shared_->stopped = true;
    shared_->changed.notify_all();
  }
  for (const auto& request : open) finish(*request, KvStoreMiss::kCancelled);
  // Here, as the last owner may otherwise be one of these threads, which cannot wait for itself.
  const std::vector<std::unique_ptr<TierWorkers>> ending = [this] {
    const std::lock_guard lock(shared_->mutex);
    return std::move(shared_->threads);
  }();
}

void TierLookup::start(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done) {
  TiersCore& core = *shared_->core;
  auto request = std::make_shared<Request>();
  request->keys = std::move(keys);
  request->exact_only = exact_only;
  request->done = std::move(done);
  request->begin = steady_seconds();
  request->deadline = request->begin + core.options.match_seconds;
  request->match.ttl_seconds = std::numeric_limits<double>::infinity();
  {
    const std::lock_guard lock(core.mutex);
    ++core.stats.matches;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    std::erase_if(shared_->open, [](const auto& other) {
      const std::lock_guard inner(other->mutex);
      return other->finished;
    });
    shared_->open.push_back(request);
  }
  timer_.post([shared = shared_, request] {
    std::unique_lock lock(shared->mutex);
    shared->changed.wait_until(lock, steady_point(request->deadline), [&] {
      const std::lock_guard inner(request->mutex);
      return shared->stopped || request->finished;
    });
    lock.unlock();
    expire(*shared, *request);
  });
  ask(shared_, request, 0);
}

void TierLookup::finish(Request& request, KvStoreMiss reason) {
  std::function<void(KvTierMatch)> done;
  KvTierMatch match;
  {
    const std::lock_guard lock(request.mutex);
    if (std::exchange(request.finished, true)) return;
    request.stop.request_stop();
    match = request.match;
    done = std::move(request.done);
  }
  match.reason = reason;
  if (match.pages == 0) match.ttl_seconds = 0;
  match.seconds = steady_seconds() - request.begin;
  done(std::move(match));
}

void TierLookup::expire(Shared& shared, Request& request) {
  {
    const std::lock_guard lock(request.mutex);
    if (request.finished) return;
    shared.core->tiers[request.tier]->missed_limit();
  }
  {
    const std::lock_guard lock(shared.core->mutex);
    ++shared.core->stats.matches_late;
  }
  finish(request, KvStoreMiss::kSlow);
}

/// Asks tier after tier for the keys that none has given yet, beginning with the fastest again after each success.
void TierLookup::ask(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Request>& request, size_t tier) {
  TiersCore& core = *shared->core;
  bool over = false;
  KvStoreMiss reason = KvStoreMiss::kNone;
  {
    const std::lock_guard lock(request->mutex);
    if (request->finished) return;
    for (; tier < core.tiers.size() && !core.available(tier); ++tier) request->match.reason = KvStoreMiss::kUnavailable;
    const bool complete = request->match.pages == static_cast<int64_t>(request->keys.size());
    over = complete || tier == core.tiers.size();
    if (!complete) reason = request->match.reason;
    if (!over) request->tier = tier;
  }
  if (over) {
    finish(*request, reason);
    shared->changed.notify_all();
    return;
  }
  const std::lock_guard lock(shared->mutex);
  if (shared->stopped) return;
  shared->threads[tier]->post([shared, request, tier] { look_up(shared, request, tier); });
}

/// Pages that `index` has, apart from those that are in memory too, further behind what the host's own match found.
void TierLookup::append_runs(TiersCore& core, Request& request, std::span<const PrefixKey> found, size_t index) {
  const bool ask_host = index > 0 && core.tiers[0]->in_memory;
  std::vector<KvTierMatch::Run>& runs = request.match.runs;
  for (const PrefixKey& key : found) {
    const bool in_host = ask_host && core.tiers[0]->store->match({&key, 1}, request.exact_only, core.now(), {}).pages == 1;
    const size_t tier = in_host ? 0 : index;
    if (runs.empty() || runs.back().tier != tier) runs.push_back({.tier = tier, .pages = 0});
    ++runs.back().pages;
  }
}

void TierLookup::look_up(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Request>& request, size_t index) {
  TiersCore& core = *shared->core;
  TierState& tier = *core.tiers[index];
  const auto keys = std::span(request->keys).subspan(static_cast<size_t>(request->match.pages));
  const KvStoreMatch found = tier.store->match(keys, request->exact_only, core.now(), request->stop.get_token());
  tier.answered();
  {
    const std::lock_guard lock(tier.mutex);
    ++tier.stats.matches;
    tier.stats.matched_pages += found.pages;
    ++tier.stats.match_misses[static_cast<size_t>(found.reason)];
  }
  {
    const std::lock_guard lock(request->mutex);
    if (request->finished) return;
    append_runs(core, *request, keys.first(static_cast<size_t>(found.pages)), index);
    request->match.pages += found.pages;
    request->match.exact = request->match.exact && (found.pages == 0 || found.exact);
    request->match.ttl_seconds =
        std::min(request->match.ttl_seconds, found.pages > 0 ? found.ttl_seconds : std::numeric_limits<double>::infinity());
    if (found.reason != KvStoreMiss::kNone) request->match.reason = found.reason;
  }
  ask(shared, request, found.pages > 0 && index > 0 ? 0 : index + 1);
}

}  // namespace deepinfer
