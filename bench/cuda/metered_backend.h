#pragma once

// A backend that counts what each operator must move and multiply, and marks the moments between layers or operators on the
// device, in a graph too.

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/cuda_stream.h"
#include "ops/ops.h"

namespace deepinfer::bench {

/// What a call, or a layer, has to do at least.
struct Work {
  double bytes = 0;    ///< weights and cache rows, each once
  double streams = 0;  ///< bytes of activations that go in and out
  double flops = 0;    ///< of products, 2 a multiply-add
  int64_t active = 0;  ///< experts in use

  Work& operator+=(const Work& other) {
    bytes += other.bytes, streams += other.streams, flops += other.flops, active += other.active;
    return *this;
  }
};

/// One operator call of a pass.
struct MeteredCall {
  int64_t layer = -1;  ///< -1: none, embedding and head
  const char* name = "";
  Work work;
};

class MeteredBackend final : public Backend, public cuda::StreamOwner {
 public:
  /// Marks: of layers alone, or of every operator.
  enum class Marks : uint8_t { kNone, kLayers, kOperators };
  /// Takes an upload's place if it returns true.
  using Filler = std::function<bool(void* to, const void* host, int64_t bytes)>;

  /// `inner`: of make_cuda_backend, which outlives this; another backend works too, its moments are the host's.
  explicit MeteredBackend(Backend* inner);
  ~MeteredBackend() override;

  /// Whether passes can be recorded as graphs.
  bool records() const { return owner_ != nullptr; }
  void set_filler(Filler filler) { memory_.filler = std::move(filler); }
  /// Between these two calls operators are counted (which waits for the device).
  void begin_count();
  const std::vector<MeteredCall>& end_count();
  void set_marks(Marks marks);
  /// Uploads and downloads are left out: what they bring is there from the same pass before.
  void set_recording(bool recording) { memory_.recording = recording; }

  /// A mark behind the last operator.
  void end_pass() { mark("", -1); }
  /// Time from each mark to the next of the latest pass, in us, with the layer and the operator that began there.
  struct Piece {
    int64_t layer = -1;
    const char* name = "";
    double us = 0;
  };
  std::vector<Piece> pieces();

  std::string name() const override { return inner_->name(); }
  std::string numerics() const override { return inner_->numerics(); }
  std::vector<KernelChoice> kernels() const override { return inner_->kernels(); }
  DeviceMemory& memory() override { return memory_; }
  void enter_thread() override { inner_->enter_thread(); }
  cuda::LaunchStream& stream() override { return owner_->stream(); }
  cuda::Staging& staging() override { return owner_->staging(); }
  const cuda::Recorder& recorder() override { return owner_->recorder(); }
  /// Steps are cut as the engine's are that are replayed; who measures records them himself.
  bool replays() const override { return records(); }
  void begin_layer(int64_t layer) override;

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override;
  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override;
  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override;
  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override;
  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override;
  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override;
  void arrange_experts(uint8_t* codes, uint8_t* scales, int64_t out, int64_t in) override {
    inner_->arrange_experts(codes, scales, out, in);
  }
  void beside(FunctionRef<void()> calls) override;
  void join() override;
  bool runs_ahead() const override { return inner_->runs_ahead(); }
  void ahead(int place, FunctionRef<void()> calls) override;
  void arrive(int place) override;
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
  void routed_experts(const RouteArgs& routing, const ExpertsArgs& args, int64_t rows) override;
  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override;
  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override;
  void markov_logits(const MarkovArgs& args) override;
  void draft_confidence(const ConfidenceArgs& args) override;
  bool draws() const override { return inner_->draws(); }
  void draw(const float* logits, int64_t vocab, std::span<const DrawRow> rows, int32_t* tokens) override;

 private:
  class Memory final : public DeviceMemory {
   public:
    explicit Memory(DeviceMemory* inner) : inner_(inner) {}
    Filler filler;
    bool recording = false;

    bool is_host() const override { return inner_->is_host(); }
    void* allocate(int64_t bytes) override { return inner_->allocate(bytes); }
    void free(void* data) override { inner_->free(data); }
    void* allocate_host(int64_t bytes) override { return inner_->allocate_host(bytes); }
    void free_host(void* data) override { inner_->free_host(data); }
    int64_t free_bytes() const override { return inner_->free_bytes(); }
    int64_t total_bytes() const override { return inner_->total_bytes(); }
    void upload(void* to, const void* host, int64_t bytes) override {
      if (recording || (filler && filler(to, host, bytes))) return;
      inner_->upload(to, host, bytes);
    }
    void download(void* host, const void* from, int64_t bytes) override {
      if (!recording) inner_->download(host, from, bytes);
    }
    void copy(void* to, const void* from, int64_t bytes) override { inner_->copy(to, from, bytes); }
    void copy_rows(std::span<const RowCopy> rows, int64_t row_bytes) override { inner_->copy_rows(rows, row_bytes); }
    void fill(void* to, uint8_t byte, int64_t bytes) override { inner_->fill(to, byte, bytes); }
    void synchronize() override { inner_->synchronize(); }

   private:
    DeviceMemory* inner_;
  };

  struct Mark {
    int64_t layer = -1;
    const char* name = "";
    double host = 0;
  };

  void begin(const char* name, const Work& work);
  void mark(const char* name, int64_t layer);

  Backend* inner_;
  cuda::StreamOwner* owner_;
  Memory memory_;
  bool asked_ahead_[kAheadPlaces] = {};  ///< and not arrived
  bool counting_ = false;
  Marks marks_kind_ = Marks::kNone;
  int64_t layer_ = -1;
  std::vector<MeteredCall> calls_;
  std::vector<Mark> marks_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace deepinfer::bench
