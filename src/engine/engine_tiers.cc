// Prefixes from the tiers below the device's pages: looked for when a request comes, pulled when it is admitted, taken back when
// a pull fails; and full pages on their way down.

#include <algorithm>
#include <thread>

#include "engine/engine_core.h"

namespace deepinfer {

void EngineCore::set_tiers(KvTiers* tiers, std::function<void(RequestId, KvTierMatch)> matched) {
  tiers_ = tiers;
  matched_ = std::move(matched);
}

bool EngineCore::start_match(Sequence& s) {
  const Request& request = s.request->request;
  if (tiers_ == nullptr || request.prompt_logprobs.has_value()) return false;
  const bool exact_only = s.request->mode == ReplayMode::kExact;
  const auto most = static_cast<size_t>((s.length() - 1) / options_.limits.page_positions);
  const auto keys = std::span(s.keys).first(std::min(most, s.keys.size()));
  const PrefixMatch found = cache_->match(keys, exact_only);
  const auto rest = keys.subspan(static_cast<size_t>(found.pages));
  if (rest.empty()) s.request->usage.tiers.miss = kv_store_miss_name(KvStoreMiss::kNone);
  if (rest.empty() || found.reason == MissReason::kDisabled) return false;
  s.tier_hit = TierHit{.match = {}, .first_page = found.pages};
  s.state = Sequence::Matching{};
  ++matching_;
  tiers_->match(std::vector(rest.begin(), rest.end()), exact_only,
                [tell = matched_, id = s.request->id](KvTierMatch match) { tell(id, std::move(match)); });
  return true;
}

void EngineCore::matched(RequestId id, KvTierMatch match) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Sequence& s = at(it->second->sequences.front());
  DI_CHECK(std::holds_alternative<Sequence::Matching>(s.state), "request {} is not looked for", id);
  if (trace_ != nullptr) trace_lookup(s, match);
  TierUsage& usage = s.request->usage.tiers;
  usage.match_seconds = match.seconds;
  usage.miss = kv_store_miss_name(match.reason);
  usage.ttl_seconds = match.ttl_seconds;
  s.tier_hit->match = std::move(match);
  if (s.tier_hit->match.pages == 0) s.tier_hit.reset();
  --matching_;
  s.state = Sequence::Waiting{};
  waiting_.emplace(s.request->due, s.id);
}

KvTierMatch EngineCore::rest_of(const TierHit& hit, int64_t first_page) const {
  KvTierMatch match = hit.match;
  int64_t skip = first_page - hit.first_page;
  match.pages -= skip;
  for (KvTierMatch::Run& run : match.runs) {
    const int64_t part = std::min(skip, run.pages);
    run.pages -= part;
    skip -= part;
  }
  std::erase_if(match.runs, [](const KvTierMatch::Run& run) { return run.pages == 0; });
  return match;
}

/// What a sequence with this hit runs.
EngineCore::Work EngineCore::work_of(const Sequence& s, const ReplayInput& input, double now) const {
  const ReplayGeometry& g = options_.geometry;
  ReplayPlan plan = plan_replay(g, input);
  const int64_t page = options_.limits.page_positions;
  // Nearly always such a window serves, and if not, this is on the side of computing.
  if (input.hit > 0 && options_.snapshots && windows_->contains(s.keys[static_cast<size_t>(input.hit / page) - 1], now))
    plan.from = input.hit;
  const int64_t decoder = std::max(plan.from, plan.decoder_start);
  const int64_t rows = s.length() - plan.from;
  return {rows, rows * g.first_decoder_layer + (s.length() - decoder) * (g.layers - g.first_decoder_layer)};
}

/// 0 or more. Where a step of few rows takes as long as one of many, rows save little, and whole steps do.
double EngineCore::seconds_saved(const Work& alone, const Work& with_hit) const {
  const int64_t rows = std::max<int64_t>(0, alone.row_layers - with_hit.row_layers);
  const int64_t most = options_.limits.max_num_batched_tokens;
  const int64_t steps = (alone.rows + most - 1) / most - (with_hit.rows + most - 1) / most;
  return static_cast<double>(rows) * prefill_.row_layer_seconds +
         static_cast<double>(std::max<int64_t>(0, steps)) * prefill_.step_seconds;
}

