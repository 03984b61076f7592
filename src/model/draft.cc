// The DSpark draft module (dspark.md §3): context rows from the taps of the backbone, the block pass, Markov chain and
// confidences.

#include <algorithm>
#include <utility>

#include "model/model.h"
#include "model/step.h"
#include "ops/shape_buckets.h"

namespace deepinfer {

Status Model::extend_draft(std::span<const DraftContext> contexts, StepObserver* observer) {
  const ModelConfig& c = config_;
  Buffers& b = *buffers_;
  if (!has_draft()) return Status::FailedPrecondition("draft: the model has no draft module");
  const int64_t width = c.hidden_size * static_cast<int64_t>(c.dspark_target_layer_ids.size());
  const int64_t pairs = c.qk_rope_head_dim / 2;
  Step step;
  step.observer = observer;
  step.b = &b;
  step.rope_pairs = pairs;
  b.all.spans.clear();
  bool waits = false;
  for (size_t i = 0; i < contexts.size(); ++i) {
    const DraftContext& d = contexts[i];
    if (d.state == nullptr) return Status::InvalidArgument("draft context {} has no state", i);
    const int64_t end = d.position + d.count;
    if (d.count < 1 || d.position < 0 || end > d.state->length() || (d.row + d.count) * width > b.main_hidden.size()) {
      return Status::OutOfRange("draft context {}: {} rows from row {}, positions {} to {} of a sequence of {}", i, d.count,
                                d.row, d.position, end, d.state->length());
    }
    if (d.save != nullptr && (d.save->length != d.save_at || d.save_at <= d.position || d.save_at > end)) {
      return Status::InvalidArgument("draft context {}: a snapshot at {} for one at {}, positions {} to {}", i, d.save->length,
                                     d.save_at, d.position, end);
    }
    // Only what a block can still see, and nothing that has no taps.
    int64_t first = std::max(d.position, (d.save != nullptr ? std::min(d.save_at, end) : end) - c.sliding_window);
    first = std::max(first, std::min(d.state->decoder_start(), end));
    if (first == end) continue;
    b.all.spans.push_back({.state = d.state,
                           .start = first,
                           .count = end - first,
                           .first_row = step.rows,
                           .input_row = d.row + first - d.position,
                           .save = d.save != nullptr && d.save_at > first ? d.save : nullptr,
                           .save_at = d.save_at});
    waits = waits || (b.all.spans.back().save != nullptr && !saves_behind(*d.state, d.save_at, end));
    step.rows += end - first;
  }
  if (step.rows == 0) return Status::Ok();
  const int64_t live = step.rows;
  step.replayed = !waits && replays(live, observer);
  step.rows = step.replayed ? row_bucket(live) : live;
  b.all.rows = step.rows;
  b.all.live = live;
  step.use(b.all);
  reserve_buffers(step);
  b.draft_taps.reserve_discard(step.rows * width);
  for (const StepSpan& span : b.all.spans) {
    for (int64_t i = 0; i < span.count; ++i) {
      plain_rope_.fill(span.start + i, b.all.plain_cos.host() + (span.first_row + i) * pairs,
                       b.all.plain_sin.host() + (span.first_row + i) * pairs);
    }
  }
  for (SharedBuffer<float>* t : {&b.all.plain_cos, &b.all.plain_sin}) repeat_last_row(t->host(), pairs, live, step.rows);
  if (step.replayed) {
    backend_->replay([&] { run_context(step); });
  } else {
    run_context(step);
  }
  for (const StepSpan& span : b.all.spans) {
    if (span.save != nullptr && saves_behind(*span.state, span.save_at, span.end())) {
      begin_save_context(span);
      span.state->save_draft_stages(*span.save, b.rings);
    }
    span.state->advance_draft(span.start, span.count);
  }
  return Status::Ok();
}

void Model::begin_save_context(const StepSpan& span) {
  const bool joins = span.state->draft_end() == span.start && span.state->draft_start() < span.start;
  span.state->begin_save_draft(joins ? span.state->draft_start() : span.start, *span.save);
}

void Model::run_context(Step& step) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t width = c.hidden_size * static_cast<int64_t>(c.dspark_target_layer_ids.size());
  b.all.plain_cos.upload(step.rows * step.rope_pairs);
  b.all.plain_sin.upload(step.rows * step.rope_pairs);
  b.copies.clear();
  for (const StepSpan& span : b.all.spans) {
    for (int64_t i = 0; i < span.count; ++i) {
      b.copies.push_back(
          {b.draft_taps.data() + (span.first_row + i) * width, b.main_hidden.data() + (span.input_row + i) * width});
    }
  }
  for (int64_t r = step.live; r < step.rows; ++r) b.copies.push_back({b.draft_taps.data() + r * width, b.copies.back().from});
  b.memory->copy_rows(b.copies, width * static_cast<int64_t>(sizeof(bf16)));
  step.replace("main_hidden", c.num_hidden_layers, b.draft_taps, step.rows * width);
  const LinearOutput main{weights_.draft.main_proj, b.u.data()};
  backend_->linear_fp8(b.draft_taps.data(), step.rows, {&main, 1});
  backend_->rms_norm(b.u.data(), weights_.draft.main_norm, c.rms_norm_eps, step.rows, c.hidden_size, b.u.data());
  step.observe("main_x", c.num_hidden_layers, b.u, step.rows * c.hidden_size);

