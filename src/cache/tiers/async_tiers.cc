#include "cache/tiers/async_tiers.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>

namespace deepinfer {
namespace {

using SteadyClock = std::chrono::steady_clock;

double steady_now() { return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count(); }
double wall_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }
SteadyClock::time_point at(double seconds) {
  return SteadyClock::time_point(std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds)));
}

/// Threads that may hang in a store for good. They own what they use, so whoever made them need not wait for them.
class Workers {
 public:
  explicit Workers(int64_t threads) : state_(std::make_shared<State>()) {
    state_->alive = threads;
    for (int64_t i = 0; i < threads; ++i) std::thread(&Workers::run, state_).detach();
  }
  ~Workers() {
    std::unique_lock lock(state_->mutex);
    state_->stopped = true;
    state_->jobs.clear();
    state_->changed.notify_all();
    state_->changed.wait_for(lock, std::chrono::seconds(2), [this] { return state_->alive == 0; });
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void post(std::function<void()> job) {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopped) return;
    state_->jobs.push_back(std::move(job));
    state_->changed.notify_one();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;
    int64_t alive = 0;
    bool stopped = false;
  };
  static void run(const std::shared_ptr<State>& state) {
    std::unique_lock lock(state->mutex);
    for (;;) {
      state->changed.wait(lock, [&] { return state->stopped || !state->jobs.empty(); });
      if (state->stopped) break;
      std::function<void()> job = std::move(state->jobs.front());
      state->jobs.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
    --state->alive;
    state->changed.notify_all();
  }
  std::shared_ptr<State> state_;
};

/// A page that waits to be written; the tiers share the copy.
struct QueuedPage {
  KvStoreWrite write;
  std::vector<uint8_t> bytes;
};

struct Tier {
  std::shared_ptr<KvStore> store;
  bool in_memory = false;
  std::mutex mutex;  ///< of everything below
  std::condition_variable drained;
  KvTierStats stats;
  double aside_until = 0;
  double backoff = 1;
  std::deque<std::shared_ptr<const QueuedPage>> queue;
  int64_t queued_bytes = 0;
  bool writing = false;
  double may_write_at = 0;

  bool available() {
    const std::lock_guard lock(mutex);
    return steady_now() >= aside_until;
  }
  void missed_limit() {
    const std::lock_guard lock(mutex);
    const double now = steady_now();
    if (now < aside_until) return;
    ++stats.outages;
    aside_until = now + backoff;
    backoff = std::min(backoff * 2, 60.0);
  }
  void answered() {
    const std::lock_guard lock(mutex);
    aside_until = 0;
    backoff = 1;
  }
};

/// What outlives the facade while a thread hangs.
struct Core {
  KvPageShape shape;
  AsyncTiersOptions options;
  std::vector<std::unique_ptr<Tier>> tiers;
  std::stop_source stop;
  std::mutex mutex;
  KvTiersStats stats;  ///< without its tiers

  double recompute_seconds(int64_t pages) const {
    return static_cast<double>(pages * options.page_positions) * options.prefill_seconds_per_token;
  }
};

struct MatchRequest {
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

class Pull : public KvPull {
 public:
  struct State {
    std::shared_ptr<Core> core;
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
    int64_t first_missing = 0;
    Result result;

