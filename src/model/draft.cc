// The DSpark draft module (dspark.md §3): context rows from the taps of the backbone, the block pass, Markov chain and
// confidences.

#include <algorithm>
#include <cstring>

#include "model/model.h"
#include "model/step.h"

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
    step.rows += end - first;
  }
  if (step.rows == 0) return Status::Ok();
  b.all.rows = b.all.live = step.rows;
  step.use(b.all);
  reserve_buffers(step);
  b.draft_taps.reserve_discard(step.rows * width);
  for (const StepSpan& span : b.all.spans) {
    b.memory->copy(b.draft_taps.data() + span.first_row * width, b.main_hidden.data() + span.input_row * width,
                   span.count * width * static_cast<int64_t>(sizeof(bf16)));
    for (int64_t i = 0; i < span.count; ++i) {
      plain_rope_.fill(span.start + i, b.all.plain_cos.host() + (span.first_row + i) * pairs,
                       b.all.plain_sin.host() + (span.first_row + i) * pairs);
    }
  }
  b.all.plain_cos.upload(step.rows * pairs);
  b.all.plain_sin.upload(step.rows * pairs);
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
      if (span.save != nullptr) {
        const bool joins = state.draft_end() == span.start && state.draft_start() < span.start;
        if (stage == 0) state.begin_save_draft(joins ? state.draft_start() : span.start, *span.save);
        state.save_draft_stage(stage, fresh, span.start, *span.save);
      }
      uint8_t* ring = state.draft_ring(stage);
      for (int64_t p = std::max(span.start, span.end() - state.window_capacity()); p < span.end(); ++p)
        b.copies.push_back({ring + p % state.window_capacity() * bytes, fresh + (p - span.start) * bytes});
    }
    b.memory->copy_rows(b.copies, bytes);
  }
  for (const StepSpan& span : b.all.spans) span.state->advance_draft(span.start, span.count);
  return Status::Ok();
}

Result<DraftOutput> Model::draft(std::span<const DraftSequence> sequences, int64_t length, DraftPick pick,
                                 StepObserver* observer) {
  const ModelConfig& c = config_;
  Buffers& b = *buffers_;
  if (!has_draft()) return Err(Status::FailedPrecondition("draft: the model has no draft module"));
  if (length < 1 || length > c.dspark_block_size) {
    return Err(Status::OutOfRange("draft: {} tokens, dspark_block_size is {}", length, c.dspark_block_size));
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const DraftSequence& s = sequences[i];
    if (s.state == nullptr) return Err(Status::InvalidArgument("draft: sequence {} has no state", i));
    if (s.anchor < 0 || s.anchor >= c.vocab_size) {
      return Err(Status::OutOfRange("draft: the anchor of sequence {} is {}, the vocabulary has {}", i, s.anchor, c.vocab_size));
    }
  }
  const auto count = static_cast<int64_t>(sequences.size());
  if (count == 0) return DraftOutput{};
  Step step;
  step.observer = observer;
  step.b = &b;
  reserve_draft(count, length);
  run_draft(step, sequences, length);

  // The chain over the heads.
  const DraftWeights& d = weights_.draft;
  const int64_t wanted = count * length;
  b.draft_chosen.resize(sequences.size());
  for (int64_t i = 0; i < count; ++i) b.draft_chosen[static_cast<size_t>(i)] = sequences[static_cast<size_t>(i)].anchor;
  for (int64_t k = 0; k < length; ++k) {
    for (int64_t i = 0; i < count; ++i) b.draft_previous[i * length + k] = b.draft_chosen[static_cast<size_t>(i)];
    backend_->markov_logits({.embed = d.markov_embed,
                             .head = d.markov_head,
                             .previous = b.draft_chosen,
                             .base = b.draft_base.data() + k * c.vocab_size,
                             .base_stride = length * c.vocab_size,
                             .logits = b.draft_logits.device()});
    b.draft_logits.download(count * c.vocab_size);
    step.observe("draft_logits", k, b.draft_logits.host(), count * c.vocab_size);
    pick(k, {b.draft_logits.host(), static_cast<size_t>(count * c.vocab_size)}, b.draft_chosen);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = b.draft_chosen[static_cast<size_t>(i)];
      DI_CHECK(token >= 0 && token < c.vocab_size, "draft {} of sequence {} is {}, the vocabulary has {}", k, i, token,
               c.vocab_size);
      b.draft_tokens[i * length + k] = token;
    }
  }
  backend_->draft_confidence({.x = b.head_x.data(),
                              .embed = d.markov_embed,
                              .previous = {b.draft_previous.data(), static_cast<size_t>(wanted)},
                              .proj = d.confidence,
                              .confidences = b.confidences.device()});
  b.confidences.download(wanted);
  return DraftOutput{{b.draft_tokens.data(), static_cast<size_t>(wanted)}, {b.confidences.host(), static_cast<size_t>(wanted)}};
}