void EngineCore::add_tier_hit(const Sequence& s, const PrefixMatch& found, Admission& a, ReplayInput& input, double now) const {
  // The index may have gained pages since, or lost some: then there is nothing to go on from.
  if (!s.tier_hit.has_value() || found.pages < s.tier_hit->first_page) return;
  const TierHit& hit = *s.tier_hit;
  a.tier_pages = std::max<int64_t>(0, hit.first_page + hit.match.pages - found.pages);
  if (a.tier_pages == 0) return;
  ReplayInput pulled = input;
  pulled.hit += a.tier_pages * options_.limits.page_positions;
  pulled.hit_exact = input.hit_exact && hit.match.exact;
  if (options_.cut_over) {
    const Work alone = work_of(s, input, now), with_hit = work_of(s, pulled, now);
    a.worth = seconds_saved(alone, with_hit);
    const double taken = tiers_->pull_seconds(rest_of(hit, found.pages)) + prefill_.direct_seconds;
    a.refused = alone.row_layers <= with_hit.row_layers || (prefill_.known() && taken >= a.worth);
    if (a.refused) a.tier_pages = 0;
  }
  if (a.tier_pages > 0) input = pulled;
}

void EngineCore::refuse_pull(Sequence& s) {
  ++stats_.pulls_refused;
  s.request->usage.tiers.miss = kv_store_miss_name(KvStoreMiss::kSlow);
  const TierHit& hit = *s.tier_hit;
  tiers_->probe(hit.match, std::span(s.keys).subspan(static_cast<size_t>(hit.first_page), static_cast<size_t>(hit.match.pages)));
  s.tier_hit.reset();
}

/// A device may run steps long after they were given to it; what they take shows when one of them has been waited for.
void EngineCore::learn_speed(const StepCommand& command, const StepResult& result) {
  if (command.after_idle) measured_ = {};
  Measured& m = measured_;
  if (m.steps++ == 0) m.begin = result.begin;
  m.rows += result.rows;
  m.row_layers += result.row_layers;
  for (const PullWait& wait : result.pull_waits) m.waited += wait.end - wait.begin;
  if (!result.over) return;
  const auto learn = [](double& estimate, double seconds, int64_t count, double news) {
    const double sample = seconds / static_cast<double>(count);
    estimate = estimate == 0 ? sample : (1 - news) * estimate + news * sample;
  };
  learn(row_seconds_, result.end - m.begin, m.rows, 0.1);
  // A step with few rows reads all weights for them: no measure of a prompt.
  constexpr int64_t kManyRows = 64;
  const int64_t many = std::min(kManyRows, options_.limits.max_num_batched_tokens / 2);
  if (m.rows >= many * m.steps && m.row_layers > 0) {
    const double seconds = result.end - m.begin - m.waited;
    learn(row_layer_seconds_, seconds, m.row_layers, 0.2);
    const double expected =
        static_cast<double>(m.row_layers) * prefill_.row_layer_seconds + static_cast<double>(m.steps) * prefill_.step_seconds;
    if (expected > 0) {
      const double factor = 0.8 + 0.2 * seconds / expected;
      prefill_.row_layer_seconds *= factor, prefill_.step_seconds *= factor;
    } else {
      prefill_.row_layer_seconds = row_layer_seconds_;
    }
  }
  m = {};
}

bool EngineCore::start_pull(const Sequence& s, const Admission& a, Sequence::Running& r, double now) {
  if (!r.pages.grow(a.tier_pages, now)) return false;
  auto pull = std::make_shared<TierPull>();
  pull->first_page = a.hit_pages;
  pull->exact = s.tier_hit->match.exact;
  pull->pages.assign(r.pages.data().begin() + a.hit_pages, r.pages.data().end());
  pull->shape = &tiers_->shape();
  pull->ttl_seconds = s.tier_hit->match.ttl_seconds;
  pull->begin = now;
  const auto keys = std::span(s.keys).subspan(static_cast<size_t>(a.hit_pages), static_cast<size_t>(a.tier_pages));
  // Without what the index has gained since.
  pull->pull = tiers_->pull(rest_of(*s.tier_hit, a.hit_pages), {keys.begin(), keys.end()}, pull->pages,
                            {.cache_class = s.request->cache_class, .worth_seconds = a.worth});
  r.pull = std::move(pull);
  ++stats_.pulls;
  return true;
}

bool EngineCore::pull_is_near(const Sequence::Running& r, double now) const {
  if (options_.step_at_once || r.pull->pull->done()) return true;
  if (!options_.overlap_pulls || pull_bytes_per_second_ == 0) return false;
  const auto groups = static_cast<double>(r.pull->shape->group_bytes.size());
  const double bytes = static_cast<double>(r.pull->shape->page_bytes()) * static_cast<double>(r.pull->pages.size());
  const double left = bytes / pull_bytes_per_second_ - (now - r.pull->begin);
  // The last group is needed when all groups before it have been computed with.
  const auto rows = static_cast<double>(std::min(options_.limits.max_num_batched_tokens, r.prompt_end - r.scheduled));
  return left <= rows * row_seconds_ * (groups - 1) / groups;
}

