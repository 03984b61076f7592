#include "model/model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/step.h"
#include "ops/shape_buckets.h"

namespace deepinfer {
namespace {

std::vector<int64_t> experts_of_layers(const ModelWeights& weights) {
  std::vector<int64_t> out;
  for (const BlockWeights& w : weights.blocks) out.push_back(static_cast<int64_t>(w.experts.size()));
  for (const BlockWeights& w : weights.draft.stages) out.push_back(static_cast<int64_t>(w.experts.size()));
  return out;
}

// What was copied to a device, in the order that it wants.
void arrange_experts(const ModelWeights& weights, Backend& backend) {
  if (backend.memory().is_host()) return;
  for (const auto* blocks : {&weights.blocks, &weights.draft.stages}) {
    for (const BlockWeights& block : *blocks) {
      for (const ExpertWeights& e : block.experts) {
        for (const Fp4Weight* w : {&e.w1, &e.w2, &e.w3}) {
          // The copies are the model's own.
          backend.arrange_experts(const_cast<uint8_t*>(w->codes), const_cast<uint8_t*>(w->scales), w->out, w->in);
        }
      }
    }
  }
}

}  // namespace

Model::Model(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> compressed_ids, Backend* backend,
             const Options& options)
    : checkpoint_(std::move(checkpoint)),
      config_(checkpoint_->config()),
      compressed_ids_(std::move(compressed_ids)),
      backend_(backend),
      options_(options),
      weights_(bind_weights(*checkpoint_)),
      device_weights_(&backend->memory()),
      layout_(config_),
      plain_rope_(config_, false),
      compressed_rope_(config_, true),
      hash_(config_, config_.engram_layer_ids.empty() ? 0 : compressed_ids_[static_cast<size_t>(config_.engram_pad_token_id)]),
      expert_load_(experts_of_layers(weights_)),
      heap_pages_(make_heap_pages(layout_.page_bytes, &backend->memory())),
      buffers_(std::make_unique<Buffers>(&backend->memory())) {
  expert_places_.push_back(0);
  for (const int64_t count : experts_of_layers(weights_)) expert_places_.push_back(expert_places_.back() + count);
  if (!backend->memory().is_host()) buffers_->expert_counts.reserve_discard(expert_places_.back());
  options_.rollback_slack = std::max(options.rollback_slack, config_.dspark_block_size);  // a whole block can be taken back
}

Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Create(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> compressed_ids,
                                             Backend* backend, const Options& options) {
  const ModelConfig& c = checkpoint->config();
  if (options.rollback_slack < 0 || options.rollback_slack > 1 << 16) {
    return Err(Status::OutOfRange("rollback_slack: {}, allowed are 0..65536", options.rollback_slack));
  }
  if (!c.engram_layer_ids.empty()) {
    if (static_cast<int64_t>(compressed_ids.size()) < c.vocab_size) {
      // Ids above the tokenizer's cannot come out of it, but the model may sample them: they count as padding.
      if (static_cast<int64_t>(compressed_ids.size()) <= c.engram_pad_token_id) {
        return Err(Status::InvalidArgument("{}: the token map has {} ids, engram_pad_token_id is {}", checkpoint->directory(),
                                           compressed_ids.size(), c.engram_pad_token_id));
      }
      compressed_ids.resize(static_cast<size_t>(c.vocab_size), compressed_ids[static_cast<size_t>(c.engram_pad_token_id)]);
    }
    const int32_t largest = *std::max_element(compressed_ids.begin(), compressed_ids.end());
    if (largest + 1 != c.engram_compressed_vocab_size) {
      return Err(Status::InvalidArgument("{}: the tokenizer gives {} compressed ids, engram_compressed_vocab_size is {}",
                                         checkpoint->directory(), largest + 1, c.engram_compressed_vocab_size));
    }
  }
  auto model = std::unique_ptr<Model>(new Model(std::move(checkpoint), std::move(compressed_ids), backend, options));
  DI_RETURN_IF_ERROR(upload_weights(model->weights_, options.engram_memory, options.memory_utilization, options.progress,
                                    model->device_weights_));
  arrange_experts(model->weights_, *backend);
  for (size_t slot = 0; slot < c.engram_layer_ids.size(); ++slot) {
    int64_t sum = 0;
    for (int64_t prime : model->hash_.primes()[slot]) sum += prime;
    if (sum > c.engram_num_embeddings[slot]) {
      return Err(Status::InvalidArgument("config.json: engram_num_embeddings[{}] is {}, the bucket primes add up to {}", slot,
                                         c.engram_num_embeddings[slot], sum));
    }
  }
  return model;
}

std::unique_ptr<SequenceState> Model::new_sequence(PageAllocator* pages) {
  return std::make_unique<SequenceState>(config_, layout_, pages != nullptr ? pages : heap_pages_.get(), options_.rollback_slack,
                                         &backend_->memory());
}

std::unique_ptr<SequenceState> Model::new_borrowing_sequence() {
  return std::make_unique<SequenceState>(config_, layout_, nullptr, options_.rollback_slack, &backend_->memory());
}

Status Model::check(const StepBatch& batch) const {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  if (rows == 0) return Status::InvalidArgument("step: no tokens");
  int64_t counted = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& s = batch.sequences[i];
    if (s.state == nullptr) return Status::InvalidArgument("step: sequence {} has no state", i);
    if (s.count < 1) return Status::InvalidArgument("step: sequence {} has {} new tokens", i, s.count);
    for (size_t j = 0; j < i; ++j) {
      if (batch.sequences[j].state == s.state)
        return Status::InvalidArgument("step: sequences {} and {} are the same state", j, i);
    }
    if (s.state->length() + s.count > config_.max_position_embeddings) {
      return Status::OutOfRange("step: sequence {} would reach {} positions, max_position_embeddings is {}", i,
                                s.state->length() + s.count, config_.max_position_embeddings);
    }
    if (s.save != nullptr && (s.save_at <= s.state->length() || s.save_at > s.state->length() + s.count || s.save_at % 2 != 0)) {
      return Status::InvalidArgument("step: sequence {} goes from {} to {}, a snapshot at {} is not an even position in it", i,
                                     s.state->length(), s.state->length() + s.count, s.save_at);
    }
    counted += s.count;
  }
  if (counted != rows) return Status::InvalidArgument("step: {} tokens for {} sequence rows", rows, counted);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t id = batch.tokens[static_cast<size_t>(r)];
    if (id < 0 || id >= config_.vocab_size) {
      return Status::OutOfRange("step: token {} is {}, the vocabulary has {}", r, id, config_.vocab_size);
    }
  }
  if (!batch.image_mask.empty() && static_cast<int64_t>(batch.image_mask.size()) != rows) {
    return Status::InvalidArgument("step: image mask of {} rows for {} tokens", batch.image_mask.size(), rows);
  }
  if (batch.embeddings.size() != batch.embedding_rows.size() * static_cast<size_t>(config_.hidden_size)) {
    return Status::InvalidArgument("step: {} embedding values for {} rows of {}", batch.embeddings.size(),
                                   batch.embedding_rows.size(), config_.hidden_size);
  }
  for (std::span<const int32_t> list : {batch.embedding_rows, batch.logit_rows}) {
    for (int32_t r : list) {
      if (r < 0 || r >= rows) return Status::OutOfRange("step: row {} of {}", r, rows);
    }
  }
  return check_logit_rows(batch);
}

