#include "ops/cuda/host_pointers.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

namespace deepinfer::testing {
namespace {

// Device memory of one call after the other. Under a memory checker (DEEPINFER_TEST_SEPARATE) every piece is an allocation of its
// own, so that a step over its end is seen.
class Arena {
 public:
  explicit Arena(DeviceMemory* memory) : memory_(memory), separate_(std::getenv("DEEPINFER_TEST_SEPARATE") != nullptr) {}
  ~Arena() {
    reset();
    for (const Block& block : blocks_) memory_->free(block.data);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(int64_t bytes) {
    if (separate_) return own_.emplace_back(memory_->allocate(bytes));
    const int64_t rounded = (bytes + 255) / 256 * 256;
    while (at_ < blocks_.size() && used_ + rounded > blocks_[at_].size) ++at_, used_ = 0;
    if (at_ == blocks_.size()) {
      const int64_t size = std::max<int64_t>(rounded, 64 << 20);
      blocks_.push_back({static_cast<uint8_t*>(memory_->allocate(size)), size});
      used_ = 0;
    }
    used_ += rounded;
    return blocks_[at_].data + used_ - rounded;
  }
  void reset() {
    memory_->synchronize();
    for (void* data : own_) memory_->free(data);
    own_.clear();
    at_ = 0;
    used_ = 0;
  }
  DeviceMemory* memory() const { return memory_; }

 private:
  struct Block {
    uint8_t* data;
    int64_t size;
  };
  DeviceMemory* memory_;
  bool separate_;
  std::vector<void*> own_;
  std::vector<Block> blocks_;
  size_t at_ = 0;
  int64_t used_ = 0;
};

// Weights on the device for good, by host address.
class KeptWeights {
 public:
  explicit KeptWeights(DeviceMemory* memory) : memory_(memory) {}
  ~KeptWeights() {
    for (auto& [host, device] : copies_) memory_->free(device);
  }
  KeptWeights(const KeptWeights&) = delete;
  KeptWeights& operator=(const KeptWeights&) = delete;

  bool has(const void* host, int64_t bytes) const { return copies_.contains({host, bytes}); }
  void* get(const void* host, int64_t bytes) {
    void*& device = copies_[{host, bytes}];
    if (device == nullptr) {
      device = memory_->allocate(bytes);
      memory_->upload(device, host, bytes);
    }
    return device;
  }

 private:
  DeviceMemory* memory_;
  std::map<std::pair<const void*, int64_t>, void*> copies_;
};

// The device copies of one call.
class Call {
 public:
  Call(Arena* arena, KeptWeights* weights) : arena_(arena), weights_(weights), memory_(arena->memory()) {}
  ~Call() {
    for (const Copy& copy : out_) memory_->download(copy.host, copy.device, copy.bytes);
    arena_->reset();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  template <typename T>
  T* in(T* host, int64_t count) {
    return static_cast<T*>(read(host, count * static_cast<int64_t>(sizeof(T))));
  }
  /// Poisoned before.
  template <typename T>
  T* out(T* host, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes == 0) return host;
    void* device = arena_->allocate(bytes);
    memory_->fill(device, 0xcd, bytes);
    out_.push_back({host, device, bytes});
    return static_cast<T*>(device);
  }
  template <typename T>
  T* weight(T* host, int64_t count) {
    if (weights_ == nullptr || count == 0 || host == nullptr) return in(host, count);
    return static_cast<T*>(weights_->get(host, count * static_cast<int64_t>(sizeof(T))));
  }
  template <typename T>
  T* inout(T* host, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    T* device = out(host, count);
    memory_->upload(device, host, bytes);
    return device;
  }

