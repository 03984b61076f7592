// What the core tells the trace recorder (docs/reference/timeline.md). Each member is called behind a test for null.

#include <algorithm>
#include <utility>

#include "engine/engine_core.h"

namespace deepinfer {

using telemetry::Category;
using telemetry::now_ns;
using telemetry::Phase;
using telemetry::Span;
using telemetry::to_ns;

void EngineCore::trace_phase(ActiveRequest& request, telemetry::Phase phase, int64_t end) {
  int64_t& mark = request.trace.mark;
  end = std::max(mark, end);
  trace_->phase(request.id, phase, mark, end);
  mark = end;
}

void EngineCore::trace_match(const Sequence& s, const Admission& found, int64_t begin) {
  trace_->record({.name = "match",
                  .category = Category::kCache,
                  .request = s.request->id,
                  .begin = begin,
                  .end = now_ns(),
                  .args = {{{"pages", static_cast<int64_t>(s.keys.size())}, {"hit_pages", found.hit_pages}}}});
}

void EngineCore::trace_lookup(const Sequence& s, const KvTierMatch& match) {
  const int64_t end = now_ns();
  const int64_t begin = s.request->trace.mark;
  trace_phase(*s.request, Phase::kLookup, end);
  trace_->record({.name = "lookup",
                  .category = Category::kCache,
                  .request = s.request->id,
                  .begin = std::min(begin, end),
                  .end = end,
                  .args = {{{"pages", static_cast<int64_t>(s.keys.size()) - s.tier_hit->first_page},
                            {"hit_pages", match.pages},
                            {"match_us", static_cast<int64_t>(match.seconds * 1e6)}}}});
}

void EngineCore::trace_admitted(ActiveRequest& request, bool pulls) {
  trace_phase(request, Phase::kQueue, trace_plan_begin_);
  request.trace.loading = pulls;
  if (pulls) {
    trace_phase(request, Phase::kMatch, now_ns());
  } else {
    trace_starting_.push_back(request.id);
  }
}

void EngineCore::trace_pull(const Sequence& s, const TierPull& pull) {
  const KvPull::Result& result = pull.pull->result();
  trace_->record({.name = "pull",
                  .category = Category::kCache,
                  .request = s.request->id,
                  .begin = to_ns(result.begin),
                  .end = to_ns(result.end),
                  .args = {{{"pages", static_cast<int64_t>(pull.pages.size())},
                            {"good_pages", result.good_pages},
                            {"bytes", s.request->usage.tiers.bytes}}}});
}

void EngineCore::trace_command(const StepCommand& command) {
  const int64_t now = now_ns();
  for (const RequestId id : trace_starting_) {
    const auto it = requests_.find(id);
    if (it != requests_.end()) trace_phase(*it->second, Phase::kMatch, now);
  }
  trace_starting_.clear();
  for (const StepRows& rows : command.rows) {
    ActiveRequest& request = *at(rows.sequence).request;
    if (std::exchange(request.trace.loading, false)) trace_phase(request, Phase::kLoad, now);
  }
  trace_sequences_ = static_cast<int64_t>(command.rows.size());
}

void EngineCore::trace_plan(int64_t step) {
  trace_->record({.name = "plan",
                  .category = Category::kEngine,
                  .step = step,
                  .begin = trace_plan_begin_,
                  .end = now_ns(),
                  .args = {{{"rows", plan_.row_count()}, {"sequences", trace_sequences_}, {"waiting", waiting()}}}});
}

void EngineCore::trace_device(const StepCommand& command, const StepResult& result) {
  const int64_t begin = to_ns(result.begin), end = to_ns(result.end);
  // An executor that does not tell its parts has the whole for a forward pass.
  const int64_t drafted = result.drafted > result.begin ? to_ns(result.drafted) : begin;
  const int64_t forward = result.forward_end > 0 ? to_ns(result.forward_end) : end;
  int64_t drafts = 0, tokens = 0;
  for (const DrawResult& draw : result.draws) {
    drafts += draw.drafted;
    tokens += draw.count;
  }
  const auto span = [&](const char* name, int64_t from, int64_t to, std::array<telemetry::SpanArg, Span::kMaxArgs> args) {
    trace_->record({.name = name, .category = Category::kDevice, .step = command.number, .begin = from, .end = to, .args = args});
  };
  const auto draws = static_cast<int64_t>(command.draws.size());
  span("step", begin, end, {{{"rows", result.rows}, {"draws", draws}}});
  if (drafted > begin && drafts > 0) span("draft", begin, drafted, {{{"drafts", drafts}}});
  span("forward", drafted, forward, {{{"rows", result.rows}}});
  span("draw", forward, end, {{{"tokens", tokens}, {"mask_wait_us", static_cast<int64_t>(result.mask_wait * 1e6)}}});
  for (const PullWait& wait : result.pull_waits) {
    const StepRows& rows = command.rows[static_cast<size_t>(wait.rows)];
    trace_->record({.name = "load",
                    .category = Category::kCache,
                    .request = at(rows.sequence).request->id,
                    .step = command.number,
                    .begin = to_ns(wait.begin),
                    .end = to_ns(wait.end),
                    .args = {{{"group", wait.group}, {"pages", static_cast<int64_t>(rows.pull->pages.size())}}}});
  }
  for (const StepRows& rows : command.rows) {
    const Sequence& s = at(rows.sequence);
    if (s.choice == 0 && !s.finished) trace_rows(s, rows, result, begin, forward, end);
    int64_t drawn = 0, drafted_here = 0;
    if (result.status.ok()) {
      for (int64_t d = rows.first_draw; d < rows.first_draw + rows.draw_count; ++d) {
        drawn += result.draws[static_cast<size_t>(d)].count;
        drafted_here += result.draws[static_cast<size_t>(d)].drafted;
      }
    }
    trace_->record({.name = rows.first < s.prompt_tokens ? "prefill step" : "decode step",
                    .category = Category::kRequest,
                    .request = s.request->id,
                    .step = command.number,
                    .begin = begin,
                    .end = end,
                    .args = {{{"rows", rows.count}, {"position", rows.first}, {"tokens", drawn}, {"drafts", drafted_here}}}});
  }
}

/// The phases that this step ends.
void EngineCore::trace_rows(const Sequence& s, const StepRows& rows, const StepResult& result, int64_t begin, int64_t forward,
                            int64_t end) {
  ActiveRequest& request = *s.request;
  if (!request.trace.started) {
    request.trace.started = true;
    trace_phase(request, Phase::kHandoff, begin);
  }
  if (request.trace.drawn || rows.draw_count == 0 || !result.status.ok()) return;
  request.trace.drawn = true;
  trace_phase(request, Phase::kPrefill, forward);
  trace_phase(request, Phase::kFirstDecode, end);
}

void EngineCore::trace_publish(const StepCommand& command, const StepResult& result, double begin) {
  trace_->record({.name = "publish",
                  .category = Category::kEngine,
                  .step = command.number,
                  .begin = to_ns(begin),
                  .end = now_ns(),
                  .args = {{{"tokens", static_cast<int64_t>(result.tokens.size())},
                            {"sequences", static_cast<int64_t>(command.rows.size())}}}});
}

void EngineCore::trace_token(ActiveRequest& request) {
  if (request.trace.published) return;
  request.trace.published = true;
  trace_->first_token(request.id, request.trace.mark, now_ns());
}

void EngineCore::trace_preempted(const Sequence& s) {
  const int64_t now = now_ns();
  trace_->record({.name = "preempted",
                  .category = Category::kRequest,
                  .request = s.request->id,
                  .begin = now,
                  .end = now,
                  .args = {{{"position", std::get<Sequence::Running>(s.state).scheduled}}}});
}

void EngineCore::trace_finished(const ActiveRequest& request, FinishReason reason) {
  const Usage& usage = request.usage;
  trace_->finished(request.id, now_ns(), finish_reason_name(reason),
                   {.prompt_tokens = usage.prompt_tokens,
                    .cached_tokens = usage.cached_tokens,
                    .replayed_tokens = usage.replayed_tokens,
                    .completion_tokens = usage.completion_tokens,
                    .preemptions = usage.preemptions});
}

}  // namespace deepinfer