Status Model::reserve_pages(const StepBatch& batch) const {
  std::vector<int64_t>& had = buffers_->page_counts;
  had.clear();
  for (const StepSequence& s : batch.sequences) {
    had.push_back(s.state->page_count());
    Status status = s.state->reserve(s.state->length() + s.count);
    if (status.ok()) continue;
    for (size_t i = 0; i < had.size(); ++i) batch.sequences[i].state->release_reserved(had[i]);
    return status;
  }
  return Status::Ok();
}

void Model::reserve_buffers(const Step& step) {
  Buffers& b = *step.b;
  const ModelConfig& c = config_;
  const int64_t rows = step.rows;
  const int64_t n = c.hc_mult;
  const int64_t hidden = c.hidden_size;
  b.x.reserve_discard(rows * n * hidden);
  b.pre.reserve_discard(rows * n);
  b.next_pre.reserve_discard(rows * n);
  b.post.reserve_discard(rows * n);
  b.comb.reserve_discard(rows * n * n);
  b.u.reserve_discard(rows * hidden);
  b.out.reserve_discard(rows * hidden);
  b.q_low.reserve_discard(rows * c.q_lora_rank);
  b.q.reserve_discard(rows * c.num_attention_heads * c.head_dim);
  b.o.reserve_discard(rows * c.num_attention_heads * c.head_dim);
  b.o_low.reserve_discard(rows * c.o_groups * c.o_lora_rank);
  b.kv.reserve_discard(rows * c.head_dim);
  b.window_kv.reserve_discard(std::max(rows, std::min(rows, kMostCommittedAtOnce) * c.num_hidden_layers) * c.window_row_bytes());
  b.comp_kv.reserve_discard(rows * c.head_dim);
  b.comp_gate.reserve_discard(rows * c.head_dim);
  b.latent.reserve_discard(rows * c.head_dim);
  b.index_k.reserve_discard(rows * c.index_head_dim);
  b.index_q.reserve_discard(rows * c.index_n_heads * c.index_head_dim);
  b.index_weights.reserve_discard(rows * c.index_n_heads);
  b.chosen.reserve_discard(rows * c.index_topk);
  b.chosen_count.reserve_discard(rows);
  const int64_t active = std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok);
  b.experts.reserve_discard(rows * active);
  b.expert_weights.reserve_discard(rows * active);
  b.engram_e.reserve_discard((step.gathers_ahead ? engram_slots() : 1) * rows * c.engram_columns() * c.engram_head_dim);
  b.engram_kv.reserve_discard(rows * (n + 1) * hidden);
  b.tap.reserve_discard(rows * hidden);
  // Rows filled up: extend_draft reads what is here, and must not ask for more.
  b.main_hidden.reserve_discard(row_bucket(rows) * hidden * static_cast<int64_t>(c.dspark_target_layer_ids.size()));
  const int64_t pairs = c.qk_rope_head_dim / 2;
  reserve_inputs(b.all, rows);
  b.pair_cos.reserve_discard(rows * pairs);
  b.pair_sin.reserve_discard(rows * pairs);
  b.queries.resize(static_cast<size_t>(rows));
  b.index_queries.resize(static_cast<size_t>(rows));

  b.kept_row.resize(static_cast<size_t>(rows));
  if (b.identity_pre.size() >= rows * n) return;
  std::vector<float> identity(static_cast<size_t>(rows * n));
  for (int64_t r = 0; r < rows; ++r) identity[static_cast<size_t>(r * n)] = 1.0f;
  b.identity_pre.reserve_discard(rows * n);
  b.memory->upload(b.identity_pre.data(), identity.data(), rows * n * static_cast<int64_t>(sizeof(float)));
}

