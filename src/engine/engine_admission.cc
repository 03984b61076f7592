// Newcomers: what a waiting sequence finds in the cache and where it would begin, for a plan; and its beginning, when the plan
// has it.

#include <algorithm>

#include "engine/engine_core.h"

namespace deepinfer {
namespace {

CacheMiss cache_miss(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return CacheMiss::kNone;
    case MissReason::kTooShort:
      return CacheMiss::kTooShort;
    case MissReason::kNotCached:
      return CacheMiss::kNotCached;
    case MissReason::kInexact:
      return CacheMiss::kInexact;
    case MissReason::kDisabled:
      return CacheMiss::kDisabled;
  }
  return CacheMiss::kNone;
}

}  // namespace

WaitingView EngineCore::consider(Sequence& s, double now) {
  const int64_t page = options_.limits.page_positions;
  WaitingView v;
  v.id = s.id;
  v.due = s.request->due;
  v.runnable = s.length();
  v.prompt_end = s.length();
  const auto* preempted = std::get_if<Sequence::Preempted>(&s.state);
  if (preempted != nullptr && preempted->hit.has_value()) {
    admissions_.push_back({&s, preempted->hit->size(), 0, *s.replay, s.request->usage.cache_miss, s.window});
  } else if (s.replay.has_value() && s.replay->mode == ReplayMode::kBounded && s.replay->hit == 0) {
    admissions_.push_back({&s, 0, 0, *s.replay, s.request->usage.cache_miss, nullptr});  // as it began, so it goes on
  } else {
    const int64_t begin = trace_ != nullptr ? telemetry::now_ns() : 0;
    admissions_.push_back(match(s, now));
    if (trace_ != nullptr) trace_match(s, admissions_.back(), begin);
    v.hit_evictable = admissions_.back().hit_evictable;
    v.pull_pages = admissions_.back().tier_pages;
  }
  const Admission& a = admissions_.back();
  v.from = a.replay.from;
  v.hit_pages = a.hit_pages;
  if (s.request->request.prompt_logprobs.has_value() && s.generated() == 0) v.row_limit = options_.prompt_logprob_rows;
  const bool forks_to_come =
      s.choice == 0 && s.request->sequences.size() < static_cast<size_t>(s.request->request.n) && s.generated() == 0;
  v.places = forks_to_come ? s.request->request.n : 1;
  v.extra_pages = s.prompt_tokens % page != 0 ? v.places - 1 : 0;
  return v;
}

EngineCore::Admission EngineCore::match(const Sequence& s, double now) {
  const int64_t page = options_.limits.page_positions;
  Admission a;
  a.sequence = const_cast<Sequence*>(&s);
  ReplayInput input;
  input.mode = s.request->mode;
  input.decoder = options_.decoder_replay;
  input.keep = options_.decoder_keep;
  input.prompt = s.prompt_tokens;
  // The last token always runs: its logits are what is wanted.
  const auto most = static_cast<size_t>(std::min<int64_t>((s.length() - 1) / page, static_cast<int64_t>(s.keys.size())));
  if (s.request->request.prompt_logprobs.has_value()) {
    a.miss = CacheMiss::kDisabled;  // every row is wanted
  } else {
    const PrefixMatch found = cache_->match(std::span(s.keys).first(most), input.mode == ReplayMode::kExact);
    a.hit_pages = found.pages;
    a.hit_evictable = found.evictable;
    input.hit = found.pages * page;
    input.hit_exact = found.exact;
    a.miss = cache_miss(found.reason);
    add_tier_hit(s, found, a, input, now);
  }
  plan_rows(s, input, a, now);
  return a;
}

void EngineCore::plan_rows(const Sequence& s, const ReplayInput& input, Admission& a, double now) {
  const int64_t page = options_.limits.page_positions;
  if (input.hit > 0 && options_.snapshots) {
    auto window = windows_->find(s.keys[static_cast<size_t>(input.hit / page) - 1], now);
    if (window != nullptr) {
      const SnapshotInput snapshot{window->window.length, window->window.decoder_window_start, window->encoder_exact,
                                   window->decoder_exact};
      if (snapshot_serves(options_.geometry, input, snapshot)) {
        a.replay = plan_restore(options_.geometry, input, snapshot);
        a.window = std::move(window);
        return;
      }
    }
  }
  a.replay = plan_replay(options_.geometry, input);
}