void EngineCore::accept_pull(Sequence& s, double now) {
  Sequence::Running& r = running_part(s);
  if (r.pull == nullptr) return;
  const std::shared_ptr<TierPull> pull = std::move(r.pull);
  r.pull = nullptr;
  const auto pages = static_cast<size_t>(pull->first_page) + pull->pages.size();
  r.pages.publish(std::span(s.keys).first(pages), pull->exact, now);
  s.tier_hit.reset();
  while (!pull->pull->done()) std::this_thread::yield();  // every group has arrived: only its figures are missing
  if (s.choice != 0) return;
  count_hit(s, s.replay->hit, pull->first_page * options_.limits.page_positions);
  count_pull(s, *pull);
  const TierUsage& usage = s.request->usage.tiers;
  if (usage.pull_seconds > 0 && usage.bytes > 0) {
    const double rate = static_cast<double>(usage.bytes) / usage.pull_seconds;
    pull_bytes_per_second_ = pull_bytes_per_second_ == 0 ? rate : 0.8 * pull_bytes_per_second_ + 0.2 * rate;
  }
}

void EngineCore::count_pull(Sequence& s, const TierPull& pull) {
  const KvPull::Result& result = pull.pull->result();
  TierUsage& usage = s.request->usage.tiers;
  const std::vector<std::string_view> names = tiers_->tier_names();
  usage.parts.clear();
  usage.bytes = 0;
  for (size_t tier = 0; tier < names.size(); ++tier) {
    usage.parts.push_back({.tier = names[tier], .tokens = result.pages_by_tier[tier] * options_.limits.page_positions});
    usage.bytes += result.bytes_by_tier[tier];
  }
  usage.pull_seconds = result.end - result.begin;
  const int64_t tokens = usage.tokens();
  stats_.pulled_tokens += tokens;
  stats_.prefix_hits += tokens;
  stats_.cached_tokens += tokens;
  if (trace_ != nullptr) trace_pull(s, pull);
}

void EngineCore::take_back(Sequence& s, double now) {
  auto* r = std::get_if<Sequence::Running>(&s.state);
  if (r == nullptr || r->pull == nullptr) return;
  const std::shared_ptr<TierPull> pull = r->pull;
  const KvPull::Result& result = pull->pull->result();  // who found the loss has waited for its end
  const auto good = static_cast<size_t>(pull->first_page + result.good_pages);
  r->pages.publish(std::span(s.keys).first(good), pull->exact, now);
  s.tier_hit.reset();
  if (s.choice == 0) {
    ++stats_.pulls_failed;
    const int64_t page = options_.limits.page_positions;
    count_hit(s, static_cast<int64_t>(good) * page, pull->first_page * page);
    count_pull(s, *pull);
    s.request->usage.tiers.miss = kv_store_miss_name(result.miss);
  }
  leave(s, /*preempted=*/true);
}

void EngineCore::settle_pulls() {
  const std::vector<SequenceId> ids = std::exchange(pulling_, {});
  for (const SequenceId id : ids) settle(id);
}

void EngineCore::release_copied() {
  while (!copying_.empty() && copying_.front().number <= tiers_->copied()) copying_.pop_front();
}

bool EngineCore::waits_for_pulls() const {
  if (!pulling_.empty() || (idle_ && !copying_.empty())) return in_flight_.empty();
  return in_flight_.empty() && std::any_of(running_.begin(), running_.end(), [](const Sequence* s) {
           return std::get<Sequence::Running>(s->state).pull != nullptr;
         });
}

void EngineCore::write_back(const Sequence& s, const PageTable& pages, int64_t first, int64_t end) {
  if (tiers_ == nullptr) return;
  int64_t last = 0;
  const auto bytes = static_cast<size_t>(tiers_->shape().page_bytes());
  for (int64_t i = first; i < end; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t number =
        tiers_->write_back({.key = s.keys[at],
                            .parent = i > 0 ? s.keys[at - 1] : hasher_.root(s.request->request.cache_salt, options_.fingerprint),
                            .cache_class = s.request->cache_class,
                            .exact = s.replay->exact_pages,
                            .page = {pages.data()[at], bytes}});
    last = std::max(last, number);
  }
  // Whatever becomes of the sequence.
  if (last > tiers_->copied()) copying_.push_back({pages.fork(end), last});
}

}  // namespace deepinfer