void Model::reserve_inputs(StepInputs& in, int64_t rows) const {
  for (SharedBuffer<float>* t : in.rotations()) t->reserve_discard(rows * config_.qk_rope_head_dim / 2);
  in.engram_rows.reserve_discard(rows * config_.engram_columns() * engram_slots());
  in.image.reserve_discard(rows);
  in.counted.reserve_discard(1);
}

void Model::prepare(const StepBatch& batch, Step& step) {
  Buffers& b = *step.b;
  StepInputs& in = b.all;
  in.live = static_cast<int64_t>(batch.tokens.size());
  in.rows = step.replayed ? row_bucket(in.live) : in.live;
  step.has_image = !batch.image_mask.empty();
  step.gathers_ahead = gathers_ahead(step);
  step.rows = in.rows;
  reserve_buffers(step);
  step.use(in);
  const ModelConfig& c = config_;
  const int64_t pairs = c.qk_rope_head_dim / 2;
  step.rope_pairs = pairs;
  if (step.has_image) std::copy(batch.image_mask.begin(), batch.image_mask.end(), in.image.host());
  b.tokens.assign(batch.tokens.begin(), batch.tokens.end());
  in.positions.clear();
  in.spans.clear();
  int64_t row = 0;
  for (const StepSequence& s : batch.sequences) {
    const StepSpan span{.state = s.state,
                        .start = s.state->length(),
                        .count = s.count,
                        .first_row = row,
                        .input_row = row,
                        .save = s.save,
                        .save_at = s.save_at};
    in.spans.push_back(span);
    if (s.save != nullptr) s.state->begin_save(s.save_at, *s.save);
    if (s.save != nullptr && saves_behind(*s.state, s.save_at, span.end())) in.spans.back().save = nullptr;
    std::vector<int32_t>& history = s.state->history();
    for (int64_t position = span.start; position < span.end(); ++position, ++row) {
      in.positions.push_back(position);
      plain_rope_.fill(position, in.plain_cos.host() + row * pairs, in.plain_sin.host() + row * pairs);
      compressed_rope_.fill(position, in.compressed_cos.host() + row * pairs, in.compressed_sin.host() + row * pairs);
      if (c.engram_layer_ids.empty()) continue;
      history.push_back(compressed_id(batch.tokens[static_cast<size_t>(row)], step.has_image && in.image.host()[row] != 0));
      for (size_t slot = 0; slot < c.engram_layer_ids.size(); ++slot) {
        hash_.rows(static_cast<int64_t>(slot), history,
                   in.engram_rows.host() + (static_cast<int64_t>(slot) * in.rows + row) * c.engram_columns());
      }
    }
    // A pair is rotated as its first token (spec §3.7).
    for (int64_t i = 0; i < span.group_count(2); ++i, ++step.pairs) {
      compressed_rope_.fill(2 * (span.first_group(2) + i), b.pair_cos.host() + step.pairs * pairs,
                            b.pair_sin.host() + step.pairs * pairs);
    }
  }
  if (in.live < in.rows) b.tokens.resize(static_cast<size_t>(in.rows), b.tokens.back());
  pad_inputs(step, in);
  prepare_narrowing(step);
  const int64_t block = std::max<int64_t>(c.candidate_block_size, 1);
  int64_t longest = *std::max_element(in.positions.begin(), in.positions.end()) + 1;
  if (step.replayed) longest = length_bucket(longest);
  step.candidate_words = ((longest + block - 1) / block + 63) / 64;
  if (c.candidate_source_layer_id >= 0 && (longest + block - 1) / block > c.candidate_topk_blocks) {
    b.candidates.reserve_discard(step.rows * step.candidate_words);
  }
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  step.logit_rows = step.replayed ? row_bucket(wanted) : wanted;
  reserve_logits(step);
}

