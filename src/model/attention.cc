// Attention of one block: queries and window KV, compressor, indexer, the attention itself, output projection
// (spec/backbone §3.5-3.11).

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/model.h"
#include "model/step.h"

namespace deepinfer {

int64_t Model::source_of(int64_t layer) const {
  if (config_.compress_ratio(layer) == 0) return -1;
  const auto& ids = config_.kv_source_layer_ids;
  return std::find(ids.begin(), ids.end(), config_.kv_source_of(layer)) - ids.begin();
}

void Model::run_attention(Step& step, int64_t layer) {
  const ModelConfig& c = config_;
  const BlockWeights& w = weights_.blocks[static_cast<size_t>(layer)];
  Buffers& b = *step.b;
  const int64_t rows = step.rows;
  // One table for everything in the layer, chosen by its ratio alone (spec §3.4).
  const RopeRows rotation = c.compress_ratio(layer) > 0 ? step.compressed_rope() : step.plain_rope();

  attention_inputs(step, layer, w, rotation);

  const int64_t source = source_of(layer);
  if (source >= 0) {
    if (c.is_index_source(layer)) run_indexer(step, layer, source);
    step.observe("chosen", layer, b.chosen, rows * c.index_topk);
    step.observe("chosen_count", layer, b.chosen_count.data(), rows);
  }
  attend(step, layer, source, rotation);
  commit_window(step, layer);
  attention_output(step, w);
}

void Model::attention_inputs(Step& step, int64_t layer, const BlockWeights& w, const RopeRows& rotation) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t rows = step.rows;
  const LinearOutput low[2] = {{w.wq_a, b.q_low.data()}, {w.wkv, b.kv.data()}};
  backend_->linear_fp8(b.u.data(), rows, low);
  backend_->attention_latents({.q = b.q_low.data(),
                               .q_norm = w.q_norm,
                               .q_dim = c.q_lora_rank,
                               .kv = b.kv.data(),
                               .kv_norm = w.kv_norm,
                               .kv_dim = c.head_dim,
                               .rotation = rotation,
                               .packed = fresh_window(step, layer),
                               .eps = c.rms_norm_eps},
                              rows);
  step.observe("window_kv", layer, b.window_kv, rows * c.window_row_bytes());
  if (step.replace("window_kv", layer, b.kv, rows * c.head_dim))
    backend_->pack_window(b.kv.data(), rows, c.head_dim, b.window_kv.data());
  const LinearOutput q{w.wq_b, b.q.data()};
  backend_->linear_fp8(b.q_low.data(), rows, {&q, 1});
}

void Model::attention_output(Step& step, const BlockWeights& w) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t rows = step.rows;
  backend_->output_lora(b.o.data(), rows, w.wo_a, c.o_groups, b.o_low.data());
  const LinearOutput out{w.wo_b, b.out.data()};
  backend_->linear_fp8(b.o_low.data(), rows, {&out, 1});
}

