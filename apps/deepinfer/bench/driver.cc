#include "driver.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace deepinfer::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Submitting goes on in pieces, so that outputs are not kept waiting by it.
constexpr int64_t kSubmitAtOnce = 32;
constexpr double kTick = 0.1;
constexpr double kCancelPatience = 30;

/// Which requests have news. Callbacks of the engine's threads share it with the driver, and may outlive the run.
class NewsList {
 public:
  void add(int64_t request) {
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(request);
    }
    changed_.notify_one();
  }

  void take(std::vector<int64_t>& into, double wait) {
    into.clear();
    std::unique_lock lock(mutex_);
    if (ready_.empty() && wait > 0) changed_.wait_for(lock, std::chrono::duration<double>(wait), [&] { return !ready_.empty(); });
    into.swap(ready_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> ready_;
};

struct InFlight {
  RequestHandle handle;
  RequestMeter meter;
  std::shared_ptr<std::atomic<bool>> listed;  ///< in the news list: once is enough
};

class Driver {
 public:
  Driver(Engine& engine, const std::vector<PlannedRequest>& requests, const RequestSettings& settings,
         const DriverOptions& options)
      : engine_(engine), requests_(requests), settings_(settings), options_(options) {
    // References to records are kept while requests run.
    out_.requests.reserve(requests.size());
  }

  RunRecord run() {
    out_.before = engine_.stats();
    out_.min_pages_free = out_.before.pages_free;
    start_ = Clock::now();
    double patience_ends = 0;
    while (!finished()) {
      const double now = seconds();
      if (!stopping_ && should_stop(now)) {
        stopping_ = true;
        patience_ends = now + kCancelPatience;
        for (auto& [index, request] : in_flight_) request.handle.cancel();
      }
      if (stopping_ && now > patience_ends) break;
      const bool more_to_submit = submit_due(now);
      news_->take(ready_, more_to_submit ? 0 : wait_time());
      for (const int64_t index : ready_) read(index);
      tick();
    }
    return finish();
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool finished() const { return in_flight_.empty() && (stopping_ || next_ == requests_.size()); }

  bool should_stop(double now) {
    if (options_.stop && now - last_stop_check_ >= kTick / 2) {
      last_stop_check_ = now;
      out_.stopped = options_.stop();
    }
    out_.timed_out = now >= options_.duration;
    return out_.stopped || out_.timed_out;
  }

  bool may_submit(double now) const {
    if (stopping_ || next_ == requests_.size() || requests_[next_].arrival > now) return false;
    return options_.max_in_flight == 0 || static_cast<int64_t>(in_flight_.size()) < options_.max_in_flight;
  }

  /// True if there is more that is due.
  bool submit_due(double now) {
    for (int64_t i = 0; i < kSubmitAtOnce && may_submit(now); ++i) submit_next();
    return may_submit(now);
  }

  void submit_next() {
    const PlannedRequest& planned = requests_[next_];
    const auto index = static_cast<int64_t>(next_++);
    Request request;
    request.prompt = planned.prompt;
    request.sampling = settings_.sampling;
    request.seed = planned.seed;
    request.max_tokens = planned.output_len;
    request.n = settings_.n;
    request.ignore_eos = settings_.ignore_eos;
    request.detokenize = false;
    request.cache_class = planned.cache_class;
    request.priority = settings_.priority;

    RequestRecord& record = out_.requests.emplace_back();
    record.index = index;
    record.planned = planned.arrival;
    record.prompt_tokens = static_cast<int64_t>(planned.prompt.size());
    record.cache_class = planned.cache_class;
    record.submitted = seconds();
    if (planned.arrival > 0) out_.max_submit_delay = std::max(out_.max_submit_delay, record.submitted - planned.arrival);
    auto handle = engine_.submit(std::move(request));
    if (!handle) {
      record.outcome = Outcome::kFailed;
      record.error = handle.error().message();
      record.finished = seconds();
      return;
    }
    auto listed = std::make_shared<std::atomic<bool>>(false);
    const auto [at, added] =
        in_flight_.try_emplace(index, InFlight{*handle, RequestMeter(&record, settings_.n, &out_.inter_token_times), listed});
    out_.peak_in_flight = std::max(out_.peak_in_flight, static_cast<int64_t>(in_flight_.size()));
    at->second.handle.set_callback([news = news_, listed, index] {
      if (!listed->exchange(true)) news->add(index);
    });
  }

  double wait_time() const {
    double wait = kTick;
    const double now = seconds();
    if (!stopping_ && next_ < requests_.size() &&
        (options_.max_in_flight == 0 || static_cast<int64_t>(in_flight_.size()) < options_.max_in_flight)) {
      wait = std::min(wait, requests_[next_].arrival - now);
    }
    if (!stopping_) wait = std::min(wait, options_.duration - now);
    return std::max(wait, 0.0);
  }

  void read(int64_t index) {
    const auto at = in_flight_.find(index);
    if (at == in_flight_.end()) return;
    InFlight& request = at->second;
    // Before reading: news from now on list the request again.
    request.listed->store(false);
    while (const std::optional<Output> output = request.handle.poll()) {
      output_tokens_ += static_cast<int64_t>(output->tokens.size());
      request.meter.add(*output, seconds());
    }
    if (request.meter.done()) in_flight_.erase(at);
  }

  void tick() {
    const double now = seconds();
    if (now - last_tick_ < kTick) return;
    last_tick_ = now;
    const EngineStats stats = engine_.stats();
    out_.peak_running = std::max(out_.peak_running, stats.running);
    out_.peak_waiting = std::max(out_.peak_waiting, stats.waiting);
    out_.min_pages_free = std::min(out_.min_pages_free, stats.pages_free);
    if (now - window_start_ >= 1) {
      rate_ = static_cast<double>(output_tokens_ - window_tokens_) / (now - window_start_);
      window_start_ = now;
      window_tokens_ = output_tokens_;
    }
    if (!options_.progress) return;
    const auto running = static_cast<int64_t>(in_flight_.size());
    options_.progress({static_cast<int64_t>(next_) - running, static_cast<int64_t>(requests_.size()), running, output_tokens_,
                       now, rate_ > 0 ? rate_ : static_cast<double>(output_tokens_) / now});
  }

  RunRecord finish() {
    out_.not_submitted = static_cast<int64_t>(requests_.size() - next_);
    out_.seconds = seconds();
    out_.after = engine_.stats();
    out_.peak_running = std::max(out_.peak_running, out_.after.running);
    out_.min_pages_free = std::min(out_.min_pages_free, out_.after.pages_free);
    return std::move(out_);
  }

  Engine& engine_;
  const std::vector<PlannedRequest>& requests_;
  const RequestSettings& settings_;
  const DriverOptions& options_;
  RunRecord out_;
  Clock::time_point start_;
  std::shared_ptr<NewsList> news_ = std::make_shared<NewsList>();
  std::unordered_map<int64_t, InFlight> in_flight_;
  std::vector<int64_t> ready_;
  size_t next_ = 0;
  bool stopping_ = false;
  int64_t output_tokens_ = 0;
  int64_t window_tokens_ = 0;
  double last_stop_check_ = -1, last_tick_ = 0, window_start_ = 0, rate_ = 0;
};

}  // namespace

std::string_view outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

RequestMeter::RequestMeter(RequestRecord* record, int64_t choices, std::vector<float>* inter_token_times)
    : record_(record), inter_token_times_(inter_token_times), choices_(static_cast<size_t>(choices)), open_choices_(choices) {}

void RequestMeter::add(const Output& output, double now) {
  if (output.index < 0 || output.index >= static_cast<int64_t>(choices_.size())) return;
  Choice& choice = choices_[static_cast<size_t>(output.index)];
  const auto count = static_cast<int64_t>(output.tokens.size());
  if (count > 0) {
    if (choice.tokens == 0) {
      choice.first = now;
      if (!(record_->first_token <= now)) record_->first_token = now;
    } else {
      const auto each = static_cast<float>((now - choice.last) / static_cast<double>(count));
      inter_token_times_->insert(inter_token_times_->end(), static_cast<size_t>(count), each);
      choice.timed_tokens += count;
    }
    choice.last = now;
    choice.tokens += count;
    record_->output_tokens += count;
  }
  record_->usage = output.usage;
  if (!output.error.ok()) record_->error = output.error.message();
  if (!output.finish.has_value() || choice.ended) return;
  choice.ended = true;
  --open_choices_;
  // What ended badly decides about the request.
  if (!record_->finish.has_value() || *output.finish > *record_->finish) record_->finish = output.finish;
  if (open_choices_ == 0) {
    record_->finished = now;
    settle();
  }
}

void RequestMeter::settle() {
  switch (*record_->finish) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      record_->outcome = Outcome::kCompleted;
      break;
    case FinishReason::kCancelled:
      record_->outcome = Outcome::kCancelled;
      break;
    case FinishReason::kDeadline:
    case FinishReason::kError:
      record_->outcome = Outcome::kFailed;
      break;
  }
  double sum = 0;
  int64_t timed = 0;
  for (const Choice& choice : choices_) {
    if (choice.timed_tokens == 0) continue;
    sum += (choice.last - choice.first) / static_cast<double>(choice.timed_tokens);
    ++timed;
  }
  if (timed > 0) record_->tpot = sum / static_cast<double>(timed);
}

RunRecord run_workload(Engine& engine, const std::vector<PlannedRequest>& requests, const RequestSettings& settings,
                       const DriverOptions& options) {
  return Driver(engine, requests, settings, options).run();
}

}  // namespace deepinfer::bench