void Model::reserve_logits(const Step& step) {
  Buffers& b = *step.b;
  const int64_t n = config_.hc_mult;
  const int64_t hidden = config_.hidden_size;
  b.head_x.reserve_discard(step.logit_rows * n * hidden);
  b.head_pre.reserve_discard(step.logit_rows * n);
  b.head_u.reserve_discard(step.logit_rows * hidden);
  b.logits.reserve_discard(step.logit_rows * config_.vocab_size);
}

void Model::upload_inputs(const Step& step) {
  Buffers& b = *step.b;
  const int64_t pairs = step.rope_pairs;
  const int64_t table_rows = config_.engram_columns() * static_cast<int64_t>(config_.engram_layer_ids.size());
  for (StepInputs* in : {&b.all, &b.kept}) {
    if (in == &b.kept && !step.narrows) continue;
    for (SharedBuffer<float>* t : in->rotations()) t->upload(in->rows * pairs);
    in->engram_rows.upload(in->rows * table_rows);
    if (step.has_image) in->image.upload(in->rows);
    in->upload_counted();
  }
  for (SharedBuffer<float>* t : {&b.pair_cos, &b.pair_sin}) t->upload((step.replayed ? step.rows : step.pairs) * pairs);
}

Result<StepOutput> Model::forward(const StepBatch& batch, StepObserver* observer) {
  DI_RETURN_IF_ERROR(check(batch));
  DI_RETURN_IF_ERROR(reserve_pages(batch));

  const ModelConfig& c = config_;
  Buffers& b = *buffers_;
  Step step;
  step.observer = observer;
  step.b = &b;
  step.replayed = can_replay(batch, observer);
  prepare(batch, step);
  StepOutput output;
  if (step.replayed) {
    backend_->replay([&] { run_layers(batch, step, output); });
  } else {
    run_layers(batch, step, output);
  }
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  b.logit_rows = wanted;
  if (wanted > 0 && !batch.logits_stay) b.logits.download(wanted * c.vocab_size);
  for (const StepSequence& s : batch.sequences) {
    if (s.save != nullptr && saves_behind(*s.state, s.save_at, s.state->length() + s.count))
      s.state->save_layers(*s.save, b.rings);
    s.state->advance(s.count);
  }
  if (!batch.logits_stay) output.logits = logits();
  b.main_hidden_rows = static_cast<int64_t>(batch.tokens.size());
  return output;
}

