#include "testing/guarded_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "sampling/sampler.h"
#include "testing/guarded_copies.h"

namespace deepinfer::testing {
namespace {

// Every byte at two addresses: the one that is given out has no access. One for all backends, since tests compare what lies in
// the memories of two.
class Arena {
 public:
  static Arena& get() {
    static Arena& arena = *new Arena;  // never destroyed: models that tests keep to the end lie in it
    return arena;
  }

  /// Where the bytes at an address of the device can be reached. nullptr stays.
  uint8_t* host(const void* address) const {
    const auto* p = static_cast<const uint8_t*>(address);
    if (p == nullptr) return nullptr;
    DI_CHECK(p >= device_ && p < device_ + kRange, "an address of the host's where a device's belongs");
    return host_ + (p - device_);
  }
  void* allocate(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t size = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    if (size == 0) return nullptr;
    ++allocations;
    std::vector<uint8_t*>& old = free_[size];
    uint8_t* data = nullptr;
    if (!old.empty()) {
      data = old.back();
      old.pop_back();
    } else {
      DI_CHECK(used_ + size <= kRange, "more than {} bytes of guarded memory", kRange);
      data = device_ + used_;
      used_ += size;
    }
    sizes_[data] = size;
    std::memset(host(data), 0, size);
    return data;
  }
  void free(void* data) {
    if (data == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto known = sizes_.find(static_cast<uint8_t*>(data));
    DI_CHECK(known != sizes_.end(), "freed what was not allocated");
    free_[known->second].push_back(known->first);
    sizes_.erase(known);
  }
  int64_t size(void* data) {
    const std::lock_guard lock(mutex_);
    const auto known = sizes_.find(static_cast<uint8_t*>(data));
    return known != sizes_.end() ? static_cast<int64_t>(known->second) : 0;
  }
  std::atomic<int64_t> allocations = 0, downloads = 0;

 private:
  static constexpr size_t kRange = size_t{64} << 30;
  static constexpr size_t kAlignment = 256;

  Arena() {
    const int file = memfd_create("guarded", 0);
    DI_CHECK(file >= 0 && ftruncate(file, kRange) == 0, "cannot make {} bytes of guarded memory", kRange);
    void* device = mmap(nullptr, kRange, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void* host = mmap(nullptr, kRange, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    DI_CHECK(device != MAP_FAILED && host != MAP_FAILED, "cannot map {} bytes of guarded memory", kRange);
    device_ = static_cast<uint8_t*>(device);
    host_ = static_cast<uint8_t*>(host);
  }

  std::mutex mutex_;
  uint8_t* device_ = nullptr;
  uint8_t* host_ = nullptr;
  size_t used_ = 0;
  std::unordered_map<uint8_t*, size_t> sizes_;
  std::map<size_t, std::vector<uint8_t*>> free_;
};

class GuardedMemory final : public DeviceMemory, public PageCopySource {
 public:
  template <typename T>
  T* at(T* address) const {
    return reinterpret_cast<T*>(Arena::get().host(address));
  }

  bool is_host() const override { return false; }
  void* allocate(int64_t bytes) override {
    DI_CHECK(!replaying, "an allocation of {} bytes among calls to replay", bytes);
    return Arena::get().allocate(bytes);
  }
  void free(void* data) override {
    if (copies_ != nullptr) copies_->freed(data, Arena::get().size(data));
    Arena::get().free(data);
  }
  void* allocate_host(int64_t bytes) override { return host_memory().allocate_host(bytes); }
  void free_host(void* data) override { host_memory().free_host(data); }

  void upload(void* to, const void* host, int64_t bytes) override {
    if (asked(bytes)) host_memory().upload(wrote(to, bytes), host, bytes);
  }
  void download(void* host, const void* from, int64_t bytes) override {
    DI_CHECK(!replaying, "a download of {} bytes among calls to replay", bytes);
    ++Arena::get().downloads;
    host_memory().download(host, at(from), bytes);
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (asked(bytes)) host_memory().copy(wrote(to, bytes), at(from), bytes);
  }
  void copy_rows(std::span<const RowCopy> rows, int64_t row_bytes) override {
    if (!asked(row_bytes * static_cast<int64_t>(rows.size()))) return;
    for (const RowCopy& row : rows) {
      if (row.to != nullptr) host_memory().copy(wrote(row.to, row_bytes), at(row.from), row_bytes);
    }
  }
  void fill(void* to, uint8_t byte, int64_t bytes) override {
    if (asked(bytes)) host_memory().fill(wrote(to, bytes), byte, bytes);
  }
  void synchronize() override {}
  PageCopies& page_copies() override {
    if (copies_ == nullptr) copies_ = std::make_unique<GuardedCopies>([](const void* p) { return Arena::get().host(p); });
    return *copies_;
  }

  /// As `at`, of what an operator writes.
  template <typename T>
  T* wrote(T* address, int64_t bytes) {
    if (copies_ != nullptr && address != nullptr) copies_->written(address, bytes);
    return at(address);
  }

  /// Whether what is asked for is to be done; sizes are kept for the comparison.
  bool asked(int64_t size) {
    if (replaying) sizes_asked.push_back(size);
    return !describing;
  }
  bool replaying = false;
  bool describing = false;
  std::vector<int64_t> sizes_asked;

 private:
  std::unique_ptr<GuardedCopies> copies_;  ///< made when somebody asks for them
};

class GuardedBackend final : public Backend {
 public:
  GuardedBackend(std::unique_ptr<Backend> inner, bool ahead) : inner_(std::move(inner)), runs_ahead_(ahead) {}

  std::string name() const override { return inner_->name(); }
  std::string numerics() const override { return inner_->numerics(); }
  std::vector<KernelChoice> kernels() const override { return inner_->kernels(); }
  DeviceMemory& memory() override { return memory_; }
  void enter_thread() override { inner_->enter_thread(); }
  bool replays() const override { return true; }
  void replay(FunctionRef<void()> calls) override {
    memory_.replaying = memory_.describing = true;
    memory_.sizes_asked.clear();
    calls();
    memory_.describing = false;
    const std::vector<int64_t> described = std::move(memory_.sizes_asked);
    memory_.sizes_asked.clear();
    calls();
    memory_.replaying = false;
    for (const auto& late : late_) DI_CHECK(late.empty(), "what was asked ahead has not been waited for");
    DI_CHECK(memory_.sizes_asked == described, "the calls to replay differ from one time to the next");
  }

  void rehearse(FunctionRef<void()> calls) override {
    memory_.replaying = memory_.describing = true;
    calls();
    memory_.replaying = memory_.describing = false;
  }

  bool runs_ahead() const override { return runs_ahead_; }
  void ahead(int place, FunctionRef<void()> calls) override {
    DI_CHECK(late_[place].empty() && place_ < 0, "place {} is taken, or asked for inside another", place);
    place_ = runs_ahead_ ? place : -1;
    calls();
    place_ = -1;
  }
  void arrive(int place) override {
    for (const auto& call : late_[place]) call();
    late_[place].clear();
  }

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override {
    if (asked(ids.size())) inner_->embed(ids, at(table), streams, at(x));
  }
  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override {
    HyperMixWeights copy = w;
    copy.fn = at(w.fn), copy.base = at(w.base), copy.scale = at(w.scale);
    if (asked(rows)) inner_->hyper_mix(copy, at(x), rows, at(pre), at(post), at(comb));
  }
  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    if (asked(rows)) inner_->hyper_collapse(at(x), at(pre), rows, n, hidden, at(y));
  }
  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override {
    if (asked(rows)) inner_->hyper_expand(at(o), at(post), at(comb), rows, n, hidden, at(x));
  }
  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    if (asked(rows)) inner_->stream_mean(at(x), rows, n, hidden, at(y));
  }
  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override {
    if (asked(rows)) inner_->rms_norm(at(x), at(w), eps, rows, dim, at(y));
  }
  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override {
    std::vector<LinearOutput> copies;
    for (const LinearOutput& o : outputs) copies.push_back({at(o.weight), at(o.y)});
    if (asked(rows)) inner_->linear_fp8(at(x), rows, copies);
  }
  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override {
    if (asked(rows)) inner_->linear_bf16(at(x), rows, at(w), at(y));
  }
  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override {
    if (asked(rows)) inner_->linear_bf16_fp32(at(x), rows, at(w), at(y));
  }
  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override {
    if (asked(rows)) inner_->output_lora(at(o), rows, at(wo_a), groups, at(y));
  }
  void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) override {
    if (asked(rows)) inner_->rope(at(x), {at(rotation.cos), at(rotation.sin), rotation.pairs}, rows, heads, dim, inverse);
  }
  void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) override {
    if (asked(rows)) inner_->pack_window(at(x), rows, dim, at(packed));
  }
  void pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    if (asked(to.size())) inner_->pack_compressed(at(x), dim, wrote(to));
  }
  void pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    if (asked(to.size())) inner_->pack_index_keys(at(x), dim, wrote(to));
  }
  void round_index_queries(bf16* x, int64_t rows, int64_t dim) override {
    if (asked(rows)) inner_->round_index_queries(at(x), rows, dim);
  }
  void scale(bf16* x, int64_t count, float factor) override {
    if (asked(count)) inner_->scale(at(x), count, factor);
  }
  void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) override {
    if (asked(kv.size())) inner_->compress_pool(list(kv), list(gate), dim, at(latent));
  }
  void index_select(const IndexSelectArgs& args) override {
    std::deque<std::vector<uint8_t*>> tables;
    std::vector<IndexQuery> queries(args.queries.begin(), args.queries.end());
    for (IndexQuery& q : queries) q.keys = pages(q.keys, q.visible, tables), q.chosen = at(q.chosen);
    IndexSelectArgs copy = args;
    copy.q = at(args.q), copy.weights = at(args.weights), copy.queries = queries, copy.candidates = at(args.candidates);
    if (asked(queries.size())) inner_->index_select(copy);
    for (IndexQuery& q : args.queries) q.chosen_count = std::min(args.topk, q.visible);
  }
  void sparse_attention(const SparseAttentionArgs& args) override {
    std::deque<std::vector<uint8_t*>> tables;
    std::vector<AttentionQuery> queries(args.queries.begin(), args.queries.end());
    for (AttentionQuery& q : queries) {
      q.window.ring = at(q.window.ring), q.window.fresh = at(q.window.fresh);
      q.compressed = pages(q.compressed, q.chosen_count > 0 ? q.compressed_rows : 0, tables);
      q.chosen = at(q.chosen);
    }
    SparseAttentionArgs copy = args;
    copy.q = at(args.q), copy.sinks = at(args.sinks), copy.out = at(args.out), copy.queries = queries;
    if (asked(queries.size())) inner_->sparse_attention(copy);
  }
  void route(const RouteArgs& args, int64_t rows) override {
    RouteArgs copy = args;
    copy.v = at(args.v), copy.gate = at(args.gate), copy.bias = at(args.bias), copy.bias_vl = at(args.bias_vl);
    copy.image = at(args.image), copy.experts = at(args.experts), copy.weights = at(args.weights);
    copy.counts = at(args.counts), copy.counted = at(args.counted);
    if (asked(rows)) inner_->route(copy, rows);
  }
  void experts(const ExpertsArgs& args, int64_t rows) override {
    std::vector<ExpertWeights> routed;
    for (const ExpertWeights& e : args.routed) routed.push_back({at(e.w1), at(e.w2), at(e.w3)});
    ExpertsArgs copy = args;
    copy.v = at(args.v), copy.experts = at(args.experts), copy.weights = at(args.weights), copy.routed = routed;
    copy.shared_w1 = at(args.shared_w1), copy.shared_w2 = at(args.shared_w2), copy.shared_w3 = at(args.shared_w3);
    copy.y = at(args.y);
    if (asked(rows)) inner_->experts(copy, rows);
  }
  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override {
    if (!asked(rows)) return;
    const auto gather = [=, this] {
      inner_->engram_gather({at(table.values), at(table.scales), table.rows, table.dim}, at(ids), rows, columns, at(e));
    };
    if (place_ < 0) return gather();
    late_[place_].emplace_back(gather);
  }
  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override {
    if (asked(rows)) inner_->engram_gate(at(kv), at(q_weight), at(k_weight), at(image), eps, rows, n, hidden, at(x));
  }
  void markov_logits(const MarkovArgs& args) override {
    MarkovArgs copy = args;
    copy.embed = at(args.embed), copy.head = at(args.head), copy.base = at(args.base), copy.logits = at(args.logits);
    copy.previous = at(args.previous);
    if (asked(args.rows)) inner_->markov_logits(copy);
  }
  void draft_confidence(const ConfidenceArgs& args) override {
    ConfidenceArgs copy = args;
    copy.x = at(args.x), copy.embed = at(args.embed), copy.proj = at(args.proj), copy.confidences = at(args.confidences);
    copy.previous = at(args.previous);
    if (asked(args.rows)) inner_->draft_confidence(copy);
  }

  bool draws() const override { return true; }
  void draw(const float* logits, int64_t vocab, std::span<const DrawRow> rows, int32_t* tokens) override {
    if (!asked(rows.size())) return;
    for (size_t i = 0; i < rows.size(); ++i) {
      const DrawRow& r = rows[i];
      SamplingParams params;
      params.temperature = r.greedy ? 0.0f : r.temperature;
      params.min_p = r.min_p, params.top_k = r.top_k, params.top_p = r.top_p;
      params.seed = r.seed, params.choice_index = r.choice_index;
      const float* row = at(logits) + r.row * vocab;
      std::vector<float> copy(row, row + vocab);
      // Now and then the host has to, where it may.
      at(tokens)[i] = !r.certain && ++draws_ % 7 == 0 ? kUndrawnToken : Sampler(params, vocab).sample(copy, r.position);
    }
  }

 private:
  template <typename Count>
  bool asked(Count count) {
    return memory_.asked(static_cast<int64_t>(count));
  }
  template <typename T>
  T* at(T* address) const {
    return memory_.at(address);
  }
  Fp8Weight at(const Fp8Weight& w) const { return {at(w.values), at(w.scales), w.out, w.in}; }
  Fp4Weight at(const Fp4Weight& w) const { return {at(w.codes), at(w.scales), w.out, w.in}; }
  Bf16Weight at(const Bf16Weight& w) const { return {at(w.values), w.out, w.in}; }
  template <typename T>
  std::vector<T*> list(std::span<T* const> addresses) const {
    std::vector<T*> out;
    for (T* address : addresses) out.push_back(at(address));
    return out;
  }
  /// As `list`, of rows of the cache that are written: where they begin says whose they are.
  std::vector<uint8_t*> wrote(std::span<uint8_t* const> addresses) {
    std::vector<uint8_t*> out;
    for (uint8_t* address : addresses) out.push_back(memory_.wrote(address, 1));
    return out;
  }
  PagedRows pages(const PagedRows& cache, int64_t rows, std::deque<std::vector<uint8_t*>>& tables) const {
    PagedRows copy = cache;
    if (rows == 0) return copy;
    const auto count = static_cast<size_t>((rows + cache.rows_per_page - 1) / cache.rows_per_page);
    tables.push_back(list(std::span<uint8_t* const>(cache.pages, count)));
    copy.pages = tables.back().data();
    return copy;
  }

  const std::unique_ptr<Backend> inner_;
  const bool runs_ahead_;
  int place_ = -1;  ///< of the `ahead` that is being given its calls
  std::vector<std::function<void()>> late_[kAheadPlaces];
  GuardedMemory memory_;
  int64_t draws_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_guarded_backend(std::unique_ptr<Backend> inner, bool ahead) {
  return std::make_unique<GuardedBackend>(std::move(inner), ahead);
}

int64_t guarded_allocations() { return Arena::get().allocations; }
int64_t guarded_downloads() { return Arena::get().downloads; }

}  // namespace deepinfer::testing
