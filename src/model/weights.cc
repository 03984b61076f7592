#include "model/weights.h"

#include <cstring>
#include <string>

namespace deepinfer {
namespace {

class Binder {
 public:
  Binder(const Checkpoint& checkpoint, ModelWeights* out) : checkpoint_(checkpoint), out_(out) {}

  const TensorView& tensor(const std::string& name) const {
    const TensorView* view = checkpoint_.find(name);
    DI_CHECK(view != nullptr, "tensor {} is in the catalogue and not in the checkpoint", name);
    return *view;
  }

  template <typename T>
  const T* data(const std::string& name) {
    const TensorView& view = tensor(name);
    if (reinterpret_cast<uintptr_t>(view.data) % alignof(T) == 0) return view.as<T>();
    AlignedBuffer<uint8_t> copy(view.bytes);
    std::memcpy(copy.data(), view.data, static_cast<size_t>(view.bytes));
    out_->realigned.push_back(std::move(copy));
    return reinterpret_cast<const T*>(out_->realigned.back().data());
  }

  Fp8Weight fp8(const std::string& name) const {
    const TensorView& w = tensor(name + ".weight");
    return {w.as<uint8_t>(), tensor(name + ".scale").as<uint8_t>(), w.shape[0], w.shape[1]};
  }

  Fp4Weight fp4(const std::string& name) const {
    const TensorView& w = tensor(name + ".weight");
    return {w.as<uint8_t>(), tensor(name + ".scale").as<uint8_t>(), w.shape[0], 2 * w.shape[1]};
  }

  Bf16Weight matrix(const std::string& name) {
    const TensorView& w = tensor(name + ".weight");
    return {data<bf16>(name + ".weight"), w.shape[0], w.shape[1]};
  }

 private:
  const Checkpoint& checkpoint_;
  ModelWeights* out_;
};

HyperMixWeights hyper_mix(Binder& bind, const std::string& prefix, const ModelConfig& c) {
  return {.fn = bind.data<float>(prefix + "_fn"),
          .base = bind.data<float>(prefix + "_base"),
          .scale = bind.data<float>(prefix + "_scale"),
          .n = c.hc_mult,
          .hidden = c.hidden_size,
          .sinkhorn_iters = c.hc_sinkhorn_iters,
          .eps = c.hc_eps,
          .rms_eps = c.rms_norm_eps};
}

/// `p`: prefix of the block's tensors. Draft stages count on as layers behind the last one.
void bind_block(Binder& bind, const ModelConfig& c, const std::string& p, int64_t layer, BlockWeights& b) {
  b.attn_norm = bind.data<bf16>(p + "attn_norm.weight");
  b.ffn_norm = bind.data<bf16>(p + "ffn_norm.weight");
  b.wq_a = bind.fp8(p + "attn.wq_a");
  b.wq_b = bind.fp8(p + "attn.wq_b");
  b.wkv = bind.fp8(p + "attn.wkv");
  b.wo_a = bind.fp8(p + "attn.wo_a");
  b.wo_b = bind.fp8(p + "attn.wo_b");
  b.q_norm = bind.data<bf16>(p + "attn.q_norm.weight");
  b.kv_norm = bind.data<bf16>(p + "attn.kv_norm.weight");
  b.attn_sink = bind.data<float>(p + "attn.attn_sink");
  if (c.is_kv_source(layer)) {
    b.compressor_wkv = bind.matrix(p + "attn.compressor.wkv");
    if (c.compress_ratio(layer) > 1) b.compressor_wgate = bind.matrix(p + "attn.compressor.wgate");
    b.compressor_norm = bind.data<bf16>(p + "attn.compressor.norm.weight");
    b.index_wk = bind.matrix(p + "attn.indexer.wk");
    b.index_k_norm = bind.data<bf16>(p + "attn.indexer.k_norm.weight");
  }
  if (c.is_index_source(layer)) {
    b.index_wq_b = bind.fp8(p + "attn.indexer.wq_b");
    b.index_weights_proj = bind.matrix(p + "attn.indexer.weights_proj");
  }
  b.hc_attn = hyper_mix(bind, p + "hc_attn", c);
  b.hc_ffn = hyper_mix(bind, p + "hc_ffn", c);
  b.gate = bind.matrix(p + "ffn.gate");
  b.gate_bias = bind.data<float>(p + "ffn.gate.bias");
  b.gate_bias_vl = bind.data<float>(p + "ffn.gate.bias_vl");
  const int64_t experts = layer < c.num_hidden_layers ? c.n_routed_experts : c.dspark_n_routed_experts;
  for (int64_t e = 0; e < experts; ++e) {
    const std::string x = p + "ffn.experts." + std::to_string(e) + ".";
    b.experts.push_back({bind.fp4(x + "w1"), bind.fp4(x + "w2"), bind.fp4(x + "w3")});
  }
  b.shared_w1 = bind.fp8(p + "ffn.shared_experts.w1");
  b.shared_w2 = bind.fp8(p + "ffn.shared_experts.w2");
  b.shared_w3 = bind.fp8(p + "ffn.shared_experts.w3");
  if (c.engram_slot(layer) >= 0) {
    const TensorView& table = bind.tensor(p + "engram.embed.weight");
    b.engram_table = {table.as<uint8_t>(), bind.tensor(p + "engram.embed.scale").as<uint8_t>(), table.shape[0], table.shape[1]};
    b.engram_wkv = bind.fp8(p + "engram.wkv");
    b.engram_q_weight = bind.data<bf16>(p + "engram.q_weight");
    b.engram_k_weight = bind.data<bf16>(p + "engram.k_weight");
  }
}

void bind_draft(Binder& bind, const ModelConfig& c, DraftWeights& d) {
  d.main_proj = bind.fp8("mtp.0.main_proj");
  d.main_norm = bind.data<bf16>("mtp.0.main_norm.weight");
  d.stages.resize(static_cast<size_t>(c.num_nextn_predict_layers));
  for (int64_t stage = 0; stage < c.num_nextn_predict_layers; ++stage) {
    bind_block(bind, c, "mtp." + std::to_string(stage) + ".", c.num_hidden_layers + stage, d.stages[static_cast<size_t>(stage)]);
  }
  const std::string last = "mtp." + std::to_string(c.num_nextn_predict_layers - 1) + ".";
  d.norm = bind.data<bf16>(last + "norm.weight");
  d.markov_embed = bind.matrix(last + "markov_head.embed");
  d.markov_head = bind.matrix(last + "markov_head.head");
  d.confidence = bind.matrix(last + "confidence_head.proj");
}

}  // namespace

ModelWeights bind_weights(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  ModelWeights weights;
  Binder bind(checkpoint, &weights);
  weights.embed = bind.matrix("embed");
  weights.head = bind.matrix("head");
  weights.norm = bind.data<bf16>("norm.weight");
  weights.blocks.resize(static_cast<size_t>(c.num_hidden_layers));
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer)
    bind_block(bind, c, "layers." + std::to_string(layer) + ".", layer, weights.blocks[static_cast<size_t>(layer)]);
  if (c.num_nextn_predict_layers > 0) bind_draft(bind, c, weights.draft);
  return weights;
}

}  // namespace deepinfer