void Model::run_layers(const StepBatch& batch, Step& step, StepOutput& output) {
  const ModelConfig& c = config_;
  const int64_t n = c.hc_mult;
  const int64_t hidden = c.hidden_size;
  Buffers& b = *step.b;
  output = {};
  step.use(b.all);
  upload_inputs(step);
  backend_->embed(b.tokens, weights_.embed, n, b.x.data());
  for (size_t i = 0; i < batch.embedding_rows.size(); ++i) {
    for (int64_t s = 0; s < n; ++s) {
      b.memory->upload(b.x.data() + (batch.embedding_rows[i] * n + s) * hidden,
                       batch.embeddings.data() + static_cast<int64_t>(i) * hidden, hidden * static_cast<int64_t>(sizeof(bf16)));
    }
  }
  if (step.gathers_ahead) gather_ahead(step);
  step.commits_at_once = step.replayed && !step.narrows && step.rows <= kMostCommittedAtOnce;
  b.ring_copies.clear();
  begin_pre(step);
  if (step.narrows) {
    b.memory->fill(b.main_hidden.data(), 0,
                   step.rows * hidden * static_cast<int64_t>(c.dspark_target_layer_ids.size() * sizeof(bf16)));
  }
  for (int64_t layer = 0; layer < c.num_hidden_layers && step.rows > 0; ++layer) {
    if (batch.before_source != nullptr && c.is_kv_source(layer)) (*batch.before_source)(source_of(layer));
    run_block(step, layer);
    (layer < c.first_decoder_layer() ? output.encoder_row_layers : output.decoder_row_layers) += step.live;
  }
  backend_->begin_layer(-1);
  if (step.commits_at_once) b.memory->copy_rows(b.ring_copies, c.window_row_bytes());
  compute_logits(batch, step);
  if (step.narrows) swap_kept(b);  // buffers lie where they lay
}

/// The pre-mix of the first sublayer is the identity: stream 0.
void Model::begin_pre(Step& step) {
  Buffers& b = *step.b;
  const int64_t n = config_.hc_mult;
  b.memory->copy(b.pre.data(), b.identity_pre.data(), step.rows * n * static_cast<int64_t>(sizeof(float)));
}

void Model::collect_expert_load() {
  Buffers& b = *buffers_;
  if (b.memory->is_host()) return;
  b.expert_counts.download(b.expert_counts.size());
  for (size_t layer = 0; layer + 1 < expert_places_.size(); ++layer) {
    const auto count = static_cast<size_t>(expert_places_[layer + 1] - expert_places_[layer]);
    expert_load_.set(static_cast<int64_t>(layer), {b.expert_counts.host() + expert_places_[layer], count});
  }
}

std::vector<bf16> Model::main_hidden() const {
  const Buffers& b = *buffers_;
  const int64_t width = config_.hidden_size * static_cast<int64_t>(config_.dspark_target_layer_ids.size());
  std::vector<bf16> copy(static_cast<size_t>(b.main_hidden_rows * width));
  b.memory->download(copy.data(), b.main_hidden.data(), static_cast<int64_t>(copy.size() * sizeof(bf16)));
  return copy;
}

std::span<const float> Model::logits() const {
  return {buffers_->logits.host(), static_cast<size_t>(buffers_->logit_rows * config_.vocab_size)};
}

void Model::fetch_logits(std::span<const int32_t> rows) {
  Buffers& b = *buffers_;
  const int64_t vocab = config_.vocab_size;
  if (b.memory->is_host()) return;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    for (end = begin + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
    const int64_t at = rows[begin] * vocab;
    b.memory->download(b.logits.host() + at, b.logits.device() + at, static_cast<int64_t>((end - begin) * sizeof(float)) * vocab);
  }
}

std::span<const int32_t> Model::draw(std::span<const DrawRow> rows) {
  Buffers& b = *buffers_;
  const auto count = static_cast<int64_t>(rows.size());
  b.drawn.reserve_discard(count);
  backend_->draw(b.logits.device(), config_.vocab_size, rows, b.drawn.device());
  if (count > 0) b.drawn.download(count);
  return {b.drawn.host(), rows.size()};
}