  const int64_t bytes = c.window_row_bytes();
  for (size_t s = 0; s < weights_.draft.stages.size(); ++s) {
    const BlockWeights& w = weights_.draft.stages[s];
    const auto stage = static_cast<int64_t>(s);
    const LinearOutput kv{w.wkv, b.kv.data()};
    backend_->linear_fp8(b.u.data(), step.rows, {&kv, 1});
    backend_->rms_norm(b.kv.data(), w.kv_norm, c.rms_norm_eps, step.rows, c.head_dim, b.kv.data());
    backend_->rope(b.kv.data(), step.plain_rope(), step.rows, 1, c.head_dim, false);
    backend_->pack_window(b.kv.data(), step.rows, c.head_dim, b.window_kv.data());
    step.observe("context_kv", c.num_hidden_layers + stage, b.window_kv, step.rows * bytes);
    if (step.replace("context_kv", c.num_hidden_layers + stage, b.kv, step.rows * c.head_dim))
      backend_->pack_window(b.kv.data(), step.rows, c.head_dim, b.window_kv.data());
    b.copies.clear();
    for (const StepSpan& span : b.all.spans) {
      SequenceState& state = *span.state;
      const uint8_t* fresh = b.window_kv.data() + span.first_row * bytes;
      if (span.save != nullptr && !saves_behind(state, span.save_at, span.end())) {
        if (stage == 0) begin_save_context(span);
        state.save_draft_stage(stage, fresh, span.start, *span.save);
      }
      uint8_t* ring = state.draft_ring(stage);
      for (int64_t p = std::max(span.start, span.end() - state.window_capacity()); p < span.end(); ++p)
        b.copies.push_back({ring + p % state.window_capacity() * bytes, fresh + (p - span.start) * bytes});
    }
    pad_copies(step, step.rows);
    b.memory->copy_rows(b.copies, bytes);
  }
}

Status Model::check_draft(std::span<const DraftSequence> sequences, int64_t length) const {
  const ModelConfig& c = config_;
  if (!has_draft()) return Status::FailedPrecondition("draft: the model has no draft module");
  if (length < 1 || length > c.dspark_block_size)
    return Status::OutOfRange("draft: {} tokens, dspark_block_size is {}", length, c.dspark_block_size);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const DraftSequence& s = sequences[i];
    if (s.state == nullptr) return Status::InvalidArgument("draft: sequence {} has no state", i);
    if (s.anchor < 0 || s.anchor >= c.vocab_size) {
      return Status::OutOfRange("draft: the anchor of sequence {} is {}, the vocabulary has {}", i, s.anchor, c.vocab_size);
    }
    if (!s.draw.has_value()) continue;
    if (!draws())
      return Status::FailedPrecondition("draft: sequence {} is to be drawn by {}, which does not draw", i, backend_->name());
    if (i > 0 && !sequences[i - 1].draw.has_value())
      return Status::InvalidArgument("draft: sequence {} is drawn by the backend, {} before it is not", i, i - 1);
  }
  return Status::Ok();
}

Result<DraftOutput> Model::draft(std::span<const DraftSequence> sequences, int64_t length, DraftPick pick,
                                 StepObserver* observer) {
  DI_RETURN_IF_ERROR(check_draft(sequences, length));
  if (sequences.empty()) return DraftOutput{};
  Buffers& b = *buffers_;
  Step step;
  step.observer = observer;
  step.b = &b;
  DraftRound round{.sequences = sequences, .length = length};
  step.replayed = replays(round.count() * config_.dspark_block_size, observer);
  round.lanes = step.replayed ? row_bucket(round.count()) : round.count();
  round.drawn = std::count_if(sequences.begin(), sequences.end(), [](const DraftSequence& s) { return s.draw.has_value(); });
  prepare_draft(step, round);
  const auto pass = [&] { run_draft(step, round); };
  const auto chain = [&] {
    for (int64_t k = 0; k < length; ++k) draft_position(round, k);
    draft_confidences(round);
  };
  if (step.replayed && round.all_drawn()) {
    backend_->replay([&] {
      pass();
      chain();
    });
  } else {
    step.replayed ? backend_->replay(pass) : pass();
    for (int64_t k = 0; k < length; ++k) {
      draft_position(round, k);
      pick_position(step, round, k, pick);
    }
    draft_confidences(round);
  }
  b.drafted.download();
  b.draft_tokens.clear();
  b.draft_confidences.clear();
  for (int64_t i = 0; i < round.count(); ++i) {
    for (int64_t k = 0; k < length; ++k) {
      const int32_t token = b.drafted.host_tokens(k + 1)[i];
      DI_CHECK(token >= 0 && token < config_.vocab_size, "draft {} of sequence {} is {}, the vocabulary has {}", k, i, token,
               config_.vocab_size);
      b.draft_tokens.push_back(token);
      b.draft_confidences.push_back(b.drafted.host_confidences()[k * round.lanes + i]);
    }
  }
  return DraftOutput{b.draft_tokens, b.draft_confidences};
}