void Model::reserve_draft(int64_t count, int64_t length) {
  const ModelConfig& c = config_;
  Buffers& b = *buffers_;
  const int64_t wanted = count * length;
  b.head_x.reserve_discard(wanted * c.hidden_size);
  b.head_u.reserve_discard(wanted * c.hidden_size);
  b.draft_base.reserve_discard(wanted * c.vocab_size);
  b.draft_logits.reserve_discard(count * c.vocab_size);
  b.confidences.reserve_discard(wanted);
  b.draft_tokens.reserve_discard(wanted);
  b.draft_previous.reserve_discard(wanted);
}

void Model::run_draft(Step& step, std::span<const DraftSequence> sequences, int64_t length) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const auto count = static_cast<int64_t>(sequences.size());
  const int64_t hidden = c.hidden_size;
  step.rows = count * c.dspark_block_size;  // always the trained width: verify a part of it, never draft a part (dspark.md D4)
  b.all.rows = b.all.live = step.rows;
  step.use(b.all);
  draft_block(step, sequences);
  backend_->hyper_collapse(b.x.data(), b.pre.data(), step.rows, c.hc_mult, hidden, b.u.data());
  b.copies.clear();
  for (int64_t i = 0; i < count; ++i)
    b.copies.push_back({b.head_x.data() + i * length * hidden, b.u.data() + i * c.dspark_block_size * hidden});
  b.memory->copy_rows(b.copies, length * hidden * static_cast<int64_t>(sizeof(bf16)));
  backend_->rms_norm(b.head_x.data(), weights_.draft.norm, c.rms_norm_eps, count * length, hidden, b.head_u.data());
  backend_->linear_bf16_fp32(b.head_u.data(), count * length, weights_.head, b.draft_base.data());
}

void Model::draft_block(Step& step, std::span<const DraftSequence> sequences) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t block = c.dspark_block_size;
  const int64_t n = c.hc_mult;
  const int64_t pairs = c.qk_rope_head_dim / 2;
  step.rope_pairs = pairs;
  reserve_buffers(step);
  b.all.spans.clear();
  b.draft_ids.assign(static_cast<size_t>(step.rows), static_cast<int32_t>(c.dspark_noise_token_id));
  int64_t row = 0;
  for (const DraftSequence& s : sequences) {
    // The pass only reads the state.
    b.all.spans.push_back(
        {.state = const_cast<SequenceState*>(s.state), .start = s.state->length(), .count = block, .first_row = row});
    b.draft_ids[static_cast<size_t>(row)] = s.anchor;
    for (int64_t i = 0; i < block; ++i, ++row)
      plain_rope_.fill(s.state->length() + i, b.all.plain_cos.host() + row * pairs, b.all.plain_sin.host() + row * pairs);
  }
  b.all.plain_cos.upload(step.rows * pairs);
  b.all.plain_sin.upload(step.rows * pairs);
  b.all.upload_counted();
  backend_->embed(b.draft_ids, weights_.embed, n, b.x.data());
  begin_pre(step);
  for (size_t s = 0; s < weights_.draft.stages.size(); ++s) {
    const BlockWeights& w = weights_.draft.stages[s];
    const int64_t layer = c.num_hidden_layers + static_cast<int64_t>(s);
    backend_->begin_layer(layer);
    step.observe_block(layer, n, c.hidden_size);
    collapse_and_norm(step, w.attn_norm);
    mix_streams(step, w.hc_attn);
    draft_attention(step, static_cast<int64_t>(s));
    finish_block(step, layer, w, c.dspark_num_experts_per_tok);
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
