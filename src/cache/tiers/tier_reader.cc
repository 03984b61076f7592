#include "cache/tiers/tier_reader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
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

  // With the lock held:
  /// The pull ends here, whatever threads still do; they won't write to the pages any more.
  void finish(std::unique_lock<std::mutex>& lock);
  void fail(int64_t page, KvStoreMiss miss);
  /// Its time is over.
  void expire(std::unique_lock<std::mutex>& lock);
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
  const std::lock_guard counting(core->mutex);
  if (result.good_pages < match.pages) ++core->stats.pulls_failed;
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

void PullState::expire(std::unique_lock<std::mutex>& lock) {
  if (over) return;
  for (size_t page = 0; page < arrived.size(); ++page) {
    if (arrived[page] < static_cast<int64_t>(left.size())) {
      core->tiers[tier_of[page]]->missed_limit();
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
  for (size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].miss != KvStoreMiss::kNone) {
      s.fail(job.begin + static_cast<int64_t>(i), reads[i].miss);
      continue;
    }
    --s.left[static_cast<size_t>(job.group)];
    if (++s.arrived[static_cast<size_t>(job.begin) + i] == static_cast<int64_t>(s.left.size())) {
      const std::lock_guard counting(tier.mutex);
      ++tier.stats.pages_read;
    }
  }
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

}  // namespace

TierReader::TierReader(std::shared_ptr<TiersCore> core) : core_(std::move(core)) {
  for (size_t i = 0; i < core_->tiers.size(); ++i) threads_.push_back(std::make_unique<TierWorkers>(core_->options.read_threads));
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
