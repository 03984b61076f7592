#include "cache/tiers/tier_reader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>

namespace deepinfer {
namespace {

/// What the pull and the threads that read for it share.
struct PullState {
  std::shared_ptr<TiersCore> core;
  KvTierMatch match;
  std::vector<PrefixKey> keys;
  std::vector<uint8_t*> pages;
  double deadline = 0;
  std::stop_source stop;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int64_t> left;     ///< [groups] pages yet to come
  std::vector<int64_t> arrived;  ///< [pages] groups that came
  std::vector<size_t> tier_of;   ///< [pages]
  int64_t jobs = 0;              ///< not over yet
  int64_t copying = 0;           ///< threads that write to `pages` now
  bool failed = false;           ///< something won't come
  bool over = false;
  bool finished = false;
  int64_t first_missing = 0;
  KvPull::Result result;
  std::vector<double> first_arrival, last_arrival;  ///< [tiers] on the steady clock; 0: nothing yet
  std::vector<int64_t> bytes_arrived;               ///< [tiers]
  std::function<void()> promote;                    ///< to be called once when everything has come

  // With the lock held:
  /// The pull ends here, whatever threads still do; they won't write to the pages any more.
  void finish(std::unique_lock<std::mutex>& lock);
  void fail(int64_t page, KvStoreMiss miss);
  /// Its time is over.
  void expire(std::unique_lock<std::mutex>& lock);
  void note_arrival(size_t tier, int64_t bytes);
  void measure() const;
};

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
  changed.notify_all();
  if (result.good_pages == match.pages) {
    measure();
    if (promote) promote();
    return;
  }
  const std::lock_guard counting(core->mutex);
  ++core->stats.pulls_failed;
}

void PullState::note_arrival(size_t tier, int64_t bytes) {
  last_arrival[tier] = steady_seconds();
  if (first_arrival[tier] == 0) first_arrival[tier] = last_arrival[tier];
  bytes_arrived[tier] += bytes;
}

void PullState::measure() const {
  for (size_t tier = 0; tier < bytes_arrived.size(); ++tier) {
    if (bytes_arrived[tier] == 0) continue;
    core->tiers[tier]->measured(bytes_arrived[tier], last_arrival[tier] - result.begin, first_arrival[tier] - result.begin);
  }
}

void PullState::fail(int64_t page, KvStoreMiss miss) {
  if (!failed || page < first_missing) {
    first_missing = page;
    result.miss = miss;
  }
  failed = true;
  changed.notify_all();
}

void PullState::expire(std::unique_lock<std::mutex>& lock) {
  if (over) return;
  for (size_t page = 0; page < arrived.size(); ++page) {
    if (arrived[page] < static_cast<int64_t>(left.size())) {
      TierState& tier = *core->tiers[tier_of[page]];
      // Slow is one thing: it is known now, and pulls of that size will not be tried. Dead is another.
      if (bytes_arrived[tier_of[page]] == 0) tier.missed_limit();
      tier.measured_at_most(bytes_arrived[tier_of[page]], steady_seconds() - result.begin);
      fail(static_cast<int64_t>(page), KvStoreMiss::kSlow);
      break;
    }
  }
  stop.request_stop();
  {
    const std::lock_guard counting(core->mutex);
    ++core->stats.pulls_late;
  }
  finish(lock);
}

class Pull : public KvPull {
 public:
  explicit Pull(std::shared_ptr<PullState> state) : state_(std::move(state)) {}
  ~Pull() override { cancel(); }

  bool wait(int64_t group) override {
    PullState& s = *state_;
    std::unique_lock lock(s.mutex);
    const auto ready = [&] { return s.failed || s.finished || s.left[static_cast<size_t>(group)] == 0; };
    if (!s.changed.wait_until(lock, steady_point(s.deadline), ready)) s.expire(lock);
    return s.left[static_cast<size_t>(group)] == 0 && !s.failed;
  }
  bool done() const override {
    std::unique_lock lock(state_->mutex);
    if (!state_->finished && !state_->over && steady_seconds() > state_->deadline) state_->expire(lock);
    return state_->finished;
  }
  void cancel() override {
    std::unique_lock lock(state_->mutex);
    state_->stop.request_stop();
    if (!state_->over) {
      if (!state_->failed) state_->fail(0, KvStoreMiss::kCancelled);
      state_->finish(lock);
    }
    state_->changed.wait(lock, [this] { return state_->finished; });
  }
  const Result& result() const override { return state_->result; }