  Fp8Weight in(const Fp8Weight& w) {
    return {weight(w.values, w.out * w.in), weight(w.scales, (w.out + 31) / 32 * (w.in / 32)), w.out, w.in};
  }
  /// Routed experts' weights: `arrange` sees each once, when it has come.
  template <typename Arrange>
  Fp4Weight in(const Fp4Weight& w, const Arrange& arrange) {
    const int64_t bytes = w.out * w.in / 2;
    const bool known = weights_ != nullptr ? weights_->has(w.codes, bytes) : in_.contains({w.codes, bytes});
    const uint8_t* codes = weight(w.codes, bytes);
    const uint8_t* scales = weight(w.scales, w.out * (w.in / 32));
    if (!known) arrange(const_cast<uint8_t*>(codes), const_cast<uint8_t*>(scales), w.out, w.in);
    return {codes, scales, w.out, w.in};
  }
  Bf16Weight in(const Bf16Weight& w) { return {weight(w.values, w.out * w.in), w.out, w.in}; }

  /// Rows that are written, each on its own.
  std::vector<uint8_t*> rows(std::span<uint8_t* const> host, int64_t row_bytes) {
    std::vector<uint8_t*> copies;
    for (uint8_t* row : host) copies.push_back(row == nullptr ? nullptr : out(row, row_bytes));
    return copies;
  }

  /// The pages of the first `rows` rows. Only what belongs to the rows is copied.
  PagedRows pages(const PagedRows& cache, int64_t rows, bool write) {
    PagedRows copy = cache;
    if (rows == 0) return copy;
    const int64_t count = (rows + cache.rows_per_page - 1) / cache.rows_per_page;
    std::vector<uint8_t*>& table = tables_.emplace_back();
    for (int64_t p = 0; p < count; ++p) {
      const int64_t used = std::min(cache.rows_per_page, rows - p * cache.rows_per_page) * cache.row_bytes;
      const auto room = static_cast<uint8_t*>(arena_->allocate(cache.offset + used));
      memory_->upload(room + cache.offset, cache.pages[p] + cache.offset, used);
      if (write) out_.push_back({cache.pages[p] + cache.offset, room + cache.offset, used});
      table.push_back(room);
    }
    copy.pages = table.data();
    return copy;
  }

 private:
  struct Copy {
    void* host;
    const void* device;
    int64_t bytes;
  };

  void* read(const void* host, int64_t bytes) {
    if (bytes == 0 || host == nullptr) return const_cast<void*>(host);
    void*& device = in_[{host, bytes}];
    if (device != nullptr) return device;
    device = arena_->allocate(bytes);
    memory_->upload(device, host, bytes);
    return device;
  }

