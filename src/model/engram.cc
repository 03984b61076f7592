// Engram (spec §5): a layer's rows of the tables, in the layer's turn or ahead of it, and what they add to the streams.

#include "model/model.h"
#include "model/step.h"

namespace deepinfer {

bool Model::gathers_ahead(const Step& step) const {
  return step.observer == nullptr && backend_->runs_ahead() && engram_slots() > 0 && engram_slots() <= Backend::kAheadPlaces;
}

/// Which rows of the tables a step wants follows from its tokens alone.
void Model::gather_ahead(Step& step) {
  for (const int64_t layer : config_.engram_layer_ids) {
    // A step narrows between the Engram of the first decoder layer and the rest of that layer.
    const StepInputs& in = step.narrows && layer > config_.first_decoder_layer() ? step.b->kept : step.b->all;
    if (in.rows == 0) continue;
    backend_->ahead(static_cast<int>(config_.engram_slot(layer)), [&] { gather_engram(step, in, layer); });
  }
}

bf16* Model::engram_inputs(const Step& step, int64_t layer) const {
  const int64_t place = step.gathers_ahead ? config_.engram_slot(layer) * step.b->all.rows : 0;
  return step.b->engram_e.data() + place * config_.engram_columns() * config_.engram_head_dim;
}

void Model::gather_engram(const Step& step, const StepInputs& in, int64_t layer) {
  const int64_t columns = config_.engram_columns();
  backend_->engram_gather(weights_.blocks[static_cast<size_t>(layer)].engram_table,
                          in.engram_rows.device() + config_.engram_slot(layer) * in.rows * columns, in.rows, columns,
                          engram_inputs(step, layer));
}

void Model::run_engram(Step& step, int64_t layer) {
  const ModelConfig& c = config_;
  const BlockWeights& w = weights_.blocks[static_cast<size_t>(layer)];
  Buffers& b = *step.b;
  const int64_t first = c.engram_slot(layer) * step.rows * c.engram_columns();
  step.observe("engram_rows", layer, step.in->engram_rows.host() + first, step.rows * c.engram_columns());
  if (step.gathers_ahead) {
    backend_->arrive(static_cast<int>(c.engram_slot(layer)));
  } else {
    gather_engram(step, *step.in, layer);
  }
  const LinearOutput kv{w.engram_wkv, b.engram_kv.data()};
  backend_->linear_fp8(engram_inputs(step, layer), step.rows, {&kv, 1});
  backend_->engram_gate(b.engram_kv.data(), w.engram_q_weight, w.engram_k_weight, step.image, c.rms_norm_eps, step.rows,
                        c.hc_mult, c.hidden_size, b.x.data());
  step.observe("engram_out", layer, b.x, step.rows * c.hc_mult * c.hidden_size);
}

}  // namespace deepinfer