bool EngineCore::begin(Sequence& s, double now) {
  const auto found = std::find_if(admissions_.begin(), admissions_.end(), [&](const Admission& a) { return a.sequence == &s; });
  DI_CHECK(found != admissions_.end(), "sequence {} was not considered", s.id);
  Admission& a = *found;
  std::optional<PageTable> pages;
  auto* preempted = std::get_if<Sequence::Preempted>(&s.state);
  if (preempted != nullptr && preempted->hit.has_value()) {
    pages = std::move(preempted->hit);
  } else {
    pages = cache_->new_table(s.request->cache_class);
    if (!pages->adopt(s.keys, a.hit_pages).ok()) return false;
  }
  Sequence::Running r;
  r.pages = std::move(*pages);
  if (a.tier_pages > 0 && !start_pull(s, a, r, now)) return false;
  if (a.refused) refuse_pull(s);
  // Whoever has a prefix on the device for long would else find it expired where it is to outlive the device.
  if (tiers_ != nullptr && a.hit_pages > 0)
    tiers_->touch(std::span(s.keys).first(static_cast<size_t>(a.hit_pages)), s.request->cache_class);
  waiting_.erase({s.request->due, s.id});
  const bool first_time = !s.admitted;
  s.admitted = true;
  s.replay = a.replay;
  s.window = a.window;
  r.place = free_places_.back();
  free_places_.pop_back();
  r.scheduled = a.replay.from;
  r.prompt_end = s.length();
  if (s.choice == 0 && s.generated() == 0) r.reserved = s.request->request.n - static_cast<int64_t>(s.request->sequences.size());
  reserved_places_ += r.reserved;
  s.state = std::move(r);
  running_.push_back(&s);
  if (s.device == nullptr) {
    s.device = new_device_sequence(s);
    if (s.request->request.detokenize) {
      s.text.emplace(tokenizer_, TextOutput::Options{s.request->request.stop, s.request->request.include_stop_string,
                                                     s.request->request.skip_special_tokens});
    }
  }
  if (s.choice != 0) return true;
  const bool pulls = a.tier_pages > 0;
  Usage& usage = s.request->usage;
  if (first_time) {
    if (trace_ != nullptr) trace_admitted(*s.request, pulls);
    usage.queue_seconds = now - s.request->submitted;
    stats_.prefix_queries += s.prompt_tokens;
    stats_.prompt_tokens += s.prompt_tokens;
    stats_.full_row_layers += s.prompt_tokens * options_.geometry.layers;
  }
  if (!s.hit_counted) usage.cache_miss = a.miss;
  // What is on its way counts when it has come: the request may be preempted before, and find less the next time.
  if (!s.hit_counted && !pulls) count_hit(s, s.replay->hit, s.replay->hit);
  return true;
}

void EngineCore::count_hit(Sequence& s, int64_t cached_tokens, int64_t device_tokens) {
  s.hit_counted = true;
  Usage& usage = s.request->usage;
  usage.cached_tokens = cached_tokens;
  usage.replayed_tokens = s.replay->replayed();
  stats_.prefix_hits += device_tokens;
  stats_.cached_tokens += device_tokens;
  stats_.replayed_tokens += usage.replayed_tokens;
}

std::shared_ptr<DeviceSequence> EngineCore::new_device_sequence(const Sequence& s) const {
  const Request& request = s.request->request;
  SamplingParams params = request.sampling;
  params.choice_index = static_cast<uint32_t>(s.choice);
  AnswerEnd end{.eos = request.ignore_eos ? -1 : static_cast<int32_t>(options_.eos_token_id),
                .stop_tokens = request.sampling.stop_token_ids,
                .position = s.prompt_tokens + s.request->max_tokens};
  auto device = std::make_shared<DeviceSequence>(std::move(params), options_.vocab_size, std::move(end));
  device->sampler.add_prompt(request.prompt);
  if (s.request->form != nullptr) device->constraint.emplace(s.request->form);
  return device;
}

}  // namespace deepinfer
