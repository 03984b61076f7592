#include "model/device_weights.h"

#include <algorithm>
#include <vector>

namespace deepinfer {
namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// One tensor: where its pointer is kept, and its size.
struct Tensor {
  const void* host = nullptr;
  int64_t bytes = 0;
  bool table = false;
  std::function<void(const void*)> point;
};

// Lists every tensor that is there.
class Lister {
 public:
  explicit Lister(ModelWeights& w) {
    add(w.embed), add(w.head);
    add(w.norm, w.embed.in);
    for (BlockWeights& b : w.blocks) add(b);
    DraftWeights& d = w.draft;
    add(d.main_proj);
    add(d.main_norm, w.embed.in), add(d.norm, w.embed.in);
    for (BlockWeights& b : d.stages) add(b);
    add(d.markov_embed), add(d.markov_head), add(d.confidence);
  }
  std::vector<Tensor> tensors;

 private:
  template <typename T>
  void add(const T*& pointer, int64_t count, bool table = false) {
    if (pointer == nullptr || count == 0) return;
    tensors.push_back({pointer, count * static_cast<int64_t>(sizeof(T)), table,
                       [&pointer](const void* to) { pointer = static_cast<const T*>(to); }});
  }
  void add(Bf16Weight& w) { add(w.values, w.out * w.in); }
  void add(Fp8Weight& w) {
    add(w.values, w.out * w.in);
    add(w.scales, (w.out + 31) / 32 * (w.in / 32));
  }
  void add(Fp4Weight& w) {
    add(w.codes, w.out * w.in / 2);
    add(w.scales, w.out * (w.in / 32));
  }
  void add(HyperMixWeights& w) {
    const int64_t outputs = (2 + w.n) * w.n;
    add(w.fn, outputs * w.n * w.hidden);
    add(w.base, outputs);
    add(w.scale, 3);
  }
  void add(EngramTable& t) {
    add(t.values, t.rows * t.dim, true);
    add(t.scales, t.rows * (t.dim / 32), true);
  }
  void add(BlockWeights& b) {
    const int64_t hidden = b.wq_a.in;
    add(b.attn_norm, hidden), add(b.ffn_norm, hidden);
    for (Fp8Weight* w :
         {&b.wq_a, &b.wq_b, &b.wkv, &b.wo_a, &b.wo_b, &b.index_wq_b, &b.shared_w1, &b.shared_w2, &b.shared_w3, &b.engram_wkv})
      add(*w);
    for (Bf16Weight* w : {&b.compressor_wkv, &b.compressor_wgate, &b.index_wk, &b.index_weights_proj, &b.gate}) add(*w);
    add(b.q_norm, b.wq_a.out), add(b.kv_norm, b.wkv.out);
    add(b.attn_sink, b.wq_b.out / b.wkv.out);
    add(b.compressor_norm, b.compressor_wkv.out), add(b.index_k_norm, b.index_wk.out);
    add(b.hc_attn), add(b.hc_ffn);
    add(b.gate_bias, b.gate.out), add(b.gate_bias_vl, b.gate.out);
    for (ExpertWeights& e : b.experts) add(e.w1), add(e.w2), add(e.w3);
    add(b.engram_table);
    add(b.engram_q_weight, b.hc_attn.n * hidden), add(b.engram_k_weight, b.hc_attn.n * hidden);
  }
};

}  // namespace

Status upload_weights(ModelWeights& weights, EngramMemory engram, double utilization,
                      const std::function<void(int64_t, int64_t)>& progress, DeviceWeights& out) {
  DeviceMemory& memory = out.weights.memory();
  if (memory.is_host()) return Status::Ok();
  const std::vector<Tensor> tensors = Lister(weights).tensors;
  int64_t weight_bytes = 0;
  int64_t table_bytes = 0;
  for (const Tensor& t : tensors) (t.table ? table_bytes : weight_bytes) += aligned(t.bytes);
  int64_t free = memory.free_bytes();
  if (memory.total_bytes() != INT64_MAX)
    free -= static_cast<int64_t>(static_cast<double>(memory.total_bytes()) * (1 - utilization));
  const bool with_tables =
      engram == EngramMemory::kDevice || (engram == EngramMemory::kAuto && weight_bytes + table_bytes <= free / 2);
  const int64_t need = weight_bytes + (with_tables ? table_bytes : 0);
  if (need > free) {
    return Status::ResourceExhausted(
        "GPU memory: the weights take {} bytes, gpu_memory_utilization {} leaves {}: {} are missing{}", need, utilization, free,
        need - free, with_tables && table_bytes > 0 ? " (of them Engram tables, which engram_memory host would leave out)" : "");
  }
  out.weights.reserve_discard(need);
  if (!with_tables && table_bytes > 0) out.tables = static_cast<uint8_t*>(memory.allocate_host(table_bytes));
  int64_t on_device = 0;
  int64_t on_host = 0;
  for (const Tensor& t : tensors) {
    if (t.table && !with_tables) {
      uint8_t* to = out.tables + on_host;
      std::memcpy(to, t.host, static_cast<size_t>(t.bytes));
      t.point(to);
      on_host += aligned(t.bytes);
    } else {
      uint8_t* to = out.weights.data() + on_device;
      memory.upload(to, t.host, t.bytes);
      t.point(to);
      on_device += aligned(t.bytes);
    }
    if (progress) progress(on_device + on_host, weight_bytes + table_bytes);
  }
  memory.synchronize();
  return Status::Ok();
}

}  // namespace deepinfer