void Model::compute_logits(const StepBatch& batch, const Step& step) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  const int64_t n = c.hc_mult;
  const int64_t hidden = c.hidden_size;
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  if (wanted == 0) return;
  // `rows` of `from`, each of `width` values, one after the other.
  const auto gather = [&](const auto* from, int64_t width, auto* to) {
    b.copies.clear();
    for (int64_t i = 0; i < wanted; ++i) {
      int64_t r = batch.logit_rows[static_cast<size_t>(i)];
      if (step.narrows) r = b.kept_row[static_cast<size_t>(r)];
      b.copies.push_back({to + i * width, from + r * width});
    }
    pad_copies(step, step.logit_rows);
    b.memory->copy_rows(b.copies, width * static_cast<int64_t>(sizeof(*from)));
  };
  gather(b.x.data(), n * hidden, b.head_x.data());
  gather(b.pre.data(), n, b.head_pre.data());
  const int64_t rows = step.logit_rows;
  backend_->hyper_collapse_norm(b.head_x.data(), b.head_pre.data(), rows, n, hidden, weights_.norm, c.rms_norm_eps,
                                b.head_u.data());
  backend_->linear_bf16_fp32(b.head_u.data(), rows, weights_.head, b.logits.device());
}

void Model::run_block(Step& step, int64_t layer) {
  const ModelConfig& c = config_;
  const BlockWeights& w = weights_.blocks[static_cast<size_t>(layer)];
  backend_->begin_layer(layer);
  step.observe_block(layer, c.hc_mult, c.hidden_size);
  if (c.engram_slot(layer) >= 0) run_engram(step, layer);
  tap_streams(step, layer);

  if (!std::exchange(step.collapsed, false)) collapse_and_norm(step, w.attn_norm);
  if (c.is_kv_source(layer)) run_compressor(step, layer, source_of(layer));
  // With the last global rows written, only positions that the decoder is asked for go on (spec §8.3).
  if (layer == c.first_decoder_layer()) narrow(step);
  const int64_t rows = step.rows;
  if (rows == 0) return;
  mix_streams(step, w.hc_attn);
  run_attention(step, layer);
  // Unless Engram adds to the streams first, or an observer may change them.
  const int64_t next = layer + 1;
  const bool collapses = step.observer == nullptr && next < c.num_hidden_layers && c.engram_slot(next) < 0;
  finish_block(step, layer, w, c.num_experts_per_tok, collapses ? weights_.blocks[static_cast<size_t>(next)].attn_norm : nullptr);
}

// The `pre` that a sublayer computes collapses the stream for the next one; `post` and `comb` are its own (spec §3.1).
void Model::collapse_and_norm(Step& step, const bf16* norm) {
  Buffers& b = *step.b;
  backend_->hyper_collapse_norm(b.x.data(), b.pre.data(), step.rows, config_.hc_mult, config_.hidden_size, norm,
                                config_.rms_norm_eps, b.u.data());
}

// Coefficients for the end of a sublayer, and the `pre` behind it. Nothing in between writes the streams or reads what comes of
// them, so they can be computed meanwhile.
void Model::mix_streams(Step& step, const HyperMixWeights& w) {
  Buffers& b = *step.b;
  backend_->beside([&] { backend_->hyper_mix(w, b.x.data(), step.rows, b.next_pre.data(), b.post.data(), b.comb.data()); });
}

void Model::finish_block(Step& step, int64_t layer, const BlockWeights& w, int64_t experts_per_token, const bf16* next_norm) {
  Buffers& b = *step.b;
  const int64_t n = config_.hc_mult;
  const int64_t hidden = config_.hidden_size;
  const int64_t rows = step.rows;
  step.observe("attn_out", layer, b.out, rows * hidden);
  step.replace("attn_out", layer, b.out, rows * hidden);
  backend_->join();
  std::swap(b.pre, b.next_pre);
  backend_->hyper_expand_collapse_norm(b.out.data(), b.post.data(), b.comb.data(), b.pre.data(), rows, n, hidden, w.ffn_norm,
                                       config_.rms_norm_eps, b.x.data(), b.u.data());
  mix_streams(step, w.hc_ffn);
  run_experts(step, layer, w, experts_per_token);
  step.observe("ffn_out", layer, b.out, rows * hidden);
  backend_->join();
  std::swap(b.pre, b.next_pre);
  if (next_norm != nullptr) {
    backend_->hyper_expand_collapse_norm(b.out.data(), b.post.data(), b.comb.data(), b.pre.data(), rows, n, hidden, next_norm,
                                         config_.rms_norm_eps, b.x.data(), b.u.data());
    step.collapsed = true;
  } else {
    backend_->hyper_expand(b.out.data(), b.post.data(), b.comb.data(), rows, n, hidden, b.x.data());
  }
  step.observe("stream", layer, b.x, rows * n * hidden);
  step.observe("pre", layer, b.pre, rows * n);
}

