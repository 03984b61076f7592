#include "ops/wrapped_backend.h"

namespace deepinfer {

void WrappedBackend::embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) {
  around("embed", static_cast<int64_t>(ids.size()), [&] { inner_->embed(ids, table, streams, x); });
}
void WrappedBackend::hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) {
  around("hyper_mix", rows, [&] { inner_->hyper_mix(w, x, rows, pre, post, comb); });
}
void WrappedBackend::hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) {
  around("hyper_collapse", rows, [&] { inner_->hyper_collapse(x, pre, rows, n, hidden, y); });
}
void WrappedBackend::hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                                  bf16* x) {
  around("hyper_expand", rows, [&] { inner_->hyper_expand(o, post, comb, rows, n, hidden, x); });
}
void WrappedBackend::stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) {
  around("stream_mean", rows, [&] { inner_->stream_mean(x, rows, n, hidden, y); });
}
void WrappedBackend::rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) {
  around("rms_norm", rows, [&] { inner_->rms_norm(x, w, eps, rows, dim, y); });
}
void WrappedBackend::hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w,
                                         float eps, bf16* y) {
  around("hyper_collapse_norm", rows, [&] { inner_->hyper_collapse_norm(x, pre, rows, n, hidden, w, eps, y); });
}
void WrappedBackend::hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre,
                                                int64_t rows, int64_t n, int64_t hidden, const bf16* w, float eps, bf16* x,
                                                bf16* y) {
  around("hyper_expand_collapse_norm", rows,
         [&] { inner_->hyper_expand_collapse_norm(o, post, comb, pre, rows, n, hidden, w, eps, x, y); });
}
void WrappedBackend::attention_latents(const LatentArgs& args, int64_t rows) {
  around("attention_latents", rows, [&] { inner_->attention_latents(args, rows); });
}
void WrappedBackend::linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) {
  around("linear_fp8", rows, [&] { inner_->linear_fp8(x, rows, outputs); });
}
void WrappedBackend::linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) {
  around("linear_bf16", rows, [&] { inner_->linear_bf16(x, rows, w, y); });
}
void WrappedBackend::linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) {
  around("linear_bf16_fp32", rows, [&] { inner_->linear_bf16_fp32(x, rows, w, y); });
}
void WrappedBackend::output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) {
  around("output_lora", rows, [&] { inner_->output_lora(o, rows, wo_a, groups, y); });
}
void WrappedBackend::rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) {
  around("rope", rows, [&] { inner_->rope(x, rotation, rows, heads, dim, inverse); });
}
void WrappedBackend::pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) {
  around("pack_window", rows, [&] { inner_->pack_window(x, rows, dim, packed); });
}
void WrappedBackend::pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) {
  around("pack_compressed", static_cast<int64_t>(to.size()), [&] { inner_->pack_compressed(x, dim, to); });
}
void WrappedBackend::pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) {
  around("pack_index_keys", static_cast<int64_t>(to.size()), [&] { inner_->pack_index_keys(x, dim, to); });
}
void WrappedBackend::round_index_queries(bf16* x, int64_t rows, int64_t dim) {
  around("round_index_queries", rows, [&] { inner_->round_index_queries(x, rows, dim); });
}
void WrappedBackend::scale(bf16* x, int64_t count, float factor) {
  around("scale", count, [&] { inner_->scale(x, count, factor); });
}
void WrappedBackend::compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim,
                                   bf16* latent) {
  around("compress_pool", static_cast<int64_t>(kv.size()), [&] { inner_->compress_pool(kv, gate, dim, latent); });
}
void WrappedBackend::index_select(const IndexSelectArgs& args) {
  around("index_select", static_cast<int64_t>(args.queries.size()), [&] { inner_->index_select(args); });
}
void WrappedBackend::sparse_attention(const SparseAttentionArgs& args) {
  around("sparse_attention", static_cast<int64_t>(args.queries.size()), [&] { inner_->sparse_attention(args); });
}
void WrappedBackend::rotated_attention(const SparseAttentionArgs& args, bf16* q, const RopeRows& rotation) {
  around("rotated_attention", static_cast<int64_t>(args.queries.size()), [&] { inner_->rotated_attention(args, q, rotation); });
}
void WrappedBackend::route(const RouteArgs& args, int64_t rows) {
  around("route", rows, [&] { inner_->route(args, rows); });
}
void WrappedBackend::experts(const ExpertsArgs& args, int64_t rows) {
  around("experts", rows, [&] { inner_->experts(args, rows); });
}
void WrappedBackend::engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) {
  around("engram_gather", rows, [&] { inner_->engram_gather(table, ids, rows, columns, e); });
}
void WrappedBackend::engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps,
                                 int64_t rows, int64_t n, int64_t hidden, bf16* x) {
  around("engram_gate", rows, [&] { inner_->engram_gate(kv, q_weight, k_weight, image, eps, rows, n, hidden, x); });
}
void WrappedBackend::markov_logits(const MarkovArgs& args) {
  around("markov_logits", args.rows, [&] { inner_->markov_logits(args); });
}
void WrappedBackend::draft_confidence(const ConfidenceArgs& args) {
  around("draft_confidence", args.rows, [&] { inner_->draft_confidence(args); });
}
void WrappedBackend::draw(const float* logits, int64_t vocab, std::span<const DrawRow> rows, int32_t* tokens) {
  around("draw", static_cast<int64_t>(rows.size()), [&] { inner_->draw(logits, vocab, rows, tokens); });
}

}  // namespace deepinfer
