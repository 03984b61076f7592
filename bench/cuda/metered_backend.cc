#include "cuda/metered_backend.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status.h"
#include "common/ceilings.h"
#include "ops/cuda/cuda_check.h"

namespace deepinfer::bench {
namespace {

double size(const Fp8Weight& w) {
  const int64_t bytes = w.out * w.in + (w.out + kScaleGroup - 1) / kScaleGroup * (w.in / kScaleGroup);
  return static_cast<double>(bytes);
}
double size(const Fp4Weight& w) {
  const int64_t bytes = w.out * w.in / 2 + w.out * (w.in / kScaleGroup);
  return static_cast<double>(bytes);
}
double size(const Bf16Weight& w) { return 2.0 * static_cast<double>(w.out * w.in); }

Work product(double weight_bytes, int64_t rows, int64_t out, int64_t in, int64_t out_bytes = 2) {
  return {.bytes = weight_bytes,
          .streams = static_cast<double>(rows * (in * 2 + out * out_bytes)),
          .flops = 2.0 * static_cast<double>(rows) * static_cast<double>(out * in)};
}
Work streams(double bytes) { return {.streams = bytes}; }

// Cache rows that the queries of one sequence share are read once: at most all that there are.
struct Shared {
  double asked = 0;
  double there = 0;
};
double needed(const std::map<const void*, Shared>& shared) {
  double bytes = 0;
  for (const auto& [key, s] : shared) bytes += std::min(s.asked, s.there);
  return bytes;
}

Work attention_work(const SparseAttentionArgs& args) {
  std::map<const void*, Shared> windows, caches;
  double keys = 0;
  for (const AttentionQuery& q : args.queries) {
    const auto window = static_cast<double>(q.window_last - q.window_first + 1);
    const auto row = static_cast<double>(q.window.row_bytes);
    Shared& w = windows[q.window.ring];
    w.asked += window * row;
    w.there = std::max(w.there, static_cast<double>(q.window.capacity + q.window_last + 1 - q.window.start) * row);
    if (q.chosen_count > 0) {
      Shared& c = caches[q.compressed.pages];
      c.asked += static_cast<double>(q.chosen_count * q.compressed.row_bytes);
      c.there = std::max(c.there, static_cast<double>(q.compressed_rows * q.compressed.row_bytes));
    }
    keys += window + static_cast<double>(q.chosen_count);
  }
  const auto width = static_cast<double>(args.heads * args.dim);
  return {.bytes = needed(windows) + needed(caches),
          .streams = static_cast<double>(args.queries.size()) * width * 4,
          .flops = 4 * width * keys};
}

Work index_work(const IndexSelectArgs& args) {
  std::map<const void*, Shared> keys;
  double scored = 0;
  for (const IndexQuery& q : args.queries) {
    if (q.visible <= args.topk) continue;
    auto rows = static_cast<double>(q.visible);
    if (args.mode == IndexSelectArgs::Candidates::kRestrict)
      rows = std::min(rows, static_cast<double>(args.candidate_blocks * args.candidate_block_size));
    Shared& s = keys[q.keys.pages];
    s.asked += rows * static_cast<double>(q.keys.row_bytes);
    s.there = std::max(s.there, static_cast<double>(q.visible * q.keys.row_bytes));
    scored += rows;
  }
  return {.bytes = needed(keys),
          .streams = static_cast<double>(args.queries.size()) * static_cast<double>(args.heads * args.dim) * 2,
          .flops = 2 * scored * static_cast<double>(args.heads * args.dim)};
}

}  // namespace

MeteredBackend::MeteredBackend(Backend* inner)
    : inner_(inner), owner_(dynamic_cast<cuda::StreamOwner*>(inner)), memory_(&inner->memory()) {}

MeteredBackend::~MeteredBackend() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void MeteredBackend::begin_count() {
  counting_ = true;
  calls_.clear();
}

const std::vector<MeteredCall>& MeteredBackend::end_count() {
  counting_ = false;
  return calls_;
}

void MeteredBackend::set_marks(Marks marks) {
  marks_kind_ = marks;
  marks_.clear();
}

void MeteredBackend::begin(const char* name, const Work& work) {
  if (counting_) calls_.push_back({layer_, name, work});
  if (marks_kind_ == Marks::kOperators) mark(name, layer_);
}

void MeteredBackend::begin_layer(int64_t layer) {
  layer_ = layer;
  if (marks_kind_ == Marks::kLayers) mark("", layer);
  inner_->begin_layer(layer);
}

void MeteredBackend::mark(const char* name, int64_t layer) {
  if (marks_kind_ == Marks::kNone) return;
  if (owner_ != nullptr) {
    while (events_.size() <= marks_.size()) {
      cudaEvent_t event = nullptr;
      DI_CUDA(cudaEventCreate(&event));
      events_.push_back(event);
    }
    DI_CUDA(cudaEventRecordWithFlags(events_[marks_.size()], owner_->stream(),
                                     memory_.recording ? cudaEventRecordExternal : cudaEventRecordDefault));
    owner_->stream().order_fully();
  }
  marks_.push_back({layer, name, now()});
}

std::vector<MeteredBackend::Piece> MeteredBackend::pieces() {
  memory_.synchronize();
  std::vector<Piece> out;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    float ms = static_cast<float>((marks_[i + 1].host - marks_[i].host) * 1e3);
    if (owner_ != nullptr) DI_CUDA(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]));
    out.push_back({marks_[i].layer, marks_[i].name, 1e3 * static_cast<double>(ms)});
  }
  return out;
}

