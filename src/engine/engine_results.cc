// What the core does with the results of a step: tokens, text, pages, and the end of answers.

#include <algorithm>
#include <utility>

#include "engine/engine_core.h"

namespace deepinfer {

void EngineCore::commit(double now) {
  executor_->wait();
  std::unique_ptr<InFlight> step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const double start = measure();
  const StepCommand& command = step->command;
  StepResult& result = step->result;
  stats_.row_layers += result.row_layers;
  stats_.step.add(result.end - result.begin);
  stats_.masks.merge(result.masks);
  stats_.mask_wait_seconds += result.mask_wait;
  for (const PullWait& wait : result.pull_waits) stats_.pull_wait_seconds += wait.end - wait.begin;
  if (!command.after_idle && device_end_ > 0) stats_.device_idle_seconds += std::max(0.0, result.begin - device_end_);
  device_end_ = result.end;

  if (trace_ != nullptr) trace_device(command, result);
  for (const StepDraw& draw : command.draws) --running_part(at(draw.sequence)).drawing;
  for (const StepRows& rows : command.rows) running_part(at(rows.sequence)).ahead -= rows.drafts;
  if (!result.status.ok()) {
    fail_command(command, result.status);
  } else {
    size_t prompt_logprob = 0;
    size_t window = 0;
    draft_rows_ = result.draft_rows;
    if (result.rows > 0) learn_speed(command, result);
    for (size_t i = 0; i < command.rows.size(); ++i) {
      if (command.rows[i].pull != nullptr && (result.lost.empty() || result.lost[i] == 0))
        accept_pull(at(command.rows[i].sequence), now);
    }
    for (const StepRows& rows : command.rows) {
      Sequence& s = at(rows.sequence);
      if (rows.prompt_logprobs >= 0) {
        const int64_t count = rows.count - (rows.next_token < 0 ? 1 : 0);
        take_prompt_logprobs(s, rows.first,
                             std::span(result.prompt_logprobs).subspan(prompt_logprob, static_cast<size_t>(count)));
        prompt_logprob += static_cast<size_t>(count);
      }
    }
    for (size_t i = 0; i < command.draws.size(); ++i) take_draw(command.draws[i], result.draws[i], result);
    for (size_t i = 0; i < command.rows.size(); ++i) {
      const StepRows& rows = command.rows[i];
      Sequence& s = at(rows.sequence);
      const bool lost = !result.lost.empty() && result.lost[i] != 0;
      if (lost) {
        if (rows.save_at >= 0) ++window;
        continue;
      }
      publish_pages(s, result.ends[i], now);
      if (rows.save_at >= 0) keep_window(s, rows.save_at, std::move(result.windows[window++]), now);
    }
  }
  // Only now may pages go: what ended above was still named by this command.
  for (const StepFork& fork : command.forks) --running_part(at(fork.sequence)).in_flight;
  for (const StepRows& rows : command.rows) --running_part(at(rows.sequence)).in_flight;
  for (size_t i = 0; i < result.lost.size(); ++i) {
    if (result.lost[i] == 0) continue;
    const StepRows& rows = command.rows[i];
    for (int64_t f = 0; f < rows.fork_count; ++f)
      take_back(at(command.forks[static_cast<size_t>(rows.first_fork + f)].sequence), now);
    take_back(at(rows.sequence), now);
  }
  for (const StepFork& fork : command.forks) settle(fork.sequence);
  for (const StepRows& rows : command.rows) settle(rows.sequence);
  deliver();
  const double end = measure();
  if (trace_ != nullptr) trace_publish(command, result, start);
  step->result.clear();
  spare_.push_back(std::move(step));
  stats_.publish.add(end - start);
}

Sequence::Running& EngineCore::running_part(Sequence& s) {
  if (auto* leaving = std::get_if<Sequence::Leaving>(&s.state)) return leaving->last;
  return std::get<Sequence::Running>(s.state);
}

void EngineCore::fail_command(const StepCommand& command, const Status& status) {
  // What the device keeps of these sequences is unknown now; none of them can go on.
  const auto fail = [&](SequenceId id) {
    Sequence& s = at(id);
    if (s.finished) return;
    Output output = start_output(s);
    output.error = status;
    finish(s, FinishReason::kError, std::move(output));
  };
  for (const StepRows& rows : command.rows) fail(rows.sequence);
  for (const StepFork& fork : command.forks) fail(fork.sequence);
}

Output EngineCore::start_output(const Sequence& s) const {
  Output output;
  output.request = s.request->id;
  output.index = s.choice;
  output.usage = s.request->usage;
  return output;
}

void EngineCore::take_prompt_logprobs(Sequence& s, int64_t first, std::span<PositionLogprobs> logprobs) {
  const int64_t known = std::min(s.prompt_logprobs_given - first, static_cast<int64_t>(logprobs.size()));
  if (known > 0) logprobs = logprobs.subspan(static_cast<size_t>(known));
  if (s.finished || logprobs.empty()) return;
  s.prompt_logprobs_given += static_cast<int64_t>(logprobs.size());
  s.prompt_logprobs.insert(s.prompt_logprobs.end(), std::make_move_iterator(logprobs.begin()),
                           std::make_move_iterator(logprobs.end()));
  // In one piece, however many steps the prompt took: who reads along could not tell a part from the whole.
  if (s.prompt_logprobs_given + 1 < s.prompt_tokens) return;
  Output output = start_output(s);
  output.prompt_logprobs = std::exchange(s.prompt_logprobs, {});
  push(*s.request, std::move(output));
}

void EngineCore::take_draw(const StepDraw& draw, const DrawResult& drawn, StepResult& result) {
  Sequence& s = at(draw.sequence);
  if (s.finished) return;  // drawn for an answer that had ended already
  const int64_t accepted = std::max<int64_t>(0, drawn.count - 1);
  running_part(s).scheduled += accepted;
  if (drawn.drafted > 0) {
    Usage& usage = s.request->usage;
    usage.drafted_tokens += drawn.drafted;
    usage.accepted_tokens += accepted;
    ++stats_.drafts;
    stats_.drafted_tokens += drawn.drafted;
    stats_.accepted_tokens += accepted;
    for (int64_t k = 0; k < drawn.drafted; ++k) ++stats_.drafted_at[static_cast<size_t>(k)];
    for (int64_t k = 0; k < accepted; ++k) ++stats_.accepted_at[static_cast<size_t>(k)];
  }
  for (int64_t i = 0; i < drawn.count && !s.finished; ++i) {
    const bool logprobs = draw.logprobs >= 0;
    take_token(s, result.tokens[static_cast<size_t>(drawn.first + i)],
               logprobs ? &result.logprobs[static_cast<size_t>(drawn.first_logprobs + i)] : nullptr);
  }
}

void EngineCore::take_token(Sequence& s, int32_t token, PositionLogprobs* logprobs) {
  s.tokens.push_back(token);
  extend_keys(*s.request, s.tokens, s.keys);
  ++s.request->usage.completion_tokens;
  ++stats_.generation_tokens;
  stats_.full_row_layers += options_.geometry.layers;
  if (trace_ != nullptr) trace_token(*s.request);

  Output output = start_output(s);
  output.tokens.push_back(token);
  if (logprobs != nullptr) output.logprobs.push_back(std::move(*logprobs));
  // spec/sampling §2.5: EOS, stop ids, stop strings, length, in this order.
  std::optional<FinishReason> reason;
  if (s.device->end.at_token(token)) {
    reason = FinishReason::kStop;
    if (token != s.device->end.eos) output.stop_reason = token;
  } else if (s.text.has_value() && s.text->push(token, output.text)) {
    reason = FinishReason::kStop;
    output.stop_reason = *s.text->stop();
  } else if (s.generated() >= s.request->max_tokens) {
    reason = FinishReason::kLength;
  }
  if (reason.has_value()) {
    finish(s, *reason, std::move(output));
  } else {
    push(*s.request, std::move(output));
  }
}

void EngineCore::deliver() {
  if (outputs_.empty()) return;
  if (counted_ != nullptr) counted_();
  for (auto& [stream, output] : outputs_) stream->push(std::move(output));
  outputs_.clear();
}

void EngineCore::publish_pages(Sequence& s, int64_t computed, double now) {
  auto& r = running_part(s);
  const int64_t full = std::min(computed, s.length()) / options_.limits.page_positions;
  if (full <= r.pages.published()) return;
  const int64_t before = r.pages.published();
  r.pages.publish(std::span(s.keys).first(static_cast<size_t>(full)), s.replay->exact_pages, now);
  write_back(s, r.pages, before, r.pages.published());
}

void EngineCore::keep_window(const Sequence& s, int64_t position, std::shared_ptr<CachedWindow> window, double now) {
  if (window == nullptr || position > s.length()) return;
  const ReplayPlan& plan = *s.replay;
  window->encoder_exact = plan.exact_pages;
  bool decoder = plan.mode == ReplayMode::kExact;
  if (!decoder && plan.restored) decoder = s.window->decoder_exact && plan.decoder_start <= plan.hit;
  if (!decoder && !plan.restored) decoder = plan.from == 0 && plan.decoder_start == 0;
  window->decoder_exact = plan.exact_pages && decoder;
  const int64_t bytes = window->window.bytes();
  windows_->put(s.keys[static_cast<size_t>(position / options_.limits.page_positions) - 1], std::move(window), bytes, now);
}

void EngineCore::finish(Sequence& s, FinishReason reason, Output output) {
  DI_CHECK(!s.finished, "sequence {} finished twice", s.id);
  s.finished = true;
  ActiveRequest& request = *s.request;
  if (s.text.has_value()) {
    // The bytes that were held back may complete a stop string at the last moment.
    const bool stopped = s.text->stop().has_value();
    s.text->finish(output.text);
    if (!stopped && s.text->stop().has_value() && reason == FinishReason::kLength) {
      reason = FinishReason::kStop;
      output.stop_reason = *s.text->stop();
    }
  }
  output.usage = request.usage;
  output.finish = reason;
  ++stats_.finished[static_cast<size_t>(reason)];
  Status error = output.error;
  const int64_t to_come = s.choice == 0 ? request.request.n - static_cast<int64_t>(request.sequences.size()) : 0;
  if (trace_ != nullptr && request.open == 1 + to_come) trace_finished(request, reason);
  push(request, std::move(output));
  --request.open;
  // Choices that were to fork from this one never began.
  if (s.choice == 0 && request.open > 0) {
    for (auto choice = static_cast<int64_t>(request.sequences.size()); choice < request.request.n; ++choice) {
      Output unborn = start_output(s);
      unborn.index = choice;
      unborn.finish = reason;
      unborn.error = error;
      ++stats_.finished[static_cast<size_t>(reason)];
      --request.open;
      push(request, std::move(unborn));
    }
  }
  if (request.open == 0) {
    if (request.deadline.has_value()) deadlines_.erase({*request.deadline, request.id});
    requests_.erase(request.id);
  }
  if (std::holds_alternative<Sequence::Running>(s.state)) {
    leave(s, /*preempted=*/false);
  } else if (auto* leaving = std::get_if<Sequence::Leaving>(&s.state)) {
    leaving->preempted = false;
  } else {
    if (std::holds_alternative<Sequence::Preparing>(s.state)) --preparing_;
    if (std::holds_alternative<Sequence::Matching>(s.state)) --matching_;
    waiting_.erase({request.due, s.id});
    erase(s);
  }
}

void EngineCore::leave(Sequence& s, bool preempted) {
  auto running = std::move(std::get<Sequence::Running>(s.state));
  running_.erase(std::find(running_.begin(), running_.end(), &s));
  reserved_places_ -= running.reserved;
  running.reserved = 0;
  const bool busy = running.in_flight > 0;
  s.state = Sequence::Leaving{std::move(running), preempted};
  // A sequence in a command stays until the command is over: `settle` looks at it again.
  if (!busy) settle(s.id);
}

void EngineCore::settle(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& s = *it->second;
  auto* leaving = std::get_if<Sequence::Leaving>(&s.state);
  if (leaving == nullptr || leaving->last.in_flight > 0) return;
  if (const auto& pull = leaving->last.pull; pull != nullptr && !pull->pull->done()) {
    // Somebody still writes into the pages.
    pull->pull->cancel();
    if (std::find(pulling_.begin(), pulling_.end(), id) == pulling_.end()) pulling_.push_back(id);
    return;
  }
  free_places_.push_back(leaving->last.place);
  if (!leaving->preempted) {
    erase(s);
    return;
  }
  Sequence::Preempted state;
  // Bounded results depend on the pages that were hit; exact ones can be had again from any.
  // A prefix that is not known to be whole is no hit; nothing has come of it yet.
  if (leaving->last.pull != nullptr) {
    s.replay.reset();
    s.window = nullptr;
  }
  const int64_t hit = !s.replay.has_value() ? 0 : s.replay->hit / options_.limits.page_positions;
  if (hit > 0 && s.replay->mode == ReplayMode::kBounded) state.hit = leaving->last.pages.fork(hit);
  s.state = std::move(state);
  waiting_.emplace(s.request->due, s.id);
}

void EngineCore::erase(Sequence& s) { sequences_.erase(s.id); }

bool EngineCore::end(RequestId id, FinishReason reason) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  const std::shared_ptr<ActiveRequest> request = it->second;
  // The first choice goes first: it ends those that have not begun.
  const std::vector<SequenceId> ids = request->sequences;
  for (const SequenceId sequence : ids) {
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end() || found->second->finished) continue;
    finish(*found->second, reason, start_output(*found->second));
  }
  deliver();
  return true;
}

