#include "apps/fake_engine.h"

namespace deepinfer::testing {

FakeEngine::FakeEngine(const EngineOptions& options, const FakeBehaviour& behaviour, std::shared_ptr<FakeLog> log)
    : options_(options), behaviour_(behaviour), log_(std::move(log)) {
  stats_.pages_total = stats_.pages_free = 100;
  thread_ = std::thread([this] { loop(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  thread_.join();
}

Result<RequestHandle> FakeEngine::submit(Request request) {
  const std::lock_guard lock(mutex_);
  const RequestId id = next_id_++;
  if (behaviour_.refuse_every > 0 && static_cast<int64_t>(id) % behaviour_.refuse_every == 0)
    return Err(Status::Unavailable("the queue is full"));
  Running running;
  running.stream = std::make_shared<RequestStream>(id, request.n, [this](RequestId which) { cancel(which); });
  running.fails = behaviour_.fail_every > 0 && static_cast<int64_t>(id) % behaviour_.fail_every == 0;
  RequestHandle handle(running.stream);
  {
    const std::lock_guard log_lock(log_->mutex);
    log_->requests.push_back(request);
    log_->max_in_flight = std::max(log_->max_in_flight, static_cast<int64_t>(running_.size()) + 1);
  }
  ++stats_.submitted;
  stats_.prompt_tokens += static_cast<int64_t>(request.prompt.size());
  running.request = std::move(request);
  running_.emplace(id, std::move(running));
  return handle;
}

void FakeEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto at = running_.find(id);
  if (at != running_.end()) at->second.cancelled = true;
  const std::lock_guard log_lock(log_->mutex);
  ++log_->cancelled;
}

EngineStats FakeEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.running = std::min(static_cast<int64_t>(running_.size()), behaviour_.max_running);
  stats.waiting = static_cast<int64_t>(running_.size()) - stats.running;
  return stats;
}

void FakeEngine::shutdown(Shutdown) {}

void FakeEngine::loop() {
  while (true) {
    std::this_thread::sleep_for(behaviour_.step);
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    if (running_.empty()) continue;
    ++stats_.steps;
    stats_.plan.total += 1e-5;
    stats_.plan.max = 2e-5;
    ++stats_.plan.count;
    int64_t places = behaviour_.max_running;
    for (auto at = running_.begin(); at != running_.end() && places-- > 0;) {
      at = advance(at->first, at->second) ? running_.erase(at) : std::next(at);
    }
  }
}

/// True when it has ended.
bool FakeEngine::advance(RequestId id, Running& running) {
  const Request& request = running.request;
  const int64_t wanted = request.max_tokens.value_or(16);
  const int64_t length = !request.ignore_eos && behaviour_.stop_after > 0 ? std::min(behaviour_.stop_after, wanted) : wanted;
  const int64_t count = behaviour_.never_answer ? 0 : std::min(behaviour_.tokens_per_step, length - running.made);
  std::optional<FinishReason> finish;
  if (running.cancelled) {
    finish = FinishReason::kCancelled;
  } else if (running.fails && running.made > 0) {
    finish = FinishReason::kError;
  } else if (running.made + count == length) {
    finish = length < wanted ? FinishReason::kStop : FinishReason::kLength;
  }
  for (int64_t choice = 0; choice < request.n; ++choice) {
    Output output;
    output.request = id;
    output.index = choice;
    for (int64_t i = 0; i < count && finish != FinishReason::kError && !running.cancelled; ++i)
      output.tokens.push_back(static_cast<int32_t>(running.made + i));
    output.finish = finish;
    if (finish == FinishReason::kError) output.error = Status::Internal("a made-up defect");
    output.usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    output.usage.cached_tokens = output.usage.prompt_tokens / 2;
    output.usage.replayed_tokens = 3;
    output.usage.seed = request.seed.value_or(0);
    if (!output.tokens.empty() || finish.has_value()) running.stream->push(std::move(output));
  }
  running.made += count;
  stats_.generation_tokens += count * request.n;
  stats_.row_layers += 5;
  stats_.full_row_layers += 10;
  return finish.has_value();
}

bench::EngineFactory fake_factory(const FakeBehaviour& behaviour, std::shared_ptr<FakeLog> log) {
  return [behaviour, log](const EngineOptions& options) -> Result<std::unique_ptr<Engine>> {
    {
      const std::lock_guard lock(log->mutex);
      log->engines.push_back(options);
    }
    return std::make_unique<FakeEngine>(options, behaviour, log);
  };
}

}  // namespace deepinfer::testing