  Arena* arena_;
  KeptWeights* weights_;
  DeviceMemory* memory_;
  std::vector<Copy> out_;
  std::map<std::pair<const void*, int64_t>, void*> in_;
  std::vector<std::vector<uint8_t*>> tables_;
};

class HostPointers final : public Backend {
 public:
  HostPointers(std::unique_ptr<Backend> device, bool keep_weights)
      : device_(std::move(device)), arena_(&device_->memory()), weights_(&device_->memory()), keeps_(keep_weights) {}

  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  std::vector<KernelChoice> kernels() const override { return device_->kernels(); }

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->embed(ids, call.in(table), streams, call.out(x, static_cast<int64_t>(ids.size()) * streams * table.in));
  }
  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    HyperMixWeights copy = w;
    const int64_t outputs = (2 + w.n) * w.n;
    copy.fn = call.weight(w.fn, outputs * w.n * w.hidden);
    copy.base = call.weight(w.base, outputs);
    copy.scale = call.weight(w.scale, 3);
    device_->hyper_mix(copy, call.in(x, rows * w.n * w.hidden), rows, call.out(pre, rows * w.n), call.out(post, rows * w.n),
                       call.out(comb, rows * w.n * w.n));
  }
  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->hyper_collapse(call.in(x, rows * n * hidden), call.in(pre, rows * n), rows, n, hidden, call.out(y, rows * hidden));
  }
  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->hyper_expand(call.in(o, rows * hidden), call.in(post, rows * n), call.in(comb, rows * n * n), rows, n, hidden,
                          call.inout(x, rows * n * hidden));
  }
  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->stream_mean(call.in(x, rows * n * hidden), rows, n, hidden, call.out(y, rows * hidden));
  }
  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    if (x == y) {
      bf16* both = call.inout(y, rows * dim);
      return device_->rms_norm(both, call.weight(w, dim), eps, rows, dim, both);
    }
    device_->rms_norm(call.in(x, rows * dim), call.weight(w, dim), eps, rows, dim, call.out(y, rows * dim));
  }
  void hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w, float eps,
                           bf16* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->hyper_collapse_norm(call.in(x, rows * n * hidden), call.in(pre, rows * n), rows, n, hidden, call.weight(w, hidden),
                                 eps, call.out(y, rows * hidden));
  }
  void hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre, int64_t rows, int64_t n,
                                  int64_t hidden, const bf16* w, float eps, bf16* x, bf16* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->hyper_expand_collapse_norm(call.in(o, rows * hidden), call.in(post, rows * n), call.in(comb, rows * n * n),
                                        call.in(pre, rows * n), rows, n, hidden, call.weight(w, hidden), eps,
                                        call.inout(x, rows * n * hidden), call.out(y, rows * hidden));
  }
  void attention_latents(const LatentArgs& args, int64_t rows) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    LatentArgs copy = args;
    copy.q = call.inout(args.q, rows * args.q_dim);
    copy.q_norm = call.weight(args.q_norm, args.q_dim);
    copy.kv = call.inout(args.kv, rows * args.kv_dim);
    copy.kv_norm = call.weight(args.kv_norm, args.kv_dim);
    copy.rotation.cos = call.in(args.rotation.cos, rows * args.rotation.pairs);
    copy.rotation.sin = call.in(args.rotation.sin, rows * args.rotation.pairs);
    copy.packed = call.out(args.packed, rows * (args.kv_dim + args.kv_dim / kScaleGroup));
    device_->attention_latents(copy, rows);
  }
  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override {
    if (outputs.empty()) return;
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    std::vector<LinearOutput> copies;
    for (const LinearOutput& o : outputs) copies.push_back({call.in(o.weight), call.out(o.y, rows * o.weight.out)});
    device_->linear_fp8(call.in(x, rows * outputs[0].weight.in), rows, copies);
  }
  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->linear_bf16(call.in(x, rows * w.in), rows, call.in(w), call.out(y, rows * w.out));
  }
  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->linear_bf16_fp32(call.in(x, rows * w.in), rows, call.in(w), call.out(y, rows * w.out));
  }
  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->output_lora(call.in(o, rows * groups * wo_a.in), rows, call.in(wo_a), groups, call.out(y, rows * wo_a.out));
  }
  void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    const RopeRows copy{call.in(rotation.cos, rows * rotation.pairs), call.in(rotation.sin, rows * rotation.pairs),
                        rotation.pairs};
    device_->rope(call.inout(x, rows * heads * dim), copy, rows, heads, dim, inverse);
  }
  void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->pack_window(call.in(x, rows * dim), rows, dim, call.out(packed, rows * (dim + dim / kScaleGroup)));
  }
  void pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    const auto rows = call.rows(to, dim / 2 + dim / kCacheScaleGroup);
    device_->pack_compressed(call.in(x, static_cast<int64_t>(to.size()) * dim), dim, rows);
  }
  void pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    const auto rows = call.rows(to, dim / 2 + dim / kScaleGroup);
    device_->pack_index_keys(call.in(x, static_cast<int64_t>(to.size()) * dim), dim, rows);
  }
  void round_index_queries(bf16* x, int64_t rows, int64_t dim) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->round_index_queries(call.inout(x, rows * dim), rows, dim);
  }
  void scale(bf16* x, int64_t count, float factor) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->scale(call.inout(x, count), count, factor);
  }
  void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    std::vector<const float*> values, gates;
    for (const float* row : kv) values.push_back(call.in(row, dim));
    for (const float* row : gate) gates.push_back(call.in(row, dim));
    device_->compress_pool(values, gates, dim, call.out(latent, static_cast<int64_t>(kv.size() / 2) * dim));
  }

  void index_select(const IndexSelectArgs& args) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    const auto rows = static_cast<int64_t>(args.queries.size());
    IndexSelectArgs copy = args;
    copy.q = call.in(args.q, rows * args.heads * args.dim);
    copy.weights = call.in(args.weights, rows * args.heads);
    if (args.candidates != nullptr) copy.candidates = call.inout(args.candidates, rows * args.candidate_words);
    std::vector<IndexQuery> queries(args.queries.begin(), args.queries.end());
    std::map<const void*, PagedRows> keys;
    for (const IndexQuery& q : queries) {
      int64_t longest = 0;
      for (const IndexQuery& other : queries) longest = std::max(longest, other.keys.pages == q.keys.pages ? other.visible : 0);
      if (!keys.contains(q.keys.pages)) keys[q.keys.pages] = call.pages(q.keys, longest, false);
    }
    for (IndexQuery& q : queries) {
      q.keys = keys[q.keys.pages];
      q.chosen = call.inout(q.chosen, std::min(args.topk, q.visible));
    }
    copy.queries = queries;
    device_->index_select(copy);
    for (size_t i = 0; i < queries.size(); ++i) args.queries[i].chosen_count = queries[i].chosen_count;
  }

  void sparse_attention(const SparseAttentionArgs& args) override {
    with_device_copies(args, nullptr, [&](Call&, const SparseAttentionArgs& copy, bf16*) { device_->sparse_attention(copy); });
  }
  void rotated_attention(const SparseAttentionArgs& args, bf16* q, const RopeRows& rotation) override {
    with_device_copies(args, q, [&](Call& call, const SparseAttentionArgs& copy, bf16* device_q) {
      const auto values = static_cast<int64_t>(args.queries.size()) * rotation.pairs;
      device_->rotated_attention(copy, device_q, {call.in(rotation.cos, values), call.in(rotation.sin, values), rotation.pairs});
    });
  }
  // `written`: args.q if it is written, too.
  void with_device_copies(const SparseAttentionArgs& args, bf16* written,
                          FunctionRef<void(Call&, const SparseAttentionArgs&, bf16*)> call_with) {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    const auto rows = static_cast<int64_t>(args.queries.size());
    SparseAttentionArgs copy = args;
    const int64_t width = rows * args.heads * args.dim;
    bf16* device_q = written != nullptr ? call.inout(written, width) : nullptr;
    copy.q = written != nullptr ? device_q : call.in(args.q, width);
    copy.sinks = call.weight(args.sinks, args.heads);
    copy.out = call.out(args.out, rows * args.heads * args.dim);
    std::vector<AttentionQuery> queries(args.queries.begin(), args.queries.end());
    std::map<const void*, PagedRows> compressed;
    std::map<const void*, int64_t> fresh;
    for (const AttentionQuery& q : queries) {
      if (q.chosen_count > 0 && !compressed.contains(q.compressed.pages)) {
        int64_t longest = 0;
        for (const AttentionQuery& other : queries)
          longest = std::max(longest, other.compressed.pages == q.compressed.pages ? other.compressed_rows : 0);
        compressed[q.compressed.pages] = call.pages(q.compressed, longest, false);
      }
      int64_t& most = fresh[q.window.fresh];
      most = std::max(most, q.window_last - q.window.start + 1);
    }
    for (AttentionQuery& q : queries) {
      q.window.ring = call.in(q.window.ring, q.window.capacity * q.window.row_bytes);
      q.window.fresh = call.in(q.window.fresh, std::max<int64_t>(0, fresh[q.window.fresh]) * q.window.row_bytes);
      if (q.chosen_count > 0) q.compressed = compressed[q.compressed.pages];
      q.chosen = call.in(q.chosen, q.chosen_count);
    }
    copy.queries = queries;
    call_with(call, copy, device_q);
  }

  void route(const RouteArgs& args, int64_t rows) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    RouteArgs copy = args;
    copy.v = call.in(args.v, rows * args.gate.in);
    copy.gate = call.in(args.gate);
    copy.bias = call.weight(args.bias, args.gate.out);
    copy.bias_vl = call.weight(args.bias_vl, args.gate.out);
    copy.image = call.in(args.image, rows);
    copy.experts = call.out(args.experts, rows * args.topk);
    copy.weights = call.out(args.weights, rows * args.topk);
    if (args.counts != nullptr) {
      copy.counts = call.inout(args.counts, args.gate.out);
      copy.counted = call.in(args.counted, 1);
    }
    device_->route(copy, rows);
  }

  void experts(const ExpertsArgs& args, int64_t rows) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    ExpertsArgs copy = args;
    copy.v = call.in(args.v, rows * args.shared_w1.in);
    copy.experts = call.in(args.experts, rows * args.topk);
    copy.weights = call.in(args.weights, rows * args.topk);
    std::vector<ExpertWeights> routed;
    const auto arrange = [&](uint8_t* codes, uint8_t* scales, int64_t out, int64_t in) {
      device_->arrange_experts(codes, scales, out, in);
    };
    for (const ExpertWeights& w : args.routed)
      routed.push_back({call.in(w.w1, arrange), call.in(w.w2, arrange), call.in(w.w3, arrange)});
    copy.routed = routed;
    copy.shared_w1 = call.in(args.shared_w1);
    copy.shared_w2 = call.in(args.shared_w2);
    copy.shared_w3 = call.in(args.shared_w3);
    copy.y = call.out(args.y, rows * args.shared_w2.out);
    device_->experts(copy, rows);
  }

  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    EngramTable copy = table;
    copy.values = call.weight(table.values, table.rows * table.dim);
    copy.scales = call.weight(table.scales, table.rows * table.dim / kScaleGroup);
    device_->engram_gather(copy, call.in(ids, rows * columns), rows, columns, call.out(e, rows * columns * table.dim));
  }
  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    device_->engram_gate(call.in(kv, rows * (n + 1) * hidden), call.weight(q_weight, n * hidden),
                         call.weight(k_weight, n * hidden), call.in(image, rows), eps, rows, n, hidden,
                         call.inout(x, rows * n * hidden));
  }

  void markov_logits(const MarkovArgs& args) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    const int64_t rows = args.rows;
    if (rows == 0) return;
    MarkovArgs copy = args;
    copy.previous = call.in(args.previous, rows);
    copy.embed = call.in(args.embed);
    copy.head = call.in(args.head);
    copy.base = call.in(args.base, (rows - 1) * args.base_stride + args.head.out);
    copy.logits = call.out(args.logits, rows * args.head.out);
    device_->markov_logits(copy);
  }
  void draft_confidence(const ConfidenceArgs& args) override {
    Call call(&arena_, keeps_ ? &weights_ : nullptr);
    const int64_t rows = args.rows;
    ConfidenceArgs copy = args;
    copy.previous = call.in(args.previous, rows);
    copy.x = call.in(args.x, rows * (args.proj.in - args.embed.in));
    copy.embed = call.in(args.embed);
    copy.proj = call.in(args.proj);
    copy.confidences = call.out(args.confidences, rows);
    device_->draft_confidence(copy);
  }

 private:
  std::unique_ptr<Backend> device_;
  Arena arena_;
  KeptWeights weights_;
  bool keeps_;
};

}  // namespace

std::unique_ptr<Backend> make_host_pointer_backend(std::unique_ptr<Backend> device, bool keep_weights) {
  return std::make_unique<HostPointers>(std::move(device), keep_weights);
}

}  // namespace deepinfer::testing