    /// With the lock held: the pull ends here, whatever threads still do; they won't write to the pages any more.
    void finish(std::unique_lock<std::mutex>& lock) {
      if (over) return;
      over = true;
      changed.wait(lock, [this] { return copying == 0; });
      result.end = steady_now();
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
    void fail(int64_t page, KvStoreMiss miss) {
      if (!failed || page < first_missing) {
        first_missing = page;
        result.miss = miss;
      }
      failed = true;
      changed.notify_all();
    }
    void expire(std::unique_lock<std::mutex>& lock) {
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
    bool finished = false;
  };

  explicit Pull(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Pull() override { cancel(); }

  bool wait(int64_t group) override {
    State& s = *state_;
    std::unique_lock lock(s.mutex);
    const auto ready = [&] { return s.failed || s.finished || s.left[static_cast<size_t>(group)] == 0; };
    if (!s.changed.wait_until(lock, at(s.deadline), ready)) s.expire(lock);
    return s.left[static_cast<size_t>(group)] == 0 && !s.failed;
  }
  bool done() const override {
    std::unique_lock lock(state_->mutex);
    if (!state_->finished && !state_->over && steady_now() > state_->deadline) state_->expire(lock);
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
  std::shared_ptr<State> state_;
};

/// Reads `group` of pages [begin, end), all of one tier, and hands them over if the pull still wants them.
void read_pages(Pull::State& s, int64_t group, int64_t begin, int64_t end) {
  Tier& tier = *s.core->tiers[s.tier_of[static_cast<size_t>(begin)]];
  const auto bytes = static_cast<size_t>(s.core->shape.group_bytes[static_cast<size_t>(group)]);
  {
    std::unique_lock lock(s.mutex);
    if (s.failed) end = std::min(end, s.first_missing);
    if (s.over) end = begin;
  }
  // Not into the pages themselves: should the store hang, they would be somebody else's by the time it writes.
  std::vector<uint8_t> rows(static_cast<size_t>(std::max<int64_t>(end - begin, 0)) * bytes);
  std::vector<KvStoreRead> reads;
  for (int64_t page = begin; page < end; ++page) {
    reads.push_back({.key = s.keys[static_cast<size_t>(page)],
                     .group = group,
                     .into = std::span(rows).subspan(static_cast<size_t>(page - begin) * bytes, bytes),
                     .exact_only = s.match.exact});
  }
  const double start = steady_now();
  if (!reads.empty()) tier.store->read(reads, wall_now(), s.stop.get_token());
  const double seconds = steady_now() - start;
  {
    const std::lock_guard lock(tier.mutex);
    tier.stats.read_seconds += seconds;
    for (const KvStoreRead& read : reads) {
      if (read.miss == KvStoreMiss::kNone) {
        tier.stats.bytes_read += static_cast<int64_t>(bytes);
      } else {
        ++tier.stats.read_misses[static_cast<size_t>(read.miss)];
      }
    }
  }
  std::unique_lock lock(s.mutex);
  --s.jobs;
  if (!s.over) {
    ++s.copying;
    lock.unlock();
    const int64_t offset = s.core->shape.group_offset(group);
    for (size_t i = 0; i < reads.size(); ++i) {
      if (reads[i].miss == KvStoreMiss::kNone) {
        std::memcpy(s.pages[static_cast<size_t>(begin) + i] + offset, reads[i].into.data(), bytes);
      }
    }
    lock.lock();
    --s.copying;
    for (size_t i = 0; i < reads.size(); ++i) {
      if (reads[i].miss != KvStoreMiss::kNone) {
        s.fail(begin + static_cast<int64_t>(i), reads[i].miss);
        continue;
      }
      --s.left[static_cast<size_t>(group)];
      if (++s.arrived[static_cast<size_t>(begin) + i] == static_cast<int64_t>(s.left.size())) {
        const std::lock_guard counting(tier.mutex);
        ++tier.stats.pages_read;
      }
    }
    s.changed.notify_all();
    if (s.jobs == 0) s.finish(lock);
  }
}

class AsyncTiers : public KvTiers {
 public:
  explicit AsyncTiers(std::shared_ptr<Core> core) : core_(std::move(core)), timer_(1) {
    for (size_t i = 0; i < core_->tiers.size(); ++i) {
      readers_.push_back(std::make_unique<Workers>(core_->options.read_threads));
      lookups_.push_back(std::make_shared<Workers>(1));
      writers_.push_back(std::make_unique<Workers>(1));
    }
  }
  ~AsyncTiers() override {
    core_->stop.request_stop();
    std::vector<std::shared_ptr<MatchRequest>> open;
    {
      const std::lock_guard lock(pending_->mutex);
      open = pending_->requests;
      pending_->stopped = true;
      pending_->changed.notify_all();
    }
    for (const auto& request : open) finish(*request, KvStoreMiss::kCancelled);
  }

  std::vector<std::string_view> tier_names() const override {
    std::vector<std::string_view> names;
    for (const auto& tier : core_->tiers) names.push_back(tier->store->tier());
    return names;
  }
  const KvPageShape& shape() const override { return core_->shape; }

  void match(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done) override {
    auto request = std::make_shared<MatchRequest>();
    request->keys = std::move(keys);
    request->exact_only = exact_only;
    request->done = std::move(done);
    request->begin = steady_now();
    request->deadline = request->begin + core_->options.match_seconds;
    request->match.ttl_seconds = std::numeric_limits<double>::infinity();
    {
      const std::lock_guard lock(core_->mutex);
      ++core_->stats.matches;
    }
    {
      const std::lock_guard lock(pending_->mutex);
      std::erase_if(pending_->requests, [](const auto& other) {
        const std::lock_guard inner(other->mutex);
        return other->finished;
      });
      pending_->requests.push_back(request);
    }
    timer_.post([core = core_, request, pending = pending_] {
      std::unique_lock lock(pending->mutex);
      pending->changed.wait_until(lock, at(request->deadline), [&] {
        const std::lock_guard inner(request->mutex);
        return pending->stopped || request->finished;
      });
      lock.unlock();
      expire(*core, *request);
    });
    ask(core_, lookups_, pending_, request, 0);
  }

  std::unique_ptr<KvPull> pull(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages) override {
    auto s = std::make_shared<Pull::State>();
    s->core = core_;
    s->match = match;
    s->keys = std::move(keys);
    s->pages = std::move(pages);
    DI_CHECK(match.pages <= static_cast<int64_t>(std::min(s->keys.size(), s->pages.size())), "{} pages to pull, {} keys",
             match.pages, s->keys.size());
    double limit = core_->options.pull_seconds;
    if (const double compute = core_->recompute_seconds(match.pages); compute > 0) limit = std::min(limit, compute);
    s->result.begin = steady_now();
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
    constexpr int64_t kBatch = 16;
    struct Job {
      int64_t group, begin, end;
    };
    std::vector<Job> jobs;
    for (size_t group = 0; group < groups; ++group) {
      int64_t begin = 0;
      for (const KvTierMatch::Run& run : match.runs) {
        for (const int64_t end = begin + run.pages; begin < end; begin += std::min(kBatch, end - begin)) {
          jobs.push_back({static_cast<int64_t>(group), begin, std::min(begin + kBatch, end)});
        }
      }
    }
    s->jobs = static_cast<int64_t>(jobs.size());
    for (const Job& job : jobs) {
      readers_[s->tier_of[static_cast<size_t>(job.begin)]]->post([s, job] { read_pages(*s, job.group, job.begin, job.end); });
    }
    if (jobs.empty()) {
      std::unique_lock lock(s->mutex);
      s->finish(lock);
    }
    return std::make_unique<Pull>(std::move(s));
  }

  void write_back(const KvStoreWrite& page) override {
    {
      const std::lock_guard lock(core_->mutex);
      if (!core_->options.writes_class[static_cast<size_t>(page.cache_class)]) {
        ++core_->stats.pages_filtered;
        return;
      }
      ++core_->stats.pages_retained;
    }
    auto copy = std::make_shared<QueuedPage>();
    copy->bytes.assign(page.page.begin(), page.page.end());
    copy->write = page;
    copy->write.page = copy->bytes;
    for (size_t i = 0; i < core_->tiers.size(); ++i) {
      Tier& tier = *core_->tiers[i];
      const auto bytes = static_cast<int64_t>(copy->bytes.size());
      const std::lock_guard lock(tier.mutex);
      if (tier.queued_bytes + bytes > core_->options.write_queue_bytes || steady_now() < tier.aside_until) {
        ++tier.stats.pages_dropped;
        continue;
      }
      tier.queue.push_back(copy);
      tier.queued_bytes += bytes;
      if (!std::exchange(tier.writing, true)) writers_[i]->post([core = core_, i] { write_queue(*core, *core->tiers[i]); });
    }
  }

  void flush() override {
    for (const auto& tier : core_->tiers) {
      std::unique_lock lock(tier->mutex);
      int64_t before = -1;
      // As long as something moves; a store that hangs is given up.
      while (tier->writing && tier->stats.pages_written + tier->stats.write_errors != before) {
        before = tier->stats.pages_written + tier->stats.write_errors;
        tier->drained.wait_for(lock, std::chrono::seconds(10), [&] { return !tier->writing; });
      }
    }
  }

  KvTiersStats stats() const override {
    KvTiersStats stats;
    {
      const std::lock_guard lock(core_->mutex);
      stats = core_->stats;
    }
    for (const auto& tier : core_->tiers) {
      const std::lock_guard lock(tier->mutex);
      stats.tiers.push_back(tier->stats);
      stats.tiers.back().name = tier->store->tier();
      stats.tiers.back().pages = tier->store->pages();
      stats.tiers.back().available = steady_now() >= tier->aside_until;
      stats.pages_queued += static_cast<int64_t>(tier->queue.size());
    }
    return stats;
  }

 private:
  struct Pending {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::shared_ptr<MatchRequest>> requests;
    bool stopped = false;
  };
  using Lookups = std::vector<std::shared_ptr<Workers>>;

  static void finish(MatchRequest& request, KvStoreMiss reason) {
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
    match.seconds = steady_now() - request.begin;
    done(std::move(match));
  }
  static void expire(Core& core, MatchRequest& request) {
    {
      const std::lock_guard lock(request.mutex);
      if (request.finished) return;
      core.tiers[request.tier]->missed_limit();
    }
    {
      const std::lock_guard lock(core.mutex);
      ++core.stats.matches_late;
    }
    finish(request, KvStoreMiss::kSlow);
  }

  /// Asks tier after tier for the keys that none has given yet, beginning with the fastest again after each success.
  static void ask(const std::shared_ptr<Core>& core, const Lookups& lookups, const std::shared_ptr<Pending>& pending,
                  const std::shared_ptr<MatchRequest>& request, size_t tier) {
    bool over = false;
    KvStoreMiss reason = KvStoreMiss::kNone;
    {
      const std::lock_guard lock(request->mutex);
      if (request->finished) return;
      for (; tier < core->tiers.size() && !core->tiers[tier]->available(); ++tier) {
        request->match.reason = KvStoreMiss::kUnavailable;
      }
      const bool complete = request->match.pages == static_cast<int64_t>(request->keys.size());
      over = complete || tier == core->tiers.size();
      if (!complete) reason = request->match.reason;
      if (!over) request->tier = tier;
    }
    if (over) {
      finish(*request, reason);
      pending->changed.notify_all();
      return;
    }
    lookups[tier]->post([core, lookups, pending, request, tier] { look_up(core, lookups, pending, request, tier); });
  }

  /// Pages that `index` has, apart from those that are in memory too, further behind what the host's own match found.
  static void append_runs(Core& core, MatchRequest& request, std::span<const PrefixKey> found, size_t index) {
    const bool ask_host = index > 0 && core.tiers[0]->in_memory;
    std::vector<KvTierMatch::Run>& runs = request.match.runs;
    for (const PrefixKey& key : found) {
      const bool in_host = ask_host && core.tiers[0]->store->match({&key, 1}, request.exact_only, wall_now(), {}).pages == 1;
      const size_t tier = in_host ? 0 : index;
      if (runs.empty() || runs.back().tier != tier) runs.push_back({.tier = tier, .pages = 0});
      ++runs.back().pages;
    }
  }

  static void look_up(const std::shared_ptr<Core>& core, const Lookups& lookups, const std::shared_ptr<Pending>& pending,
                      const std::shared_ptr<MatchRequest>& request, size_t index) {
    Tier& tier = *core->tiers[index];
    const auto keys = std::span(request->keys).subspan(static_cast<size_t>(request->match.pages));
    const KvStoreMatch found = tier.store->match(keys, request->exact_only, wall_now(), request->stop.get_token());
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
      append_runs(*core, *request, keys.first(static_cast<size_t>(found.pages)), index);
      request->match.pages += found.pages;
      request->match.exact = request->match.exact && (found.pages == 0 || found.exact);
      request->match.ttl_seconds =
          std::min(request->match.ttl_seconds, found.pages > 0 ? found.ttl_seconds : std::numeric_limits<double>::infinity());
      if (found.reason != KvStoreMiss::kNone) request->match.reason = found.reason;
    }
    ask(core, lookups, pending, request, found.pages > 0 && index > 0 ? 0 : index + 1);
  }

  static void write_queue(Core& core, Tier& tier) {
    constexpr size_t kBatch = 32;
    const std::stop_token stop = core.stop.get_token();
    for (;;) {
      std::vector<std::shared_ptr<const QueuedPage>> batch;
      std::vector<KvStoreWrite> writes;
      int64_t bytes = 0;
      {
        std::unique_lock lock(tier.mutex);
        if (stop.stop_requested() || tier.queue.empty()) {
          tier.writing = false;
          tier.drained.notify_all();
          return;
        }
        while (!tier.queue.empty() && batch.size() < kBatch) {
          batch.push_back(std::move(tier.queue.front()));
          tier.queue.pop_front();
        }
        for (const auto& page : batch) {
          writes.push_back(page->write);
          bytes += static_cast<int64_t>(page->bytes.size());
        }
        if (!tier.in_memory) {
          while (!stop.stop_requested() && steady_now() < tier.may_write_at) {
            tier.drained.wait_until(lock, at(std::min(tier.may_write_at, steady_now() + 0.1)));
          }
          tier.may_write_at =
              std::max(tier.may_write_at, steady_now()) + static_cast<double>(bytes) / core.options.write_bytes_per_second;
        }
      }
      const Status status = tier.store->write(writes, wall_now(), stop);
      const std::lock_guard lock(tier.mutex);
      tier.queued_bytes -= bytes;
      if (status.ok()) {
        tier.stats.pages_written += static_cast<int64_t>(batch.size());
        tier.stats.bytes_written += bytes;
      } else {
        ++tier.stats.write_errors;
        tier.stats.last_error = status.message();
      }
    }
  }

  std::shared_ptr<Core> core_;
  std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();
  Workers timer_;
  std::vector<std::unique_ptr<Workers>> readers_, writers_;
  Lookups lookups_;
};

}  // namespace

Status AsyncTiersOptions::validate() const {
  // Written so that a NaN is refused.
  if (!(match_seconds > 0 && match_seconds <= 60))
    return Status::OutOfRange("match_seconds: {}, must be above 0, at most 60", match_seconds);
  if (!(pull_seconds > 0 && pull_seconds <= 3600))
    return Status::OutOfRange("pull_seconds: {}, must be above 0, at most 3600", pull_seconds);
  if (!(prefill_seconds_per_token >= 0))
    return Status::OutOfRange("prefill_seconds_per_token: {}, must be at least 0", prefill_seconds_per_token);
  if (page_positions < 1) return Status::OutOfRange("page_positions: {}, must be at least 1", page_positions);
  if (read_threads < 1 || read_threads > 256) return Status::OutOfRange("read_threads: {}, must be from 1 to 256", read_threads);
  if (write_queue_bytes < 0) return Status::OutOfRange("write_queue_bytes: {}, must be at least 0", write_queue_bytes);
  if (!(write_bytes_per_second > 0))
    return Status::OutOfRange("write_bytes_per_second: {}, must be above 0", write_bytes_per_second);
  return Status::Ok();
}

Result<std::unique_ptr<KvTiers>> make_async_tiers(const KvPageShape& shape, std::vector<std::shared_ptr<KvStore>> stores,
                                                  const AsyncTiersOptions& options) {
  DI_RETURN_IF_ERROR(options.validate());
  auto core = std::make_shared<Core>();
  core->shape = shape;
  core->options = options;
  for (std::shared_ptr<KvStore>& store : stores) {
    auto tier = std::make_unique<Tier>();
    tier->in_memory = store->tier() == "host";
    tier->store = std::move(store);
    core->tiers.push_back(std::move(tier));
  }
  return std::unique_ptr<KvTiers>(std::make_unique<AsyncTiers>(std::move(core)));
}

}  // namespace deepinfer