 private:
  std::shared_ptr<PullState> state_;
};

/// Rows of one group that one call of a store reads: pages [begin, end), all of one tier.
struct Job {
  int64_t group, begin, end;
};

/// In the order in which a step needs them: all pages of the first group before any of the second.
std::vector<Job> jobs_of(const KvTierMatch& match, size_t groups) {
  constexpr int64_t kBatch = 16;
  std::vector<Job> jobs;
  for (size_t group = 0; group < groups; ++group) {
    int64_t begin = 0;
    for (const KvTierMatch::Run& run : match.runs) {
      for (const int64_t end = begin + run.pages; begin < end; begin += std::min(kBatch, end - begin)) {
        jobs.push_back({static_cast<int64_t>(group), begin, std::min(begin + kBatch, end)});
      }
    }
  }
  return jobs;
}

void count_reads(TierState& tier, std::span<const KvStoreRead> reads, double seconds) {
  const std::lock_guard lock(tier.mutex);
  tier.stats.read_seconds += seconds;
  for (const KvStoreRead& read : reads) {
    if (read.miss == KvStoreMiss::kNone) {
      tier.stats.bytes_read += static_cast<int64_t>(read.into.size());
    } else {
      ++tier.stats.read_misses[static_cast<size_t>(read.miss)];
    }
  }
}

/// Copies what has come into the pages, if the pull still wants it.
void hand_over(PullState& s, TierState& tier, const Job& job, std::span<const KvStoreRead> reads) {
  std::unique_lock lock(s.mutex);
  --s.jobs;
  if (s.over) return;
  ++s.copying;
  lock.unlock();
  const int64_t offset = s.core->shape.group_offset(job.group);
  for (size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].miss != KvStoreMiss::kNone) continue;
    std::memcpy(s.pages[static_cast<size_t>(job.begin) + i] + offset, reads[i].into.data(), reads[i].into.size());
  }
  lock.lock();
  --s.copying;
  int64_t bytes = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].miss != KvStoreMiss::kNone) {
      s.fail(job.begin + static_cast<int64_t>(i), reads[i].miss);
      continue;
    }
    bytes += static_cast<int64_t>(reads[i].into.size());
    --s.left[static_cast<size_t>(job.group)];
    if (++s.arrived[static_cast<size_t>(job.begin) + i] == static_cast<int64_t>(s.left.size())) {
      const std::lock_guard counting(tier.mutex);
      ++tier.stats.pages_read;
    }
  }
  if (bytes > 0) s.note_arrival(s.tier_of[static_cast<size_t>(job.begin)], bytes);
  s.changed.notify_all();
  if (s.jobs == 0) s.finish(lock);
}

void read_pages(PullState& s, Job job) {
  TierState& tier = *s.core->tiers[s.tier_of[static_cast<size_t>(job.begin)]];
  const auto bytes = static_cast<size_t>(s.core->shape.group_bytes[static_cast<size_t>(job.group)]);
  {
    std::unique_lock lock(s.mutex);
    if (s.failed) job.end = std::min(job.end, s.first_missing);
    if (s.over) job.end = job.begin;
  }
  // Not into the pages themselves: should the store hang, they would be somebody else's by the time it writes.
  std::vector<uint8_t> rows(static_cast<size_t>(std::max<int64_t>(job.end - job.begin, 0)) * bytes);
  std::vector<KvStoreRead> reads;
  for (int64_t page = job.begin; page < job.end; ++page) {
    reads.push_back({.key = s.keys[static_cast<size_t>(page)],
                     .group = job.group,
                     .into = std::span(rows).subspan(static_cast<size_t>(page - job.begin) * bytes, bytes),
                     .exact_only = s.match.exact});
  }
  const double start = steady_seconds();
  if (!reads.empty()) tier.store->read(reads, wall_seconds(), s.stop.get_token());
  count_reads(tier, reads, steady_seconds() - start);
  hand_over(s, tier, job, reads);
}

/// Consecutive pages that a slower tier gave.
struct Promotion {
  std::vector<PrefixKey> keys;
  size_t tier = 0;
  bool exact = true;
};

