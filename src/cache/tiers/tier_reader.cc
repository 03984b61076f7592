#include "cache/tiers/tier_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "cache/tiers/pull_state.h"

namespace deepinfer {
namespace {

constexpr int64_t kProbePages = 16;
constexpr double kProbeInterval = 1;

class Pull : public KvPull {
 public:
  explicit Pull(std::shared_ptr<PullState> state) : state_(std::move(state)) {}
  ~Pull() override { cancel(); }

  bool wait(int64_t group) override {
    PullState& s = *state_;
    std::unique_lock lock(s.mutex);
    const auto ready = [&] { return s.failed || s.finished || s.left[static_cast<size_t>(group)] == 0; };
    while (!ready()) {
      if (!s.changed.wait_until(lock, steady_point(s.next_check()), ready)) s.check_time(lock);
    }
    return s.left[static_cast<size_t>(group)] == 0 && !s.failed;
  }
  bool done() const override {
    std::unique_lock lock(state_->mutex);
    state_->check_time(lock);
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

/// Keeps whole pages in the host's memory, too.
void promote(PullState& s, std::span<const int64_t> whole) {
  TierState& host = *s.core->tiers[0];
  const auto bytes = static_cast<size_t>(s.core->shape.page_bytes());
  std::vector<KvStoreWrite> writes;
  for (const int64_t page : whole) {
    const auto at = static_cast<size_t>(page);
    // If some pages of the match are inexact, nobody knows here which.
    writes.push_back({.key = s.keys[at],
                      .parent = at > 0 ? s.keys[at - 1] : PrefixKey{},
                      .cache_class = s.terms.cache_class,
                      .exact = s.match.exact,
                      .page = {s.pages[at], bytes}});
  }
  if (!host.store->write(writes, s.core->now(), {}).ok()) return;
  const std::lock_guard counting(s.core->mutex);
  s.core->stats.pages_promoted += static_cast<int64_t>(writes.size());
}

/// Copies what has come into the pages, if the pull still wants it.
void hand_over(PullState& s, size_t tier, const Job& job, std::span<const KvStoreRead> reads) {
  std::unique_lock lock(s.mutex);
  --s.jobs;
  if (s.core->tiers[tier]->in_memory) --s.memory_jobs;
  if (s.over) return;
  ++s.copying;
  lock.unlock();
  const int64_t offset = s.core->shape.group_offset(job.group);
  int64_t bytes = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].miss != KvStoreMiss::kNone) continue;
    std::memcpy(s.pages[static_cast<size_t>(job.begin) + i] + offset, reads[i].into.data(), reads[i].into.size());
    bytes += static_cast<int64_t>(reads[i].into.size());
  }
  lock.lock();
  s.count(tier, bytes);
  int64_t whole = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    const int64_t page = job.begin + static_cast<int64_t>(i);
    if (reads[i].miss != KvStoreMiss::kNone) {
      s.fail(page, reads[i].miss);
      continue;
    }
    --s.left[static_cast<size_t>(job.group)];
    if (++s.arrived[static_cast<size_t>(page)] < static_cast<int64_t>(s.left.size()) || !s.scratch.empty()) continue;
    ++whole;
    if (tier > 0 && s.core->tiers[0]->in_memory) s.to_promote.push_back(page);
  }
  s.changed.notify_all();
  {
    const std::lock_guard counting(s.core->tiers[tier]->mutex);
    s.core->tiers[tier]->stats.pages_read += whole;
  }
  // Not while pages of this pull are still to be read there: they might have to make room.
  if (s.memory_jobs == 0 && !s.to_promote.empty()) {
    const std::vector<int64_t> pages = std::exchange(s.to_promote, {});
    lock.unlock();
    promote(s, pages);
    lock.lock();
  }
  --s.copying;
  s.changed.notify_all();
  if (s.jobs == 0) s.finish(lock);
}

