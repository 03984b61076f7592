#pragma once

#include <memory>

#include "base/function_ref.h"
#include "ops/ops.h"

namespace deepinfer {

/// A backend around another: every operator goes through `around`, everything else straight on. `replay` runs the calls as they
/// come, so that `around` sees them.
class WrappedBackend : public Backend {
 public:
  explicit WrappedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  std::string numerics() const override { return inner_->numerics(); }
  std::vector<KernelChoice> kernels() const override { return inner_->kernels(); }
  DeviceMemory& memory() override { return inner_->memory(); }
  void enter_thread() override { inner_->enter_thread(); }
  void begin_layer(int64_t layer) override { inner_->begin_layer(layer); }
  void arrange_experts(uint8_t* codes, uint8_t* scales, int64_t out, int64_t in) override {
    inner_->arrange_experts(codes, scales, out, in);
  }
  void beside(FunctionRef<void()> calls) override { inner_->beside(calls); }
  void join() override { inner_->join(); }
  bool runs_ahead() const override { return inner_->runs_ahead(); }
  void ahead(int place, FunctionRef<void()> calls) override { inner_->ahead(place, calls); }
  void arrive(int place) override { inner_->arrive(place); }

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override;
  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override;
  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override;
  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override;
  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override;
  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override;
  void hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w, float eps,
                           bf16* y) override;
  void hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre, int64_t rows, int64_t n,
                                  int64_t hidden, const bf16* w, float eps, bf16* x, bf16* y) override;
  void attention_latents(const LatentArgs& args, int64_t rows) override;
  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override;
  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override;
  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override;
  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override;
  void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) override;
  void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) override;
  void pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override;
  void pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override;
  void round_index_queries(bf16* x, int64_t rows, int64_t dim) override;
  void scale(bf16* x, int64_t count, float factor) override;
  void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) override;
  void index_select(const IndexSelectArgs& args) override;
  void sparse_attention(const SparseAttentionArgs& args) override;
  void rotated_attention(const SparseAttentionArgs& args, bf16* q, const RopeRows& rotation) override;
  void route(const RouteArgs& args, int64_t rows) override;
  void experts(const ExpertsArgs& args, int64_t rows) override;
  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override;
  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override;
  void markov_logits(const MarkovArgs& args) override;
  void draft_confidence(const ConfidenceArgs& args) override;
  bool draws() const override { return inner_->draws(); }
  void draw(const float* logits, int64_t vocab, std::span<const DrawRow> rows, int32_t* tokens) override;

 protected:
  /// Makes the call; `name` is a literal, `rows` what the operator goes over.
  virtual void around(const char* name, int64_t rows, FunctionRef<void()> call) = 0;
  Backend& inner() { return *inner_; }

 private:
  const std::unique_ptr<Backend> inner_;
};

}  // namespace deepinfer