void Model::reserve_draft(const DraftRound& round) {
  const ModelConfig& c = config_;
  Buffers& b = *buffers_;
  const int64_t wanted = round.lanes * round.length;
  b.head_x.reserve_discard(wanted * c.hidden_size);
  b.head_u.reserve_discard(wanted * c.hidden_size);
  b.draft_base.reserve_discard(wanted * c.vocab_size);
  b.draft_logits.reserve_discard(round.lanes * c.vocab_size);
  b.drafted.reserve(round.length, round.lanes);
}

void Model::prepare_draft(Step& step, const DraftRound& round) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t block = c.dspark_block_size;
  const int64_t pairs = c.qk_rope_head_dim / 2;
  b.all.rows = round.lanes * block;  // always the trained width: verify a part of it, never draft a part (dspark.md D4)
  b.all.live = round.count() * block;
  step.use(b.all);
  step.rope_pairs = pairs;
  reserve_buffers(step);
  reserve_draft(round);
  b.all.spans.clear();
  b.draft_ids.assign(static_cast<size_t>(step.rows), static_cast<int32_t>(c.dspark_noise_token_id));
  b.draft_draws.clear();
  b.draft_picked.resize(round.sequences.size());
  for (int64_t lane = 0; lane < round.lanes; ++lane) {
    const DraftSequence& s = round.sequences[static_cast<size_t>(std::min(lane, round.count() - 1))];
    const int64_t row = lane * block;
    // The pass only reads the state.
    b.all.spans.push_back(
        {.state = const_cast<SequenceState*>(s.state), .start = s.state->length(), .count = block, .first_row = row});
    b.draft_ids[static_cast<size_t>(row)] = b.drafted.host_tokens(0)[lane] = s.anchor;
    for (int64_t i = 0; i < block; ++i) {
      plain_rope_.fill(s.state->length() + i, b.all.plain_cos.host() + (row + i) * pairs,
                       b.all.plain_sin.host() + (row + i) * pairs);
    }
  }
  for (int64_t k = 0; k < round.length; ++k) {
    for (int64_t lane = 0; lane < round.draw_rows(); ++lane) {
      const DraftSequence& s = round.sequences[static_cast<size_t>(std::min(lane, round.count() - 1))];
      DrawRow draw = *s.draw;
      draw.row = lane;
      draw.position = s.state->length() + 1 + k;
      draw.certain = true;
      b.draft_draws.push_back(draw);
    }
  }
}

void Model::run_draft(Step& step, const DraftRound& round) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t hidden = c.hidden_size;
  const int64_t rows = round.lanes * round.length;
  b.drafted.upload(0, 0);
  draft_block(step);
  backend_->hyper_collapse(b.x.data(), b.pre.data(), step.rows, c.hc_mult, hidden, b.u.data());
  b.copies.clear();
  for (int64_t k = 0; k < round.length; ++k) {
    for (int64_t lane = 0; lane < round.lanes; ++lane) {
      b.copies.push_back(
          {b.head_x.data() + (k * round.lanes + lane) * hidden, b.u.data() + (lane * c.dspark_block_size + k) * hidden});
    }
  }
  b.memory->copy_rows(b.copies, hidden * static_cast<int64_t>(sizeof(bf16)));
  backend_->rms_norm(b.head_x.data(), weights_.draft.norm, c.rms_norm_eps, rows, hidden, b.head_u.data());
  backend_->linear_bf16_fp32(b.head_u.data(), rows, weights_.head, b.draft_base.data());
}