void read_pages(PullState& s, Job job) {
  const size_t tier = s.tier_of[static_cast<size_t>(job.begin)];
  const auto bytes = static_cast<size_t>(s.core->shape.group_bytes[static_cast<size_t>(job.group)]);
  {
    std::unique_lock lock(s.mutex);
    if (s.failed) job.end = std::min(job.end, s.first_missing);
    if (s.over) job.end = job.begin;
  }
  // Not into the pages themselves: should the store hang, they would be somebody else's by the time it writes.
  const auto pages = static_cast<size_t>(std::max<int64_t>(job.end - job.begin, 0));
  const auto rows = std::make_unique_for_overwrite<uint8_t[]>(pages * bytes);
  std::vector<KvStoreRead> reads;
  for (int64_t page = job.begin; page < job.end; ++page) {
    reads.push_back({.key = s.keys[static_cast<size_t>(page)],
                     .group = job.group,
                     .into = {rows.get() + static_cast<size_t>(page - job.begin) * bytes, bytes},
                     .exact_only = s.match.exact});
  }
  const double start = steady_seconds();
  if (!reads.empty()) s.core->tiers[tier]->store->read(reads, s.core->now(), s.stop.get_token());
  count_reads(*s.core->tiers[tier], reads, steady_seconds() - start);
  hand_over(s, tier, job, reads);
}

}  // namespace

TierReader::TierReader(std::shared_ptr<TiersCore> core, std::weak_ptr<TierWriter> writer)
    : core_(std::move(core)), writer_(std::move(writer)), probes_(core_->tiers.size()) {
  for (size_t i = 0; i < core_->tiers.size(); ++i) threads_.push_back(std::make_unique<TierWorkers>(core_->options.read_threads));
}

std::unique_ptr<KvPull> TierReader::start(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                                          const KvPullTerms& terms) {
  DI_CHECK(match.pages <= static_cast<int64_t>(std::min(keys.size(), pages.size())), "{} pages to pull, {} keys", match.pages,
           keys.size());
  const auto state = std::make_shared<PullState>(core_, match, std::move(keys), std::move(pages), terms);
  state->writer = writer_;
  {
    const std::lock_guard lock(core_->mutex);
    ++core_->stats.pulls;
  }
  begin(state);
  return std::make_unique<Pull>(state);
}

void TierReader::begin(const std::shared_ptr<PullState>& state) {
  const std::vector<Job> jobs = jobs_of(state->match, state->left.size());
  state->jobs = static_cast<int64_t>(jobs.size());
  state->memory_jobs = std::count_if(jobs.begin(), jobs.end(), [&](const Job& job) {
    return core_->tiers[state->tier_of[static_cast<size_t>(job.begin)]]->in_memory;
  });
  for (const Job& job : jobs)
    threads_[state->tier_of[static_cast<size_t>(job.begin)]]->post([state, job] { read_pages(*state, job); });
  if (jobs.empty()) {
    std::unique_lock lock(state->mutex);
    state->finish(lock);
  }
}

double TierReader::estimate(const KvTierMatch& match) const {
  std::vector<int64_t> bytes(core_->tiers.size());
  for (const KvTierMatch::Run& run : match.runs) bytes[run.tier] += run.pages * core_->shape.page_bytes();
  double longest = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    TierState& tier = *core_->tiers[i];
    const std::lock_guard lock(tier.mutex);
    double seconds = tier.stats.latency_seconds;
    if (tier.stats.bytes_per_second > 0) seconds += static_cast<double>(bytes[i]) / tier.stats.bytes_per_second;
    longest = std::max(longest, seconds);  // they are read at the same time
  }
  return longest;
}

void TierReader::probe(const KvTierMatch& match, std::span<const PrefixKey> keys) {
  const double now = steady_seconds();
  const auto page_bytes = static_cast<size_t>(core_->shape.page_bytes());
  const std::lock_guard lock(mutex_);
  int64_t first = 0;
  for (const KvTierMatch::Run& run : match.runs) {
    const int64_t from = std::exchange(first, first + run.pages);
    Probe& own = probes_[run.tier];
    if (core_->tiers[run.tier]->in_memory || now < own.next_at) continue;
    if (own.last != nullptr) {
      std::unique_lock last(own.last->mutex);
      own.last->check_time(last);  // nobody else waits for it
      if (!own.last->finished) continue;
    }
    const int64_t pages = std::min(run.pages, kProbePages);
    std::vector<uint8_t> scratch(static_cast<size_t>(pages) * page_bytes);
    std::vector<uint8_t*> into;
    for (int64_t page = 0; page < pages; ++page) into.push_back(scratch.data() + static_cast<size_t>(page) * page_bytes);
    const KvTierMatch part{.runs = {{run.tier, pages}}, .pages = pages, .exact = match.exact};
    const auto of_run = keys.subspan(static_cast<size_t>(from), static_cast<size_t>(pages));
    own.last =
        std::make_shared<PullState>(core_, part, std::vector(of_run.begin(), of_run.end()), std::move(into), KvPullTerms{});
    own.last->scratch = std::move(scratch);
    own.next_at = now + kProbeInterval;
    begin(own.last);
  }
}

}  // namespace deepinfer