void EngineCore::end_all(FinishReason reason) {
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const RequestId id : ids) end(id, reason);
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.waiting = waiting();
  stats.row_layer_seconds = row_layer_seconds_;
  stats.preparing = preparing_;
  stats.running = running();
  const KvCacheStats cache = cache_->stats();
  stats.pages_total = cache.total_pages;
  stats.pages_free = cache.free_pages;
  static_assert(std::tuple_size_v<decltype(stats.pages_by_class)> == kCacheClassCount);
  stats.pages_by_class = cache.cached_pages;
  for (const int64_t pages : cache.cached_pages) stats.pages_cached += pages;
  for (const int64_t pages : cache.evicted) stats.evicted_pages += pages;
  for (const int64_t pages : cache.expired) stats.expired_pages += pages;
  if (windows_ != nullptr) {
    const auto windows = windows_->stats();
    stats.snapshots = windows.entries;
    stats.snapshot_bytes = windows.bytes;
    stats.snapshot_hits = windows.hits;
    stats.snapshot_misses = windows.misses;
  }
  return stats;
}

void EngineCore::check_invariants() const {
  cache_->check_invariants();
  if (windows_ != nullptr) windows_->check_invariants();
  std::vector<int> owners(static_cast<size_t>(options_.limits.max_num_seqs));
  for (const int32_t place : free_places_) ++owners[static_cast<size_t>(place)];
  int64_t waiting = 0, running = 0, reserved = 0, preparing = 0, matching = 0;
  boost::unordered_flat_map<SequenceId, int32_t> reads;
  boost::unordered_flat_map<SequenceId, int64_t> ahead;
  for (const auto& step : in_flight_) {
    for (const StepRows& rows : step->command.rows) {
      ++reads[rows.sequence];
      ahead[rows.sequence] += rows.drafts;
    }
    for (const StepFork& fork : step->command.forks) ++reads[fork.sequence];
  }
  for (const auto& [id, s] : sequences_) {
    DI_CHECK(s->id == id, "sequence {} under id {}", s->id, id);
    const Sequence::Running* r = std::get_if<Sequence::Running>(&s->state);
    if (const auto* leaving = std::get_if<Sequence::Leaving>(&s->state)) r = &leaving->last;
    const bool waits =
        std::holds_alternative<Sequence::Waiting>(s->state) || std::holds_alternative<Sequence::Preempted>(s->state);
    DI_CHECK(waits == waiting_.contains({s->request->due, id}), "sequence {}: waiting {} but not in the queue", id, waits);
    waiting += waits ? 1 : 0;
    preparing += std::holds_alternative<Sequence::Preparing>(s->state) ? 1 : 0;
    matching += std::holds_alternative<Sequence::Matching>(s->state) ? 1 : 0;
    const auto read = reads.find(id);
    const int32_t in_flight = read == reads.end() ? 0 : read->second;
    if (r == nullptr) {
      DI_CHECK(in_flight == 0, "sequence {} waits, {} commands read it", id, in_flight);
      DI_CHECK(!s->finished, "sequence {} waits and is finished", id);
      continue;
    }
    ++owners[static_cast<size_t>(r->place)];
    DI_CHECK(r->in_flight == in_flight, "sequence {}: {} commands in flight, counted {}", id, in_flight, r->in_flight);
    DI_CHECK(r->scheduled <= s->length() + r->drawing || s->finished, "sequence {}: {} scheduled of {}", id, r->scheduled,
             s->length());
    DI_CHECK(r->ahead == ahead[id], "sequence {}: {} drafts in flight, counted {}", id, ahead[id], r->ahead);
    // A finished one may have a row too many planned, which the device leaves out.
    const int64_t limit = std::max(r->scheduled, s->prompt_tokens + s->request->max_tokens - 1);
    const int64_t reach = std::min(r->scheduled + r->ahead, limit);
    DI_CHECK(reach <= r->pages.size() * options_.limits.page_positions || reach == s->replay->from || s->finished,
             "sequence {}: {} scheduled and {} drafts in {} pages", id, r->scheduled, r->ahead, r->pages.size());
    reserved += r->reserved;
    if (std::holds_alternative<Sequence::Running>(s->state)) {
      ++running;
      DI_CHECK(!s->finished, "sequence {} runs and is finished", id);
    } else {
      DI_CHECK(r->in_flight > 0 || r->pull != nullptr, "sequence {} leaves and nothing reads it", id);
    }
  }
  for (size_t place = 0; place < owners.size(); ++place)
    DI_CHECK(owners[place] == 1, "place {} has {} owners", place, owners[place]);
  DI_CHECK(waiting == static_cast<int64_t>(waiting_.size()), "{} wait, {} in the queue", waiting, waiting_.size());
  DI_CHECK(preparing == preparing_, "{} wait for their forms, counted {}", preparing, preparing_);
  DI_CHECK(matching == matching_, "{} are looked for in the tiers, counted {}", matching, matching_);
  DI_CHECK(running == this->running(), "{} run, {} in the list", running, this->running());
  DI_CHECK(reserved == reserved_places_, "{} places reserved, counted {}", reserved, reserved_places_);
  for (const auto& [id, request] : requests_) DI_CHECK(request->open > 0, "request {} has nothing open", id);
  if (sequences_.empty()) DI_CHECK(requests_.empty(), "{} requests without a sequence", requests_.size());
}

}  // namespace deepinfer