void Model::tap_streams(Step& step, int64_t layer) {
  const auto& taps = config_.dspark_target_layer_ids;
  const auto tap = std::find(taps.begin(), taps.end(), layer);
  if (tap == taps.end()) return;
  Buffers& b = *step.b;
  const int64_t hidden = config_.hidden_size;
  const auto count = static_cast<int64_t>(taps.size());
  backend_->stream_mean(b.x.data(), step.rows, config_.hc_mult, hidden, b.tap.data());
  b.copies.clear();
  for (const StepSpan& span : step.in->spans) {
    // Rows without the decoder have no taps, not even those of the encoder.
    for (int64_t i = std::clamp<int64_t>(span.state->decoder_start() - span.start, 0, span.count); i < span.count; ++i) {
      b.copies.push_back({b.main_hidden.data() + ((span.input_row + i) * count + (tap - taps.begin())) * hidden,
                          b.tap.data() + (span.first_row + i) * hidden});
    }
  }
  pad_copies(step, step.rows);
  b.memory->copy_rows(b.copies, hidden * static_cast<int64_t>(sizeof(bf16)));
}

void Model::run_experts(Step& step, int64_t layer, const BlockWeights& w, int64_t experts_per_token) {
  const ModelConfig& c = config_;
  Buffers& b = *step.b;
  backend_->routed_experts(
      {.v = b.u.data(),
       .gate = w.gate,
       .bias = w.gate_bias,
       .bias_vl = w.gate_bias_vl,
       .image = step.image,
       .topk = experts_per_token,
       .normalize = c.norm_topk_prob,
       .scale = c.routed_scaling_factor,
       .temperature = c.gate_temp,
       .experts = b.experts.data(),
       .weights = b.expert_weights.data(),
       .counts = b.memory->is_host() ? nullptr : b.expert_counts.device() + expert_places_[static_cast<size_t>(layer)],
       .counted = step.in->counted.device()},
      {.v = b.u.data(),
       .experts = b.experts.data(),
       .weights = b.expert_weights.data(),
       .routed = w.experts,
       .shared_w1 = w.shared_w1,
       .shared_w2 = w.shared_w2,
       .shared_w3 = w.shared_w3,
       .topk = experts_per_token,
       .swiglu_limit = c.swiglu_limit,
       .y = b.out.data()},
      step.rows);
  if (b.memory->is_host()) expert_load_.count(layer, {b.experts.data(), static_cast<size_t>(step.live * experts_per_token)});
  step.observe("experts", layer, b.experts, step.rows * experts_per_token);
  step.observe("expert_weights", layer, b.expert_weights, step.rows * experts_per_token);
}

int64_t Model::active_weight_bytes() const {
  const auto fp8 = [](const Fp8Weight& w) { return w.out * w.in + (w.out + 31) / 32 * (w.in / 32); };
  const auto fp4 = [](const Fp4Weight& w) { return w.out * w.in / 2 + w.out * (w.in / 32); };
  const auto bf = [](const Bf16Weight& w) { return w.out * w.in * 2; };
  int64_t bytes = bf(weights_.head);
  for (const BlockWeights& w : weights_.blocks) {
    for (const Fp8Weight* m :
         {&w.wq_a, &w.wq_b, &w.wkv, &w.wo_a, &w.wo_b, &w.index_wq_b, &w.shared_w1, &w.shared_w2, &w.shared_w3, &w.engram_wkv}) {
      bytes += fp8(*m);
    }
    for (const Bf16Weight* m : {&w.compressor_wkv, &w.compressor_wgate, &w.index_wk, &w.index_weights_proj, &w.gate})
      bytes += bf(*m);
    const ExpertWeights& e = w.experts.front();
    bytes += config_.num_experts_per_tok * (fp4(e.w1) + fp4(e.w2) + fp4(e.w3));
    bytes += 2 * (2 + w.hc_attn.n) * w.hc_attn.n * w.hc_attn.n * w.hc_attn.hidden * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace deepinfer