void MeteredBackend::embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t n, bf16* x) {
  begin("embed", streams(static_cast<double>(static_cast<int64_t>(ids.size()) * table.in * 2 * (1 + n))));
  inner_->embed(ids, table, n, x);
}
void MeteredBackend::hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) {
  begin("hyper_mix", {.bytes = static_cast<double>((2 + w.n) * w.n * w.n * w.hidden * 4),
                      .streams = static_cast<double>(rows * w.n * w.hidden * 2)});
  inner_->hyper_mix(w, x, rows, pre, post, comb);
}
void MeteredBackend::hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) {
  begin("hyper_collapse", streams(static_cast<double>(rows * (n + 1) * hidden * 2)));
  inner_->hyper_collapse(x, pre, rows, n, hidden, y);
}
void MeteredBackend::hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                                  bf16* x) {
  begin("hyper_expand", streams(static_cast<double>(rows * (2 * n + 1) * hidden * 2)));
  inner_->hyper_expand(o, post, comb, rows, n, hidden, x);
}
void MeteredBackend::stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) {
  begin("stream_mean", streams(static_cast<double>(rows * (n + 1) * hidden * 2)));
  inner_->stream_mean(x, rows, n, hidden, y);
}
void MeteredBackend::rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) {
  begin("rms_norm", streams(static_cast<double>(rows * dim * 4)));
  inner_->rms_norm(x, w, eps, rows, dim, y);
}
// Marks are of one stream: operators that are to be told apart run one after the other.
void MeteredBackend::beside(FunctionRef<void()> calls) {
  if (counting_ || marks_kind_ == Marks::kOperators) return calls();
  inner_->beside(calls);
}
void MeteredBackend::join() { inner_->join(); }
void MeteredBackend::ahead(int place, FunctionRef<void()> calls) {
  if (counting_ || marks_kind_ == Marks::kOperators) return calls();
  asked_ahead_[place] = true;
  inner_->ahead(place, calls);
}
void MeteredBackend::arrive(int place) {
  if (std::exchange(asked_ahead_[place], false)) inner_->arrive(place);
}
void MeteredBackend::hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w,
                                         float eps, bf16* y) {
  begin("hyper_collapse_norm", streams(static_cast<double>(rows * (n + 1) * hidden * 2)));
  inner_->hyper_collapse_norm(x, pre, rows, n, hidden, w, eps, y);
}
void MeteredBackend::hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre,
                                                int64_t rows, int64_t n, int64_t hidden, const bf16* w, float eps, bf16* x,
                                                bf16* y) {
  begin("hyper_expand_collapse_norm", streams(static_cast<double>(rows * (2 * n + 2) * hidden * 2)));
  inner_->hyper_expand_collapse_norm(o, post, comb, pre, rows, n, hidden, w, eps, x, y);
}
void MeteredBackend::attention_latents(const LatentArgs& args, int64_t rows) {
  begin("attention_latents", streams(static_cast<double>(rows * (args.q_dim * 4 + args.kv_dim * 5))));
  inner_->attention_latents(args, rows);
}
void MeteredBackend::linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) {
  Work work;
  for (const LinearOutput& o : outputs) work += product(size(o.weight), rows, o.weight.out, o.weight.in);
  begin("linear_fp8", work);
  inner_->linear_fp8(x, rows, outputs);
}
void MeteredBackend::linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) {
  begin("linear_bf16", product(size(w), rows, w.out, w.in));
  inner_->linear_bf16(x, rows, w, y);
}
void MeteredBackend::linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) {
  begin("linear_bf16_fp32", product(size(w), rows, w.out, w.in, 4));
  inner_->linear_bf16_fp32(x, rows, w, y);
}
void MeteredBackend::output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) {
  Work work = product(size(wo_a), rows, wo_a.out, wo_a.in);
  work.streams += static_cast<double>(rows * (groups - 1) * wo_a.in * 2);
  begin("output_lora", work);
  inner_->output_lora(o, rows, wo_a, groups, y);
}
void MeteredBackend::rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) {
  begin("rope", streams(static_cast<double>(rows * heads * rotation.pairs * 8)));
  inner_->rope(x, rotation, rows, heads, dim, inverse);
}
void MeteredBackend::pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) {
  begin("pack_window", streams(static_cast<double>(rows * dim * 3)));
  inner_->pack_window(x, rows, dim, packed);
}
void MeteredBackend::pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) {
  const auto rows = static_cast<int64_t>(to.size());
  const int64_t bytes = rows * (dim / 2 + dim / kCacheScaleGroup);
  begin("pack_compressed", {.bytes = static_cast<double>(bytes), .streams = static_cast<double>(rows * dim * 2)});
  inner_->pack_compressed(x, dim, to);
}
void MeteredBackend::pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) {
  const auto rows = static_cast<int64_t>(to.size());
  const int64_t bytes = rows * (dim / 2 + dim / kScaleGroup);
  begin("pack_index_keys", {.bytes = static_cast<double>(bytes), .streams = static_cast<double>(rows * dim * 2)});
  inner_->pack_index_keys(x, dim, to);
}
void MeteredBackend::round_index_queries(bf16* x, int64_t rows, int64_t dim) {
  begin("round_index_queries", streams(static_cast<double>(rows * dim * 4)));
  inner_->round_index_queries(x, rows, dim);
}
void MeteredBackend::scale(bf16* x, int64_t count, float factor) {
  begin("scale", streams(static_cast<double>(count * 4)));
  inner_->scale(x, count, factor);
}
void MeteredBackend::compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim,
                                   bf16* latent) {
  begin("compress_pool", streams(static_cast<double>(static_cast<int64_t>(kv.size()) * dim * 9)));
  inner_->compress_pool(kv, gate, dim, latent);
}
void MeteredBackend::index_select(const IndexSelectArgs& args) {
  begin("index_select", index_work(args));
  inner_->index_select(args);
}
void MeteredBackend::sparse_attention(const SparseAttentionArgs& args) {
  begin("sparse_attention", attention_work(args));
  inner_->sparse_attention(args);
}
void MeteredBackend::rotated_attention(const SparseAttentionArgs& args, bf16* q, const RopeRows& rotation) {
  begin("rotated_attention", attention_work(args));
  inner_->rotated_attention(args, q, rotation);
}
void MeteredBackend::route(const RouteArgs& args, int64_t rows) {
  begin("route", product(size(args.gate), rows, args.gate.out, args.gate.in, 4));
  inner_->route(args, rows);
}
void MeteredBackend::experts(const ExpertsArgs& args, int64_t rows) {
  Work work;
  if (counting_) {
    std::vector<int32_t> ids(static_cast<size_t>(rows * args.topk));
    memory_.download(ids.data(), args.experts, static_cast<int64_t>(ids.size() * sizeof(int32_t)));
    std::sort(ids.begin(), ids.end());
    work.active = std::unique(ids.begin(), ids.end()) - ids.begin();
    const ExpertWeights& e = args.routed.front();
    const int64_t inner = args.shared_w1.out, hidden = args.shared_w1.in;
    work.bytes = static_cast<double>(work.active) * (size(e.w1) + size(e.w2) + size(e.w3)) + size(args.shared_w1) +
                 size(args.shared_w2) + size(args.shared_w3);
    work.streams = static_cast<double>(rows * hidden * 4);
    work.flops = 6.0 * static_cast<double>(rows * (args.topk + 1)) * static_cast<double>(inner * hidden);
  }
  begin("experts", work);
  inner_->experts(args, rows);
}
// Both are counted and told apart one by one.
void MeteredBackend::routed_experts(const RouteArgs& routing, const ExpertsArgs& args, int64_t rows) {
  if (counting_ || marks_kind_ == Marks::kOperators) return Backend::routed_experts(routing, args, rows);
  inner_->routed_experts(routing, args, rows);
}
void MeteredBackend::engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) {
  const int64_t bytes = rows * columns * (table.dim + table.dim / kScaleGroup);
  begin("engram_gather", {.bytes = static_cast<double>(bytes), .streams = static_cast<double>(rows * columns * table.dim * 2)});
  inner_->engram_gather(table, ids, rows, columns, e);
}
void MeteredBackend::engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps,
                                 int64_t rows, int64_t n, int64_t hidden, bf16* x) {
  begin("engram_gate", streams(static_cast<double>(rows * (3 * n + 1) * hidden * 2)));
  inner_->engram_gate(kv, q_weight, k_weight, image, eps, rows, n, hidden, x);
}
void MeteredBackend::markov_logits(const MarkovArgs& args) {
  begin("markov_logits", product(size(args.head), args.rows, args.head.out, args.head.in, 8));
  inner_->markov_logits(args);
}
void MeteredBackend::draft_confidence(const ConfidenceArgs& args) {
  begin("draft_confidence", product(size(args.proj), args.rows, args.proj.out, args.proj.in, 4));
  inner_->draft_confidence(args);
}
void MeteredBackend::draw(const float* logits, int64_t vocab, std::span<const DrawRow> rows, int32_t* tokens) {
  begin("draw", streams(static_cast<double>(static_cast<int64_t>(rows.size()) * vocab * 4)));
  inner_->draw(logits, vocab, rows, tokens);
}

}  // namespace deepinfer::bench
