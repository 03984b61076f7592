#include "ops/traced_backend.h"

namespace deepinfer {
namespace {

class TracedBackend final : public Backend {
 public:
  TracedBackend(std::unique_ptr<Backend> inner, telemetry::TraceRecorder* recorder)
      : inner_(std::move(inner)), recorder_(recorder) {}

  std::string name() const override { return inner_->name(); }
  DeviceMemory& memory() override { return inner_->memory(); }
  void begin_layer(int64_t layer) override {
    layer_ = layer;
    inner_->begin_layer(layer);
  }

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override {
    const Timed t(*this, "embed", static_cast<int64_t>(ids.size()));
    inner_->embed(ids, table, streams, x);
  }
  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override {
    const Timed t(*this, "hyper_mix", rows);
    inner_->hyper_mix(w, x, rows, pre, post, comb);
  }
  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    const Timed t(*this, "hyper_collapse", rows);
    inner_->hyper_collapse(x, pre, rows, n, hidden, y);
  }
  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override {
    const Timed t(*this, "hyper_expand", rows);
    inner_->hyper_expand(o, post, comb, rows, n, hidden, x);
  }
  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    const Timed t(*this, "stream_mean", rows);
    inner_->stream_mean(x, rows, n, hidden, y);
  }
  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override {
    const Timed t(*this, "rms_norm", rows);
    inner_->rms_norm(x, w, eps, rows, dim, y);
  }
  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override {
    const Timed t(*this, "linear_fp8", rows);
    inner_->linear_fp8(x, rows, outputs);
  }
  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override {
    const Timed t(*this, "linear_bf16", rows);
    inner_->linear_bf16(x, rows, w, y);
  }
  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override {
    const Timed t(*this, "linear_bf16_fp32", rows);
    inner_->linear_bf16_fp32(x, rows, w, y);
  }
  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override {
    const Timed t(*this, "output_lora", rows);
    inner_->output_lora(o, rows, wo_a, groups, y);
  }
  void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) override {
    const Timed t(*this, "rope", rows);
    inner_->rope(x, rotation, rows, heads, dim, inverse);
  }
  void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) override {
    const Timed t(*this, "pack_window", rows);
    inner_->pack_window(x, rows, dim, packed);
  }
  void pack_compressed(const bf16* x, int64_t rows, int64_t dim, const PagedRows& cache, int64_t first) override {
    const Timed t(*this, "pack_compressed", rows);
    inner_->pack_compressed(x, rows, dim, cache, first);
  }
  void pack_index_keys(const bf16* x, int64_t rows, int64_t dim, const PagedRows& cache, int64_t first) override {
    const Timed t(*this, "pack_index_keys", rows);
    inner_->pack_index_keys(x, rows, dim, cache, first);
  }
  void round_index_queries(bf16* x, int64_t rows, int64_t dim) override {
    const Timed t(*this, "round_index_queries", rows);
    inner_->round_index_queries(x, rows, dim);
  }
  void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) override {
    const Timed t(*this, "compress_pool", static_cast<int64_t>(kv.size()));
    inner_->compress_pool(kv, gate, dim, latent);
  }
  void index_select(const IndexSelectArgs& args) override {
    const Timed t(*this, "index_select", static_cast<int64_t>(args.queries.size()));
    inner_->index_select(args);
  }
  void sparse_attention(const SparseAttentionArgs& args) override {
    const Timed t(*this, "sparse_attention", static_cast<int64_t>(args.queries.size()));
    inner_->sparse_attention(args);
  }
  void route(const RouteArgs& args, int64_t rows) override {
    const Timed t(*this, "route", rows);
    inner_->route(args, rows);
  }
  void experts(const ExpertsArgs& args, int64_t rows) override {
    const Timed t(*this, "experts", rows);
    inner_->experts(args, rows);
  }
  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override {
    const Timed t(*this, "engram_gather", rows);
    inner_->engram_gather(table, ids, rows, columns, e);
  }
  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override {
    const Timed t(*this, "engram_gate", rows);
    inner_->engram_gate(kv, q_weight, k_weight, image, eps, rows, n, hidden, x);
  }
  void markov_logits(const MarkovArgs& args) override {
    const Timed t(*this, "markov_logits", static_cast<int64_t>(args.previous.size()));
    inner_->markov_logits(args);
  }
  void draft_confidence(const ConfidenceArgs& args) override {
    const Timed t(*this, "draft_confidence", static_cast<int64_t>(args.previous.size()));
    inner_->draft_confidence(args);
  }

 private:
  /// From here to the end of the block.
  class Timed {
   public:
    Timed(TracedBackend& backend, const char* name, int64_t rows)
        : backend_(backend), name_(name), rows_(rows), begin_(telemetry::now_ns()) {}
    ~Timed() {
      backend_.recorder_->record({.name = name_,
                                  .category = telemetry::Category::kOp,
                                  .begin = begin_,
                                  .end = telemetry::now_ns(),
                                  .args = {{{"layer", backend_.layer_}, {"rows", rows_}}}});
    }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    TracedBackend& backend_;
    const char* name_;
    int64_t rows_;
    int64_t begin_;
  };

  const std::unique_ptr<Backend> inner_;
  telemetry::TraceRecorder* const recorder_;
  int64_t layer_ = -1;
};

}  // namespace

std::unique_ptr<Backend> make_traced_backend(std::unique_ptr<Backend> inner, telemetry::TraceRecorder* recorder) {
  return std::make_unique<TracedBackend>(std::move(inner), recorder);
}

}  // namespace deepinfer