void Model::run_compressor(Step& step, int64_t layer, int64_t source) {
  const ModelConfig& c = config_;
  const BlockWeights& w = weights_.blocks[static_cast<size_t>(layer)];
  Buffers& b = *step.b;
  const int64_t dim = c.head_dim;
  const int64_t ratio = c.compress_ratio(layer);
  int64_t groups = 0;
  if (ratio == 1) {
    const bool any =
        std::any_of(step.in->spans.begin(), step.in->spans.end(), [](const StepSpan& s) { return s.group_count(1) > 0; });
    groups = any || step.replayed ? step.rows : 0;  // rows of a cached prefix among them are not written
    if (groups > 0) backend_->linear_bf16(b.u.data(), step.rows, w.compressor_wkv, b.latent.data());
  } else {
    groups = step.replayed ? step.rows : step.pairs;
    backend_->linear_bf16_fp32(b.u.data(), step.rows, w.compressor_wkv, b.comp_kv.data());
    backend_->linear_bf16_fp32(b.u.data(), step.rows, w.compressor_wgate, b.comp_gate.data());
    b.pool_kv.clear();
    b.pool_gate.clear();
    for (const StepSpan& span : step.in->spans) {
      SequenceState& state = *span.state;
      const int64_t row0 = span.first_row - span.start;
      const int64_t first = 2 * span.first_group(2);
      for (int64_t p = first; p < first + 2 * span.group_count(2); ++p) {
        // The first half of an open pair came in an earlier step.
        b.pool_kv.push_back(p < span.start ? state.tail_kv(source, p) : b.comp_kv.data() + (row0 + p) * dim);
        b.pool_gate.push_back(p < span.start ? state.tail_gate(source, p) : b.comp_gate.data() + (row0 + p) * dim);
      }
    }
    b.pool_kv.resize(static_cast<size_t>(2 * groups), b.comp_kv.data());
    b.pool_gate.resize(static_cast<size_t>(2 * groups), b.comp_gate.data());
    backend_->compress_pool(b.pool_kv, b.pool_gate, dim, b.latent.data());
    b.copies.clear();
    for (const StepSpan& span : step.in->spans) {
      SequenceState& state = *span.state;
      const int64_t row0 = span.first_row - span.start;
      for (int64_t p = std::max(span.start, span.end() - state.tail_capacity()); p < span.end(); ++p) {
        b.copies.push_back({state.tail_kv(source, p), b.comp_kv.data() + (row0 + p) * dim});
        b.copies.push_back({state.tail_gate(source, p), b.comp_gate.data() + (row0 + p) * dim});
      }
    }
    pad_copies(step, 2 * step.rows);
    b.memory->copy_rows(b.copies, dim * static_cast<int64_t>(sizeof(float)));
  }
  if (groups == 0) return;
  backend_->rms_norm(b.latent.data(), w.compressor_norm, c.rms_norm_eps, groups, dim, b.latent.data());

  // Index keys come from the latent before it is rotated (spec §3.7).
  const RopeRows rotation = ratio == 1 ? step.compressed_rope() : step.pair_rope();
  backend_->linear_bf16(b.latent.data(), groups, w.index_wk, b.index_k.data());
  backend_->rms_norm(b.index_k.data(), w.index_k_norm, c.rms_norm_eps, groups, c.index_head_dim, b.index_k.data());
  backend_->rope(b.index_k.data(), rotation, groups, 1, c.index_head_dim, false);
  backend_->rope(b.latent.data(), rotation, groups, 1, dim, false);

  step.observe("index_k", layer, b.index_k, groups * c.index_head_dim);
  step.observe("compressed", layer, b.latent, groups * dim);
  step.replace("index_k", layer, b.index_k, groups * c.index_head_dim);
  step.replace("compressed", layer, b.latent, groups * dim);
  b.index_key_rows.assign(static_cast<size_t>(groups), nullptr);
  b.compressed_rows.assign(static_cast<size_t>(groups), nullptr);
  int64_t next = 0;
  for (const StepSpan& span : step.in->spans) {
    const int64_t first = span.first_group(ratio);
    const int64_t count = span.group_count(ratio);
    const int64_t group = ratio == 1 ? span.first_row + first - span.start : next;
    next += count;
    const PagedRows keys = span.state->index_rows(source);
    const PagedRows main = span.state->main_rows(source);
    for (int64_t i = 0; i < count; ++i) {
      b.index_key_rows[static_cast<size_t>(group + i)] = keys.row(first + i);
      b.compressed_rows[static_cast<size_t>(group + i)] = main.row(first + i);
    }
  }
  backend_->pack_index_keys(b.index_k.data(), c.index_head_dim, b.index_key_rows);
  backend_->pack_compressed(b.latent.data(), dim, b.compressed_rows);
}

void Model::run_indexer(Step& step, int64_t layer, int64_t source) {
  const ModelConfig& c = config_;
  const BlockWeights& w = weights_.blocks[static_cast<size_t>(layer)];
  Buffers& b = *step.b;
  const int64_t rows = step.rows;
  const int64_t ratio = c.compress_ratio(layer);
  bool must_score = false;
  for (const StepSpan& span : step.in->spans) {
    const PagedRows keys = span.state->index_rows(source);
    for (int64_t row = span.first_row; row < span.first_row + span.count; ++row) {
      const int64_t visible = (step.in->positions[static_cast<size_t>(row)] + 1) / ratio;
      b.index_queries[static_cast<size_t>(row)] = {keys, visible, b.chosen.data() + row * c.index_topk, 0};
      must_score = must_score || visible > c.index_topk;
    }
  }
  for (int64_t row = step.live; row < rows; ++row) {
    IndexQuery& query = b.index_queries[static_cast<size_t>(row)];
    query = b.index_queries[static_cast<size_t>(step.live - 1)];
    query.chosen = b.chosen.data() + row * c.index_topk;
  }
  if (must_score) {
    const LinearOutput q{w.index_wq_b, b.index_q.data()};
    backend_->linear_fp8(b.q_low.data(), rows, {&q, 1});
    backend_->rope(b.index_q.data(), step.compressed_rope(), rows, c.index_n_heads, c.index_head_dim, false);
    backend_->round_index_queries(b.index_q.data(), rows * c.index_n_heads, c.index_head_dim);
    backend_->linear_bf16(b.u.data(), rows, w.index_weights_proj, b.index_weights.data());
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.index_head_dim)) / std::sqrt(static_cast<float>(c.index_n_heads));
    backend_->scale(b.index_weights.data(), rows * c.index_n_heads, scale);
  }
  IndexSelectArgs args{.q = b.index_q.data(),
                       .weights = b.index_weights.data(),
                       .queries = {b.index_queries.data(), static_cast<size_t>(rows)},
                       .heads = c.index_n_heads,
                       .dim = c.index_head_dim,
                       .topk = c.index_topk,
                       .candidate_blocks = c.candidate_topk_blocks,
                       .candidate_block_size = c.candidate_block_size,
                       .candidates = b.candidates.data(),
                       .candidate_words = step.candidate_words};
  if (layer == c.candidate_source_layer_id) {
    args.mode = IndexSelectArgs::Candidates::kBuild;
  } else if (c.candidate_source_layer_id >= 0 && layer > c.candidate_source_layer_id) {
    args.mode = IndexSelectArgs::Candidates::kRestrict;
  }
  backend_->index_select(args);
  for (int64_t r = 0; r < rows; ++r) b.chosen_count[r] = b.index_queries[static_cast<size_t>(r)].chosen_count;
  if (args.mode == IndexSelectArgs::Candidates::kBuild && b.candidates.size() > 0) {
    step.observe("candidates", layer, b.candidates, rows * step.candidate_words);
  }
}

