#include "engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace deepinfer {
namespace {

/// Newcomers that one plan looks at: each costs a look into the cache.
constexpr size_t kMaxConsidered = 32;

}  // namespace

EngineCore::EngineCore(CoreOptions options, KvCache* cache, WindowSnapshotPool<CachedWindow>* windows, Executor* executor,
                       std::shared_ptr<const Tokenizer> tokenizer, PrefixHasher hasher, Clock clock)
    : options_(std::move(options)),
      cache_(cache),
      windows_(windows),
      executor_(executor),
      tokenizer_(std::move(tokenizer)),
      hasher_(std::move(hasher)),
      clock_(clock) {
  for (auto place = static_cast<int32_t>(options_.limits.max_num_seqs - 1); place >= 0; --place) free_places_.push_back(place);
  prefill_ = options_.prefill;
  row_layer_seconds_ = prefill_.average_seconds;
  running_.reserve(static_cast<size_t>(options_.limits.max_num_seqs));
  draft_rows_ = options_.max_drafts * options_.limits.max_num_seqs;
}

EngineCore::~EngineCore() {
  end_all(FinishReason::kCancelled);
  while (!in_flight_.empty()) commit(0);
  for (release_copied(); !copying_.empty(); release_copied()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void EngineCore::submit(std::shared_ptr<ActiveRequest> request, double now) {
  request->submitted = now;
  request->trace.mark = telemetry::to_ns(now);
  request->due = now + static_cast<double>(request->request.priority) * options_.priority_interval;
  if (request->deadline.has_value()) {
    deadlines_.emplace(*request->deadline, request->id);
    request->due = std::min(request->due, *request->deadline);
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_sequence_++;
  sequence->tokens = request->request.prompt;
  sequence->prompt_tokens = sequence->length();
  sequence->request = request;
  request->usage.prompt_tokens = sequence->prompt_tokens;
  request->usage.seed = request->request.sampling.seed;
  request->open = request->request.n;
  request->sequences.push_back(sequence->id);
  if (request->prompt_keys.empty()) hash_prompt(*request);
  sequence->keys = std::move(request->prompt_keys);
  if (request->request.structured_output.has_value() && request->form == nullptr) {
    sequence->state = Sequence::Preparing{};
    ++preparing_;
  } else if (!start_match(*sequence)) {
    waiting_.emplace(request->due, sequence->id);
  }
  sequences_.emplace(sequence->id, std::move(sequence));
  ++stats_.submitted;
  requests_.emplace(request->id, std::move(request));
}

void EngineCore::prepared(RequestId id, FormResult form) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  ActiveRequest& request = *it->second;
  Sequence& s = at(request.sequences.front());
  DI_CHECK(std::holds_alternative<Sequence::Preparing>(s.state), "request {} does not wait for its form", id);
  if (!form) {
    Output output = start_output(s);
    output.error = form.error();
    finish(s, FinishReason::kError, std::move(output));
    deliver();
    return;
  }
  request.form = *std::move(form);
  request.stream->set_prepared(request.form->grammar->ignored());
  --preparing_;
  if (trace_ != nullptr) trace_phase(request, telemetry::Phase::kCompile, telemetry::now_ns());
  s.state = Sequence::Waiting{};
  if (!start_match(s)) waiting_.emplace(request.due, s.id);
}

std::optional<double> EngineCore::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void EngineCore::extend_keys(const ActiveRequest& request, std::span<const int32_t> tokens, std::vector<PrefixKey>& keys) const {
  const auto page = static_cast<size_t>(options_.limits.page_positions);
  while ((keys.size() + 1) * page <= tokens.size()) {
    const PrefixKey parent = keys.empty() ? hasher_.root(request.request.cache_salt, options_.fingerprint) : keys.back();
    keys.push_back(hasher_.next(parent, tokens.subspan(keys.size() * page, page)));
  }
}

void EngineCore::hash_prompt(ActiveRequest& request) const {
  request.prompt_keys.clear();
  extend_keys(request, request.request.prompt, request.prompt_keys);
}

void EngineCore::turn(double now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    end(id, FinishReason::kDeadline);
  }
  settle_pulls();
  release_copied();
  const size_t depth = options_.async ? 2 : 1;
  const bool planned = in_flight_.size() < depth && plan_and_submit(now);
  idle_ = in_flight_.empty();
  if (!in_flight_.empty() && (!planned || in_flight_.size() == depth)) {
    commit(now);
  } else if (!planned && in_flight_.empty() && busy() && !waits_for_pulls()) {
    reclaim(now);
  }
}

bool EngineCore::plan_and_submit(double now) {
  if (running_.empty() && waiting_.empty()) {
    if (in_flight_.empty()) device_was_idle_ = true;
    return false;
  }
  const double start = measure();
  if (trace_ != nullptr) trace_plan_begin_ = telemetry::now_ns();
  build_view(now);
  plan_step(view_, options_.limits, plan_);
  apply_preemptions();
  bool submitted = false;
  if (!plan_.rows.empty()) {
    std::unique_ptr<InFlight> step;
    if (spare_.empty()) {
      step = std::make_unique<InFlight>();
    } else {
      step = std::move(spare_.back());
      spare_.pop_back();
    }
    step->command.clear();
    step->result.clear();
    step->command.number = stats_.steps;
    step->command.after_idle = device_was_idle_;
    // Newcomers take their hits before anything is evicted for others.
    std::erase_if(plan_.rows, [&](const PlannedRows& rows) { return rows.admitted && !begin(at(rows.id), now); });
    step->command.draft_rows = plan_.draft_rows;
    for (const PlannedRows& rows : plan_.rows) {
      if (rows.count > 0) apply_rows(rows, step->command, now);
    }
    if (step->command.rows.empty()) {
      spare_.push_back(std::move(step));
    } else {
      ++stats_.steps;
      device_was_idle_ = false;
      stuck_turns_ = 0;
      if (trace_ != nullptr) trace_command(step->command);
      executor_->submit(step->command, step->result);
      in_flight_.push_back(std::move(step));
      submitted = true;
    }
  }
  const double end = measure();
  if (trace_ != nullptr && submitted) trace_plan(in_flight_.back()->command.number);
  stats_.plan.add(end - start);
  return submitted;
}

void EngineCore::build_view(double now) {
  const int64_t page = options_.limits.page_positions;
  view_.running.clear();
  view_.waiting.clear();
  admissions_.clear();
  for (const Sequence* s : running_) {
    const auto& r = std::get<Sequence::Running>(s->state);
    RunningView v;
    v.id = s->id;
    v.due = s->request->due;
    v.scheduled = r.scheduled;
    // The last token of an answer need not run.
    v.limit = s->prompt_tokens + s->request->max_tokens - 1;
    v.runnable = std::min(s->length() + r.drawing, v.limit);
    v.ahead = r.ahead;
    v.drafts = r.scheduled >= r.prompt_end ? options_.max_drafts : 0;
    v.prompt_end = r.prompt_end;
    v.pages = r.pages.size();
    const int64_t kept = s->replay->mode == ReplayMode::kBounded ? s->replay->hit / page : 0;
    v.releasable = v.pages - kept;
    if (s->request->request.prompt_logprobs.has_value() && r.scheduled < s->prompt_tokens)
      v.row_limit = options_.prompt_logprob_rows;
    v.extra_pages = s->prompt_tokens % page != 0 ? r.reserved : 0;
    v.in_flight = r.in_flight > 0;
    if (r.pull != nullptr) {
      if (!pull_is_near(r, now)) v.runnable = v.scheduled;
      v.releasable = v.pages;
      v.in_flight = v.in_flight || !r.pull->pull->done();
    }
    view_.running.push_back(v);
  }
  view_.draft_rows = std::min(draft_rows_, options_.max_draft_rows);
  view_.available_pages = cache_->available();
  view_.free_places = static_cast<int64_t>(free_places_.size()) - reserved_places_;
  if (view_.free_places <= 0) return;
  int64_t rows = 0;
  for (const auto& [due, id] : waiting_) {
    if (view_.waiting.size() == kMaxConsidered || static_cast<int64_t>(view_.waiting.size()) == view_.free_places ||
        rows >= options_.limits.max_num_batched_tokens) {
      break;
    }
    view_.waiting.push_back(consider(at(id), now));
    rows += view_.waiting.back().runnable - view_.waiting.back().from;
  }
}

void EngineCore::apply_preemptions() {
  for (const SequenceId id : plan_.preempt) {
    Sequence& s = at(id);
    ++stats_.preemptions;
    ++s.request->usage.preemptions;
    if (trace_ != nullptr) trace_preempted(s);
    leave(s, /*preempted=*/true);
  }
}

bool EngineCore::apply_rows(const PlannedRows& rows, StepCommand& command, double now) {
  Sequence& s = at(rows.id);
  auto& r = std::get<Sequence::Running>(s.state);
  // A plan may count on pages that turn out to be shared; then the sequence waits for the next step.
  if (rows.pages > r.pages.size() && !r.pages.grow(rows.pages - r.pages.size(), now)) return false;
  forks_.clear();
  const bool draws = rows.first + rows.count == s.length() + r.drawing;
  if (draws && r.reserved > 0 && !prepare_forks(s, forks_, now)) return false;
  write_rows(s, rows, forks_, command, now);
  return true;
}

bool EngineCore::prepare_forks(Sequence& s, std::vector<Sequence*>& forks, double now) {
  const int64_t page = options_.limits.page_positions;
  auto& r = std::get<Sequence::Running>(s.state);
  std::vector<PageTable> tables;
  for (int64_t i = 0; i < r.reserved; ++i) {
    tables.push_back(r.pages.fork(s.prompt_tokens / page));
    if (s.prompt_tokens % page != 0 && !tables.back().grow(1, now)) return false;
  }
  for (PageTable& table : tables) {
    auto fork = std::make_unique<Sequence>();
    fork->id = next_sequence_++;
    fork->choice = static_cast<int64_t>(s.request->sequences.size());
    fork->request = s.request;
    fork->tokens = s.tokens;
    fork->prompt_tokens = s.prompt_tokens;
    fork->keys = s.keys;
    fork->replay = s.replay;
    fork->window = s.window;
    fork->device = new_device_sequence(*fork);
    if (s.request->request.detokenize) {
      fork->text.emplace(tokenizer_, TextOutput::Options{s.request->request.stop, s.request->request.include_stop_string,
                                                         s.request->request.skip_special_tokens});
    }
    Sequence::Running running;
    running.pages = std::move(table);
    running.place = free_places_.back();
    free_places_.pop_back();
    running.pull = r.pull;
    running.scheduled = s.prompt_tokens;
    running.begun = true;
    running.appended = running.pages.size();
    running.prompt_end = s.prompt_tokens;
    fork->state = std::move(running);
    s.request->sequences.push_back(fork->id);
    running_.push_back(fork.get());
    forks.push_back(fork.get());
    sequences_.emplace(fork->id, std::move(fork));
  }
  reserved_places_ -= r.reserved;
  r.reserved = 0;
  return true;
}

void EngineCore::write_rows(Sequence& s, const PlannedRows& rows, const std::vector<Sequence*>& forks, StepCommand& command,
                            double now) {
  const int64_t page = options_.limits.page_positions;
  auto& r = std::get<Sequence::Running>(s.state);
  const Request& request = s.request->request;
  const int64_t end = rows.first + rows.count;
  StepRows out;
  out.sequence = s.id;
  out.place = r.place;
  out.device = s.device.get();
  out.first = rows.first;
  out.count = rows.count;
  out.drafts = rows.drafts;
  out.pull = r.pull;
  out.context_from =
      std::max<int64_t>(0, r.prompt_end - options_.geometry.window - page);  // what a snapshot or the first draft sees
  out.begin = !r.begun;
  r.begun = true;
  if (out.begin) {
    out.replay = *s.replay;
    out.window = s.window;
    out.prefix_first = static_cast<int64_t>(command.prefixes.size());
    out.prefix_count = s.replay->hit;
    command.prefixes.insert(command.prefixes.end(), s.tokens.begin(), s.tokens.begin() + s.replay->hit);
  }
  for (int64_t p = rows.first; p < end; ++p)
    command.tokens.push_back(p < s.length() ? s.tokens[static_cast<size_t>(p)] : kLastSampled);

  const std::span<uint8_t* const> pages = r.pages.data();
  out.first_page = static_cast<int64_t>(command.pages.size());
  out.page_count = r.pages.size() - r.appended;
  command.pages.insert(command.pages.end(), pages.begin() + r.appended, pages.end());
  r.appended = r.pages.size();

  const int64_t logprobs = request.logprobs.value_or(-1);
  out.first_draw = static_cast<int64_t>(command.draws.size());
  out.first_fork = static_cast<int64_t>(command.forks.size());
  if (end == s.length() + r.drawing) {
    command.draws.push_back({s.id, s.device.get(), logprobs});
    ++r.drawing;
    for (Sequence* fork : forks) {
      auto& f = std::get<Sequence::Running>(fork->state);
      command.draws.push_back({fork->id, fork->device.get(), logprobs});
      ++f.drawing;
      ++f.in_flight;
      const std::span<uint8_t* const> own = f.pages.data();
      command.forks.push_back({fork->id, f.place, static_cast<int64_t>(command.pages.size()), f.pages.size(),
                               s.prompt_tokens % page != 0 ? pages[static_cast<size_t>(s.prompt_tokens / page)] : nullptr});
      command.pages.insert(command.pages.end(), own.begin(), own.end());
    }
  }
  out.draw_count = static_cast<int64_t>(command.draws.size()) - out.first_draw;
  out.fork_count = static_cast<int64_t>(command.forks.size()) - out.first_fork;

  if (request.prompt_logprobs.has_value() && s.choice == 0 && s.generated() == 0 && rows.first < s.prompt_tokens) {
    out.prompt_logprobs = *request.prompt_logprobs;
    out.next_token = end < s.prompt_tokens ? s.tokens[static_cast<size_t>(end)] : -1;
  }
  if (options_.snapshots) {
    // Not below the hit: windows there are on their way through a replay.
    const int64_t limit = s.prompt_tokens + s.request->max_tokens - 1;
    const int64_t boundary = std::min(end + r.ahead + rows.drafts, std::max(end, limit)) / page * page;
    if (boundary > rows.first && boundary >= std::max(s.prompt_tokens / page * page, s.replay->hit)) {
      const auto key = static_cast<size_t>(boundary / page) - 1;
      if (key >= s.keys.size() || !windows_->contains(s.keys[key], now)) out.save_at = boundary;
    }
  }
  ++r.in_flight;
  r.scheduled = end;
  r.ahead += rows.drafts;
  command.rows.push_back(std::move(out));
}

void EngineCore::reclaim(double now) {
  // Nothing runs and nothing can: pages are held where they help nobody now. What is given up here is only speed, or, for a
  // preempted answer in bounded replay, the guarantee that it goes on bit for bit.
  ++stuck_turns_;
  if (stuck_turns_ == 1) {
    for (const auto& [due, id] : waiting_) {
      auto* preempted = std::get_if<Sequence::Preempted>(&at(id).state);
      if (preempted != nullptr && id != waiting_.begin()->second) preempted->hit.reset();
    }
    return;
  }
  if (stuck_turns_ == 2) {
    cache_->unpin_all(now);
    return;
  }
  Sequence& s = running_.empty() ? at(waiting_.begin()->second) : *running_.front();
  Output output = start_output(s);
  output.error = Status::ResourceExhausted("the KV cache has {} pages of {} tokens, which cannot hold this request",
                                           cache_->total_pages(), options_.limits.page_positions);
  finish(s, FinishReason::kError, std::move(output));
  deliver();
  stuck_turns_ = 0;
}

bool EngineCore::preempt(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || !std::holds_alternative<Sequence::Running>(it->second->state)) return false;
  ++stats_.preemptions;
  ++it->second->request->usage.preemptions;
  leave(*it->second, /*preempted=*/true);
  return true;
}

std::vector<SequenceId> EngineCore::running_ids() const {
  std::vector<SequenceId> ids;
  for (const Sequence* s : running_) ids.push_back(s->id);
  return ids;
}

}  // namespace deepinfer