void Model::draft_position(const DraftRound& round, int64_t k) {
  Buffers& b = *buffers_;
  const int64_t vocab = config_.vocab_size;
  backend_->markov_logits({.embed = weights_.draft.markov_embed,
                           .head = weights_.draft.markov_head,
                           .previous = b.drafted.device_tokens(k),
                           .rows = round.lanes,
                           .base = b.draft_base.data() + k * round.lanes * vocab,
                           .base_stride = vocab,
                           .logits = b.draft_logits.device()});
  const auto rows = static_cast<size_t>(round.draw_rows());
  if (rows == 0) return;
  backend_->draw(b.draft_logits.device(), vocab, std::span(b.draft_draws).subspan(static_cast<size_t>(k) * rows, rows),
                 b.drafted.device_tokens(k + 1));
}

void Model::pick_position(const Step& step, const DraftRound& round, int64_t k, DraftPick pick) {
  Buffers& b = *buffers_;
  const int64_t vocab = config_.vocab_size;
  const int64_t count = round.count();
  const int64_t first = step.observer != nullptr ? 0 : round.drawn;
  if (first == count) return;
  if (!b.memory->is_host()) {
    b.memory->download(b.draft_logits.host() + first * vocab, b.draft_logits.device() + first * vocab,
                       (count - first) * vocab * static_cast<int64_t>(sizeof(float)));
  }
  step.observe("draft_logits", k, b.draft_logits.host(), count * vocab);
  if (round.all_drawn()) return;
  pick(k, {b.draft_logits.host(), static_cast<size_t>(count * vocab)}, b.draft_picked);
  for (int64_t lane = round.drawn; lane < round.lanes; ++lane) {
    const int64_t i = std::min(lane, count - 1);
    const int32_t token = b.draft_picked[static_cast<size_t>(i)];
    DI_CHECK(token >= 0 && token < vocab, "draft {} of sequence {} is {}, the vocabulary has {}", k, i, token, vocab);
    b.drafted.host_tokens(k + 1)[lane] = token;
  }
  b.drafted.upload(k + 1, round.drawn);
}

/// Of all positions at once: each stands beside the token before it.
void Model::draft_confidences(const DraftRound& round) {
  Buffers& b = *buffers_;
  backend_->draft_confidence({.x = b.head_x.data(),
                              .embed = weights_.draft.markov_embed,
                              .previous = b.drafted.device_tokens(0),
                              .rows = round.lanes * round.length,
                              .proj = weights_.draft.confidence,
                              .confidences = b.drafted.device_confidences()});
}

void Model::draft_block(Step& step) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t n = c.hc_mult;
  b.all.plain_cos.upload(step.rows * step.rope_pairs);
  b.all.plain_sin.upload(step.rows * step.rope_pairs);
  b.all.upload_counted();
  backend_->embed(b.draft_ids, weights_.embed, n, b.x.data());
  begin_pre(step);
  for (size_t s = 0; s < weights_.draft.stages.size(); ++s) {
    const BlockWeights& w = weights_.draft.stages[s];
    const int64_t layer = c.num_hidden_layers + static_cast<int64_t>(s);
    backend_->begin_layer(layer);
    step.observe_block(layer, n, c.hidden_size);
    if (!std::exchange(step.collapsed, false)) collapse_and_norm(step, w.attn_norm);
    mix_streams(step, w.hc_attn);
    draft_attention(step, static_cast<int64_t>(s));
    const bool collapses = step.observer == nullptr && s + 1 < weights_.draft.stages.size();
    finish_block(step, layer, w, c.dspark_num_experts_per_tok, collapses ? weights_.draft.stages[s + 1].attn_norm : nullptr);
  }
  backend_->begin_layer(-1);
}

void Model::draft_attention(Step& step, int64_t stage) {
  const ModelConfig& c = config_;
  const BlockWeights& w = weights_.draft.stages[static_cast<size_t>(stage)];
  Buffers& b = *step.b;
  const RopeRows rotation = step.plain_rope();
  attention_inputs(step, c.num_hidden_layers + stage, w, rotation);
  for (const StepSpan& span : b.all.spans) {
    SequenceState& state = *span.state;
    const bool current = state.draft_end() == span.start;
    const WindowRows window{.ring = state.draft_ring(stage),
                            .capacity = state.window_capacity(),
                            .fresh = b.window_kv.data() + span.first_row * c.window_row_bytes(),
                            .start = span.start,
                            .row_bytes = c.window_row_bytes()};
    for (int64_t row = span.first_row; row < span.first_row + span.count; ++row) {
      // One list of keys for the whole block: it does not slide, and it looks both ways.
      b.queries[static_cast<size_t>(row)] = {
          .window = window,
          .window_first = current ? std::max(state.draft_start(), span.start - c.sliding_window) : span.start,
          .window_last = span.end() - 1,
          .compressed = {},
          .chosen = nullptr,
          .chosen_count = 0};
    }
  }
  rotated_attention(step, w.attn_sink, rotation);
  attention_output(step, w);
}

}  // namespace deepinfer
