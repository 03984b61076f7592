// What a backend is told of weights that it reads soon (Backend::will_need): those of the larger products behind chains of small
// operators, in which few rows leave the memory idle.

#include "model/model.h"
#include "model/step.h"

namespace deepinfer {
namespace {

WeightBytes values_of(const Fp8Weight& w) { return {w.values, w.out * w.in}; }
WeightBytes scales_of(const Fp8Weight& w) { return {w.scales, (w.out + kScaleGroup - 1) / kScaleGroup * (w.in / kScaleGroup)}; }
WeightBytes bytes_of(const HyperMixWeights& w) {
  return {w.fn, (2 + w.n) * w.n * w.n * w.hidden * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

// Before the norm of an attention: its queries follow their low-rank product and another norm.
void Model::need_queries(const Step& step, const BlockWeights& w) {
  const WeightBytes weights[] = {bytes_of(w.hc_attn), scales_of(w.wq_b), values_of(w.wq_b)};
  backend_->will_need(ComingOperators::kQueries, step.rows, weights);
}

// When keys are chosen, before the attention itself.
void Model::need_attention_output(const Step& step, const BlockWeights& w) {
  const WeightBytes weights[] = {scales_of(w.wo_a), values_of(w.wo_a), scales_of(w.wo_b), values_of(w.wo_b)};
  backend_->will_need(ComingOperators::kAttentionOutput, step.rows, weights);
}

// Before the norm of the experts' inputs: which are chosen is known later, but for the shared one.
void Model::need_experts(const Step& step, const BlockWeights& w) {
  const WeightBytes weights[] = {bytes_of(w.hc_ffn),     scales_of(w.shared_w1), scales_of(w.shared_w3), scales_of(w.shared_w2),
                                 values_of(w.shared_w1), values_of(w.shared_w3), values_of(w.shared_w2)};
  backend_->will_need(ComingOperators::kExperts, step.rows, weights);
}

}  // namespace deepinfer