void Model::attend(Step& step, int64_t layer, int64_t source, const RopeRows& rotation) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const bool decoder = layer >= c.first_decoder_layer();
  for (const StepSpan& span : step.in->spans) {
    SequenceState& state = *span.state;
    const int64_t window_start = decoder ? state.decoder_window_start() : state.encoder_window_start();
    const WindowRows window{.ring = state.window_ring(layer),
                            .capacity = state.window_capacity(),
                            .fresh = fresh_window(step, layer) + span.first_row * c.window_row_bytes(),
                            .start = span.start,
                            .row_bytes = c.window_row_bytes()};
    const PagedRows compressed = source >= 0 ? state.main_rows(source) : PagedRows{};
    for (int64_t row = span.first_row; row < span.first_row + span.count; ++row) {
      const int64_t position = step.in->positions[static_cast<size_t>(row)];
      b.queries[static_cast<size_t>(row)] = {.window = window,
                                             .window_first = std::max(window_start, position - c.sliding_window + 1),
                                             .window_last = position,
                                             .compressed = compressed,
                                             .compressed_rows = source >= 0 ? (position + 1) / c.compress_ratio(layer) : 0,
                                             .chosen = b.chosen.data() + row * c.index_topk,
                                             .chosen_count = source >= 0 ? b.chosen_count[row] : 0};
    }
  }
  for (int64_t row = step.live; row < step.rows; ++row)
    b.queries[static_cast<size_t>(row)] = b.queries[static_cast<size_t>(step.live - 1)];
  rotated_attention(step, weights_.blocks[static_cast<size_t>(layer)].attn_sink, rotation);
}

void Model::rotated_attention(Step& step, const float* sinks, const RopeRows& rotation) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  backend_->rotated_attention({.q = b.q.data(),
                               .sinks = sinks,
                               .out = b.o.data(),
                               .queries = {b.queries.data(), static_cast<size_t>(step.rows)},
                               .heads = c.num_attention_heads,
                               .dim = c.head_dim},
                              b.q.data(), rotation);
}

uint8_t* Model::fresh_window(const Step& step, int64_t layer) const {
  return step.b->window_kv.data() + (step.commits_at_once ? layer * step.rows * config_.window_row_bytes() : 0);
}

void Model::commit_window(Step& step, int64_t layer) {
  Buffers& b = *step.b;
  const int64_t bytes = config_.window_row_bytes();
  b.copies.clear();
  for (const StepSpan& span : step.in->spans) {
    SequenceState& state = *span.state;
    const uint8_t* fresh = fresh_window(step, layer) + span.first_row * bytes;
    // Before the ring forgets what the snapshot still reads.
    if (span.save != nullptr) state.save_layer(layer, fresh, span.start, *span.save);
    uint8_t* ring = state.window_ring(layer);
    for (int64_t p = std::max(span.start, span.end() - state.window_capacity()); p < span.end(); ++p)
      b.copies.push_back({ring + p % state.window_capacity() * bytes, fresh + (p - span.start) * bytes});
  }
  pad_copies(step, step.rows);
  if (step.commits_at_once) {
    b.ring_copies.insert(b.ring_copies.end(), b.copies.begin(), b.copies.end());
  } else {
    b.memory->copy_rows(b.copies, bytes);
  }
}

}  // namespace deepinfer