/// Reads them once more, now that the system has them at hand, and offers them to the faster tiers. Not in the pull itself: who
/// waits for it has nothing of that, and its pages are somebody else's as soon as it is over.
void promote(TiersCore& core, const std::vector<std::shared_ptr<WriteQueue>>& queues, const Promotion& promotion) {
  const KvPageShape& shape = core.shape;
  for (size_t i = 0; i < promotion.keys.size() && !core.stop.stop_requested(); ++i) {
    auto page = std::make_shared<QueuedPage>();
    page->bytes.resize(static_cast<size_t>(shape.page_bytes()));
    std::vector<KvStoreRead> reads;
    for (size_t group = 0; group < shape.group_bytes.size(); ++group) {
      const auto index = static_cast<int64_t>(group);
      reads.push_back(
          {.key = promotion.keys[i],
           .group = index,
           .into = std::span(page->bytes)
                       .subspan(static_cast<size_t>(shape.group_offset(index)), static_cast<size_t>(shape.group_bytes[group])),
           .exact_only = promotion.exact});
    }
    core.tiers[promotion.tier]->store->read(reads, wall_seconds(), core.stop.get_token());
    const auto arrived = [](const KvStoreRead& read) { return read.miss == KvStoreMiss::kNone; };
    if (!std::all_of(reads.begin(), reads.end(), arrived)) return;
    // Of which class it is nobody says here; a use by a higher one lifts it.
    page->write = {.key = promotion.keys[i],
                   .parent = i == 0 ? PrefixKey{} : promotion.keys[i - 1],
                   .cache_class = CacheClass::kChat,
                   .exact = promotion.exact,
                   .page = page->bytes};
    bool taken = false;
    for (size_t tier = 0; tier < promotion.tier; ++tier) taken = queues[tier]->offer(page) || taken;
    if (!taken) return;  // they are busy with pages that are worth more
    const std::lock_guard counting(core.mutex);
    ++core.stats.pages_promoted;
  }
}

}  // namespace

TierReader::TierReader(std::shared_ptr<TiersCore> core, std::vector<std::shared_ptr<WriteQueue>> queues)
    : core_(std::move(core)), queues_(std::make_shared<const std::vector<std::shared_ptr<WriteQueue>>>(std::move(queues))) {
  for (size_t i = 0; i < core_->tiers.size(); ++i) {
    threads_.push_back(std::make_shared<TierWorkers>(core_->options.read_threads));
    promoters_.push_back(std::make_shared<TierWorkers>(1));
  }
}

std::function<void()> TierReader::promotion_of(const KvTierMatch& match, const std::vector<PrefixKey>& keys) const {
  std::vector<Promotion> all;
  size_t begin = 0;
  for (const KvTierMatch::Run& run : match.runs) {
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(begin);
    if (run.tier > 0) all.push_back({.keys = {first, first + run.pages}, .tier = run.tier, .exact = match.exact});
    begin += static_cast<size_t>(run.pages);
  }
  if (all.empty()) return {};
  // By weak references: the last owner of threads must not be one of them.
  std::vector<std::weak_ptr<TierWorkers>> threads(promoters_.begin(), promoters_.end());
  return [core = core_, queues = queues_, threads = std::move(threads), all = std::move(all)] {
    for (const Promotion& one : all) {
      const std::shared_ptr<TierWorkers> thread = threads[one.tier].lock();
      if (thread != nullptr) thread->post([core, queues, one] { promote(*core, *queues, one); });
    }
  };
}

std::unique_ptr<KvPull> TierReader::start(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages) {
  auto s = std::make_shared<PullState>();
  s->core = core_;
  s->match = match;
  s->keys = std::move(keys);
  s->pages = std::move(pages);
  DI_CHECK(match.pages <= static_cast<int64_t>(std::min(s->keys.size(), s->pages.size())), "{} pages to pull, {} keys",
           match.pages, s->keys.size());
  double limit = core_->options.pull_seconds;
  if (const double compute = core_->recompute_seconds(match.pages); compute > 0) limit = std::min(limit, compute);
  s->result.begin = steady_seconds();
  s->deadline = s->result.begin + limit;
  s->result.pages_by_tier.resize(core_->tiers.size());
  s->result.bytes_by_tier.resize(core_->tiers.size());
  const size_t groups = core_->shape.group_bytes.size();
  s->left.assign(groups, match.pages);
  s->arrived.assign(static_cast<size_t>(match.pages), 0);
  s->first_arrival.resize(core_->tiers.size());
  s->last_arrival.resize(core_->tiers.size());
  s->bytes_arrived.resize(core_->tiers.size());
  s->promote = promotion_of(match, s->keys);
  for (const KvTierMatch::Run& run : match.runs) s->tier_of.insert(s->tier_of.end(), static_cast<size_t>(run.pages), run.tier);
  {
    const std::lock_guard lock(core_->mutex);
    ++core_->stats.pulls;
  }
  const std::vector<Job> jobs = jobs_of(match, groups);
  s->jobs = static_cast<int64_t>(jobs.size());
  for (const Job& job : jobs) {
    threads_[s->tier_of[static_cast<size_t>(job.begin)]]->post([s, job] { read_pages(*s, job); });
  }
  if (jobs.empty()) {
    std::unique_lock lock(s->mutex);
    s->finish(lock);
  }
  return std::make_unique<Pull>(std::move(s));
}

}  // namespace deepinfer
