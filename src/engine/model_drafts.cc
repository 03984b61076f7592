// The speculative part of a step: drafts before the forward pass, taking back what was not accepted behind it (dspark.md §4, §5).

#include <algorithm>

#include "engine/model_executor.h"

namespace deepinfer {

Status ModelExecutor::draft(const StepCommand& command) {
  draft_sequences_.clear();
  drafts_in_form_.clear();
  draft_width_ = 0;
  drafts_drawn_ = 0;
  // Those that the device draws come first.
  for (const bool drawn : {true, false}) {
    for (size_t i = 0; i < command.rows.size(); ++i) {
      const StepRows& rows = command.rows[i];
      if (live_[i].count > 0 && rows.drafts > 0 && device_draws(*rows.device) == drawn) offer_drafts(rows, i, drawn);
    }
    if (drawn) drafts_drawn_ = offers_.size();
  }
  if (offers_.empty()) return Status::Ok();
  // Rounds that ask for nothing back on their way have one width, so that they come in few shapes.
  if (drafts_drawn_ == offers_.size()) draft_width_ = policy_.most();
  const auto count = offers_.size();
  const auto width = static_cast<size_t>(draft_width_);
  draft_masks_.resize(static_cast<size_t>(pool_->size()) * static_cast<size_t>((model_->config().vocab_size + 31) / 32));
  const auto drafted = model_->draft(
      draft_sequences_, draft_width_,
      [&](int64_t k, std::span<float> logits, std::span<int32_t> tokens) { pick_drafts(command, k, logits, tokens); });
  if (!drafted) return drafted.error();
  draft_tokens_.assign(drafted->tokens.begin(), drafted->tokens.end());
  draft_confidences_.assign(drafted->confidences.begin(), drafted->confidences.end());
  int64_t rows = 0;
  for (const LiveRows& live : live_) rows += live.count;
  for (size_t o = 0; o < count; ++o) {
    const StepRows& r = command.rows[drafting_[o]];
    const auto tokens = std::span(draft_tokens_).subspan(o * width, static_cast<size_t>(offers_[o].most));
    // The samplers counted the drafts as they were drawn here, and the forms took them.
    for (size_t k = o < drafts_drawn_ ? 0 : tokens.size(); k > 0; --k) r.device->sampler.remove_output(tokens[k - 1]);
    if (r.device->constraint.has_value()) r.device->constraint->rollback(drafts_in_form_[o]);
    offers_[o].confidences = std::span<const float>(draft_confidences_).subspan(o * width, tokens.size());
    if (replace_drafts_) {
      replace_drafts_(r.sequence, live_[drafting_[o]].first + 1, tokens,
                      std::span(draft_confidences_).subspan(o * width, tokens.size()));
      for (int32_t& token : tokens) token = std::clamp<int32_t>(token, 0, static_cast<int32_t>(model_->config().vocab_size - 1));
    }
  }
  policy_.choose(offers_, command.draft_rows, rows);
  for (size_t o = 0; o < count; ++o) {
    live_[drafting_[o]].drafts = offers_[o].chosen;
    if (policy_.variable()) command.rows[drafting_[o]].device->draft_rest.chose(offers_[o].chosen);
  }
  return Status::Ok();
}

void ModelExecutor::offer_drafts(const StepRows& rows, size_t at, bool drawn) {
  LiveRows& live = live_[at];
  const SequenceState& s = state(rows.place);
  // One token more than drafts is drawn; positions from the end on are neither drawn nor, for lack of pages, run.
  const int64_t next = live.first + live.count;
  const int64_t most = std::min({rows.drafts, rows.device->end.position - next - 1, s.page_count() * kPagePositions - next});
  if (most <= 0 || rows.device->draft_rest.rests()) return;
  live.offer = static_cast<int64_t>(offers_.size());
  drafting_.push_back(at);
  offers_.push_back({.most = most, .confidences = {}, .chosen = 0});
  draft_sequences_.push_back({&s, rows.device->last});
  if (drawn) draft_sequences_.back().draw = draw_row(rows.device->sampler.params());
  drafts_in_form_.push_back(0);
  draft_width_ = std::max(draft_width_, most);
}

/// The draft is drawn as the target's token will be: same noise, same filters, counts that hold the drafts before it. That makes
/// the two meet most often (spec/sampling §5). What the device draws alike never comes here.
void ModelExecutor::pick_drafts(const StepCommand& command, int64_t k, std::span<float> logits, std::span<int32_t> tokens) {
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const size_t words = (vocab + 31) / 32;
  pool_->run(static_cast<int64_t>(tokens.size() - drafts_drawn_), [&](int64_t i, int thread) {
    const size_t o = static_cast<size_t>(i) + drafts_drawn_;
    if (k >= offers_[o].most) return;  // what is there stays: nobody reads it
    const size_t at = drafting_[o];
    DeviceSequence& device = *command.rows[at].device;
    std::span<uint32_t> mask;
    // Behind the end of a form there is nothing to draw: the draft there is as good as any, and is never reached.
    if (device.constraint.has_value() && !device.constraint->ended()) {
      mask = std::span(draft_masks_).subspan(static_cast<size_t>(thread) * words, words);
      device.constraint->fill_mask(mask);
    }
    tokens[o] = device.sampler.sample(logits.subspan(o * vocab, vocab), live_[at].first + 1 + k, mask);
    device.sampler.add_output(tokens[o]);
    if (!mask.empty() && device.constraint->accept(tokens[o])) ++drafts_in_form_[o];
  });
}

Status ModelExecutor::settle_drafts(const StepCommand& command, DraftPolicy::Kind kind, StepResult& result) {
  contexts_.clear();
  const auto width = static_cast<size_t>(draft_width_);
  size_t window = 0;
  for (size_t i = 0; i < command.rows.size(); ++i) {
    const StepRows& rows = command.rows[i];
    const LiveRows& live = live_[i];
    SequenceState& s = state(rows.place);
    std::shared_ptr<CachedWindow>* saved = rows.save_at >= 0 ? &result.windows[window++] : nullptr;
    if (live.drafts > 0) {
      const int64_t kept = result.draws[static_cast<size_t>(rows.first_draw)].count - 1;
      DI_RETURN_IF_ERROR(s.truncate(live.first + live.count + kept));
    }
    if (live.offer >= 0) {
      const auto o = static_cast<size_t>(live.offer);
      const int64_t accepted = result.draws[static_cast<size_t>(rows.first_draw)].count - 1;
      if (!rows.device->ended) policy_.learn_draft(offers_[o].confidences, live.drafts, accepted);
      if (trace_drafts_) {
        trace_drafts_({.sequence = rows.sequence,
                       .position = live.first + 1,
                       .tokens = std::span<const int32_t>(draft_tokens_).subspan(o * width, static_cast<size_t>(offers_[o].most)),
                       .confidences = offers_[o].confidences,
                       .verified = live.drafts,
                       .accepted = accepted});
      }
    }
    result.ends.push_back(s.length());
    // A snapshot of rows that were taken back, or of a position that the rows did not come by.
    if (saved != nullptr && (*saved)->window.length != rows.save_at) saved->reset();
    if (saved != nullptr && *saved != nullptr && rows.save_at > s.length()) saved->reset();
    if (kind == DraftPolicy::Kind::kPlain || live.count == 0) continue;
    const int64_t from = std::max(live.first, rows.context_from);
    const int64_t end = s.length();
    if (from >= end || (rows.device->ended && (saved == nullptr || *saved == nullptr))) continue;
    WindowSnapshot* save = saved != nullptr && *saved != nullptr && rows.save_at > from ? &(*saved)->window : nullptr;
    contexts_.push_back({.state = &s,
                         .row = live.row + from - live.first,
                         .position = from,
                         .count = end - from,
                         .save = save,
                         .save_at = rows.save_at});
  }
  return contexts_.empty() ? Status::Ok() : model_->extend_draft(contexts_);
}

}  // namespace deepinfer
