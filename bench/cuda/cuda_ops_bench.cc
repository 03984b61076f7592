// Operators of the CUDA backend at the dimensions of the release, against the larger of two floors: bytes that must move over the
// copy bandwidth measured here, and operations over a matrix rate given by the caller (peer_torch.py measures it on the same
// device). Calls are recorded as a graph, one after the other, and replays are timed, so that the host's launches don't count.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "base/json_line.h"
#include "base/status.h"
#include "common/ceilings.h"
#include "cuda/device_ceilings.h"
#include "cuda/device_inputs.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/cuda_graph.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kHidden = 5120;
constexpr int64_t kInner = 2304;
constexpr int64_t kExperts = 384;
constexpr int64_t kTopk = 6;
constexpr int64_t kHeads = 64;
constexpr int64_t kHeadDim = 512;
constexpr int64_t kStreams = 4;

class OpsBench {
 public:
  OpsBench(Backend* backend, std::string features, std::string device, double tflops, double seconds, std::vector<int64_t> rows)
      : backend_(backend),
        memory_(&backend->memory()),
        features_(std::move(features)),
        ceilings_(backend->memory(), std::move(device), tflops),
        seconds_(seconds),
        rows_(std::move(rows)) {}

  void dense();
  void experts();
  void attention();
  void index();
  void rows();

 private:
  bool wanted(int64_t rows) const { return rows_.empty() || std::find(rows_.begin(), rows_.end(), rows) != rows_.end(); }
  std::vector<int64_t> wanted_of(std::vector<int64_t> rows) const {
    std::erase_if(rows, [&](int64_t n) { return !wanted(n); });
    return rows;
  }

  // Median over rounds of the time of one call, in us; 0 if nothing is timed. fn(i) is given the number of the call.
  template <typename Fn>
  double time(const Fn& fn) {
    constexpr int64_t kCalls = 16;
    for (int64_t i = 0; i < (seconds_ > 0 ? kCalls : 2); ++i) fn(i);
    memory_->synchronize();
    if (seconds_ == 0) return 0;
    const auto graph = record_cuda_graph(*backend_, [&] {
      for (int64_t i = 0; i < kCalls; ++i) fn(i);
    });
    const auto replay = [&](int64_t times) {
      const double start = now();
      for (int64_t i = 0; i < times; ++i) graph->replay();
      memory_->synchronize();
      return (now() - start) / static_cast<double>(times * kCalls) * 1e6;
    };
    const int64_t times = std::clamp<int64_t>(static_cast<int64_t>(seconds_ / 5 * 1e6 / (replay(2) * kCalls)), 1, 1000);
    std::vector<double> rounds;
    for (int round = 0; round < 5; ++round) rounds.push_back(replay(times));
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
  }

  void print(const std::string& name, double us, double bytes, double flops, BenchConditions conditions) {
    if (us == 0) return;
    conditions.push_back({"features", features_});
    ceilings_.print(name, us, bytes, flops, std::move(conditions));
  }

  Backend* backend_;
  DeviceMemory* memory_;
  std::string features_;
  DeviceCeilings ceilings_;
  double seconds_;
  std::vector<int64_t> rows_;  // all if empty
};

std::string text(int64_t v) { return std::to_string(v); }

void OpsBench::dense() {
  const std::vector<int64_t> row_counts = wanted_of({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 2048, 4096, 8192});
  if (row_counts.empty()) return;
  const int64_t most = row_counts.back();
  struct Shape {
    const char* name;
    int64_t out, in;
  };
  for (const Shape& s : {Shape{"wq_a", 1280, 5120},
                         {"wq_b", 32768, 1280},
                         {"index_wq_b", 4096, 1280},
                         {"wo_b", 5120, 8192},
                         {"engram_wkv", 25600, 6144}}) {
    DeviceInputs in(memory_);
    std::vector<Fp8Weight> weights;
    for (int64_t made = 0; made < int64_t{1} << 30; made += s.out * s.in) weights.push_back(in.fp8(s.out, s.in));
    bf16* x = in.normal(most * s.in);
    auto* y = in.room<bf16>(most * s.out);
    for (int64_t rows : row_counts) {
      const double us = time([&](int64_t i) {
        const LinearOutput o{weights[static_cast<size_t>(i) % weights.size()], y};
        backend_->linear_fp8(x, rows, {&o, 1});
      });
      print("linear_fp8", us,
            static_cast<double>(s.out * s.in) * (1 + 1.0 / 1024) + static_cast<double>(rows * (s.in + s.out) * 2),
            2.0 * static_cast<double>(rows * s.out * s.in),
            {{"matrix", s.name}, {"shape", text(s.out) + "x" + text(s.in)}, {"rows", text(rows)}});
    }
  }
  {
    DeviceInputs in(memory_);
    std::vector<Fp8Weight> weights;
    for (int i = 0; i < 32; ++i) weights.push_back(in.fp8(8192, 4096));
    bf16* x = in.normal(most * 8 * 4096);
    auto* y = in.room<bf16>(most * 8192);
    for (int64_t rows : row_counts) {
      const double us =
          time([&](int64_t i) { backend_->output_lora(x, rows, weights[static_cast<size_t>(i) % weights.size()], 8, y); });
      print("output_lora", us, 8192.0 * 4096 * (1 + 1.0 / 1024) + static_cast<double>(rows * (8 * 4096 + 8192) * 2),
            2.0 * static_cast<double>(rows) * 8192 * 4096, {{"matrix", "wo_a"}, {"rows", text(rows)}});
    }
  }
  {
    DeviceInputs in(memory_);
    const Bf16Weight head{in.normal(129280 * kHidden), 129280, kHidden};
    bf16* x = in.normal(256 * kHidden);
    auto* y = in.room<float>(int64_t{256} * 129280);
    for (int64_t rows : wanted_of({1, 8, 16, 32, 64, 128, 256})) {
      const double us = time([&](int64_t) { backend_->linear_bf16_fp32(x, rows, head, y); });
      print("linear_bf16_fp32", us, 129280.0 * kHidden * 2 + static_cast<double>(rows) * 129280 * 4,
            2.0 * static_cast<double>(rows) * 129280 * kHidden, {{"matrix", "head"}, {"rows", text(rows)}});
    }
  }
}

void OpsBench::experts() {
  for (int64_t inner : {kInner, int64_t{576}, int64_t{288}}) {
    DeviceInputs in(memory_);
    std::vector<ExpertWeights> routed;
    const auto sets = inner == kInner ? 1 : kInner / inner;  // as much weight as the whole width
    for (int64_t e = 0; e < kExperts * sets; ++e) {
      ExpertWeights w;
      w.w1 = in.fp4(inner, kHidden);
      w.w2 = in.fp4(kHidden, inner);
      w.w3 = in.fp4(inner, kHidden);
      routed.push_back(w);
    }
    const Fp8Weight shared1 = in.fp8(inner, kHidden), shared2 = in.fp8(kHidden, inner), shared3 = in.fp8(inner, kHidden);
    constexpr int64_t kMostRows = 8192;
    bf16* v = in.normal(kMostRows * kHidden);
    auto* y = in.room<bf16>(kMostRows * kHidden);
    bf16* route_w = in.normal(kExperts * kHidden, 0.02f);
    float* bias = in.floats(kExperts, 0.01f);
    for (int64_t rows : wanted_of({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192})) {
      if (inner != kInner && rows != 1 && rows != 32 && rows != 128 && rows != 1024) continue;
      std::vector<int32_t> ids;
      std::vector<float> weights(static_cast<size_t>(rows * kTopk), 0.25f);
      std::vector<bool> used(static_cast<size_t>(kExperts));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < kTopk; ++k) {
          int32_t e = 0;
          do {
            e = static_cast<int32_t>(in.rng()() % kExperts);
          } while (std::find(ids.end() - k, ids.end(), e) != ids.end());
          ids.push_back(e);
          used[static_cast<size_t>(e)] = true;
        }
      }
      const auto active = std::count(used.begin(), used.end(), true);
      const int32_t* device_ids = in.upload(ids);
      const float* device_weights = in.upload(weights);
      // Few rows: other experts each call, so that no weight waits in the cache.
      std::vector<std::vector<ExpertWeights>> turns;
      for (int64_t i = 0; i < sets; ++i) turns.emplace_back(routed.begin() + i * kExperts, routed.begin() + (i + 1) * kExperts);
      if (sets == 1 && rows < 64) {
        for (int i = 1; i < 16; ++i) {
          turns.push_back(turns[0]);
          std::rotate(turns.back().begin(), turns.back().begin() + i * 24, turns.back().end());
        }
      }
      const double us = time([&](int64_t i) {
        backend_->experts({.v = v,
                           .experts = device_ids,
                           .weights = device_weights,
                           .routed = turns[static_cast<size_t>(i) % turns.size()],
                           .shared_w1 = shared1,
                           .shared_w2 = shared2,
                           .shared_w3 = shared3,
                           .topk = kTopk,
                           .swiglu_limit = 10,
                           .y = y},
                          rows);
      });
      const auto matrix = static_cast<double>(3 * kHidden * inner);
      print("experts", us,
            static_cast<double>(active) * matrix * 17 / 32 + matrix * (1 + 1.0 / 1024) + static_cast<double>(rows * kHidden * 4),
            2.0 * matrix * static_cast<double>(rows * (kTopk + 1)),
            {{"inner", text(inner)}, {"experts", text(kExperts)}, {"active", text(active)}, {"rows", text(rows)}});
      if (inner != kInner) continue;
      auto* chosen = in.room<int32_t>(rows * kTopk);
      auto* chosen_weights = in.room<float>(rows * kTopk);
      const double route_us = time([&](int64_t) {
        backend_->route({.v = v,
                         .gate = {route_w, kExperts, kHidden},
                         .bias = bias,
                         .bias_vl = bias,
                         .topk = kTopk,
                         .scale = 1.5f,
                         .experts = chosen,
                         .weights = chosen_weights},
                        rows);
      });
      print("route", route_us, static_cast<double>((kExperts + rows) * kHidden * 2),
            2.0 * static_cast<double>(rows * kExperts * kHidden), {{"rows", text(rows)}});
    }
  }
}

void OpsBench::attention() {
  constexpr int64_t kWindow = 128, kChosen = 512, kCached = 32768, kRowsPerPage = 64, kCapacity = 144;
  DeviceInputs in(memory_);
  const int64_t row_bytes = kHeadDim / 2 + kHeadDim / 16;
  const int64_t most = 8192;
  const int64_t sequences = 64;
  std::vector<std::vector<uint8_t*>> tables;
  std::vector<const uint8_t*> rings;
  for (int64_t s = 0; s < sequences; ++s) {
    uint8_t* pages = in.bytes(kCached * row_bytes, 0x3f);
    auto& table = tables.emplace_back();
    for (int64_t p = 0; p < kCached / kRowsPerPage; ++p) table.push_back(pages + p * kRowsPerPage * row_bytes);
    rings.push_back(in.bytes(kCapacity * (kHeadDim + kHeadDim / 32), 0x7b));
  }
  bf16* q = in.normal(most * kHeads * kHeadDim);
  auto* out = in.room<bf16>(most * kHeads * kHeadDim);
  float* sinks = in.floats(kHeads, 1);
  std::vector<int32_t> chosen;
  for (int64_t r = 0; r < most; ++r) {
    for (int64_t j = 0; j < kChosen; ++j)
      chosen.push_back(static_cast<int32_t>(j * (kCached / kChosen) + static_cast<int64_t>(in.rng()() % (kCached / kChosen))));
  }
  const int32_t* device_chosen = in.upload(chosen);
  for (int64_t rows : wanted_of({1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 8192})) {
    std::vector<AttentionQuery> queries;
    for (int64_t r = 0; r < rows; ++r) {
      const auto s = static_cast<size_t>(r % sequences);
      queries.push_back(
          {.window = {.ring = rings[s], .capacity = kCapacity, .start = kCached, .row_bytes = kHeadDim + kHeadDim / 32},
           .window_first = kCached - kWindow,
           .window_last = kCached - 1,
           .compressed = {tables[s].data(), kRowsPerPage, 0, row_bytes},
           .compressed_rows = kCached,
           .chosen = device_chosen + r * kChosen,
           .chosen_count = kChosen});
    }
    const double us = time([&](int64_t) {
      backend_->sparse_attention({.q = q, .sinks = sinks, .out = out, .queries = queries, .heads = kHeads, .dim = kHeadDim});
    });
    const auto n = static_cast<double>(rows);
    print("sparse_attention", us, n * (kWindow * 528 + kChosen * 288 + kHeads * kHeadDim * 4.0),
          n * 4 * kHeads * kHeadDim * (kWindow + kChosen), {{"heads", "64"}, {"keys", "128 + 512"}, {"rows", text(rows)}});
  }
}

void OpsBench::index() {
  constexpr int64_t kIndexHeads = 32, kDim = 128, kTop = 512, kRowsPerPage = 128, kMost = 1 << 20, kRowBytes = 68,
                    kPrefill = 8192, kBehind = 36864;
  DeviceInputs in(memory_);
  uint8_t* keys = in.bytes(kMost * kRowBytes);
  std::vector<uint8_t*> table;
  for (int64_t p = 0; p < kMost / kRowsPerPage; ++p) {
    uint8_t* page = keys + p * kRowsPerPage * kRowBytes;
    table.push_back(page);
  }
  // Sequences of a batch have tables of their own, over the same memory after each kSequences: 71 MB, more than the cache.
  constexpr int64_t kOwn = 32768, kSequences = kMost / kOwn, kBatch = 256;
  std::vector<std::vector<uint8_t*>> tables;
  for (int64_t s = 0; s < kBatch; ++s) {
    const auto first = table.begin() + s % kSequences * (kOwn / kRowsPerPage);
    tables.emplace_back(first, first + kOwn / kRowsPerPage);
  }
  // Scales in a binade or two: bytes 64..67 of every row.
  std::vector<DeviceMemory::RowCopy> copies;
  const uint8_t* four = in.scales(4, 0);
  for (int64_t j = 0; j < kMost; ++j) copies.push_back({keys + j * kRowBytes + 64, four});
  for (int64_t at = 0; at < kMost; at += 65536) memory_->copy_rows(std::span(copies).subspan(static_cast<size_t>(at), 65536), 4);
  bf16* q = in.normal(kPrefill * kIndexHeads * kDim);
  backend_->round_index_queries(q, kPrefill * kIndexHeads, kDim);
  bf16* weights = in.normal(kPrefill * kIndexHeads, 0.02f);
  auto* chosen = in.room<int32_t>(kPrefill * kTop);
  const int64_t words = kMost / 8 / 64;
  auto* bits = in.room<uint64_t>(kPrefill * words);
  using Mode = IndexSelectArgs::Candidates;
  const auto run = [&](int64_t rows, int64_t visible, Mode mode, bool own = false) {
    if (!wanted(rows)) return;
    std::vector<IndexQuery> queries;
    for (int64_t r = 0; r < rows; ++r) {
      const auto& pages = own ? tables[static_cast<size_t>(r)] : table;
      queries.push_back({{pages.data(), kRowsPerPage, 0, kRowBytes}, visible, chosen + r * kTop, 0});
    }
    const double us = time([&](int64_t) {
      backend_->index_select({.q = q,
                              .weights = weights,
                              .queries = queries,
                              .heads = kIndexHeads,
                              .dim = kDim,
                              .topk = kTop,
                              .mode = mode,
                              .candidate_blocks = 2048,
                              .candidate_block_size = 8,
                              .candidates = bits,
                              .candidate_words = words});
    });
    const auto n = static_cast<double>(rows * visible);
    const double scored =
        mode == Mode::kRestrict ? static_cast<double>(rows) * std::min<double>(static_cast<double>(visible), 16384) : n;
    print("index_select", us, scored * kRowBytes, scored * 2 * kIndexHeads * kDim,
          {{"mode", mode == Mode::kNone    ? "all"
                    : mode == Mode::kBuild ? "build candidates"
                                           : "candidates"},
           {"rows", text(rows)},
           {"keys", own ? "of each row" : "of one sequence"},
           {"visible", text(visible)},
           {"top", "512"}});
  };
  for (int64_t visible : {4096, 32768, 131072, 1 << 20}) {
    for (Mode mode : {Mode::kNone, Mode::kBuild, Mode::kRestrict}) run(1, visible, mode);
  }
  run(32, 32768, Mode::kNone);
  run(64, 131072, Mode::kNone);
  for (int64_t rows : {32L, 64L, 128L, kBatch}) {
    for (Mode mode : {Mode::kNone, Mode::kBuild, Mode::kRestrict}) run(rows, kOwn, mode, true);
  }
  for (int64_t rows : {2048L, kPrefill}) {
    for (Mode mode : {Mode::kNone, Mode::kBuild, Mode::kRestrict}) run(rows, kBehind, mode);
  }
}

void OpsBench::rows() {
  DeviceInputs in(memory_);
  constexpr int64_t kMost = 4096;
  const int64_t outputs = (2 + kStreams) * kStreams;
  const HyperMixWeights w{in.floats(outputs * kStreams * kHidden, 0.01f),
                          in.floats(outputs, 1),
                          in.floats(3, 1),
                          kStreams,
                          kHidden,
                          20,
                          1e-6f,
                          1e-20f};
  bf16* x = in.normal(kMost * kStreams * kHidden);
  bf16* o = in.normal(kMost * kHidden);
  auto* y = in.room<bf16>(kMost * kHidden);
  auto* pre = in.floats(kMost * kStreams, 0.5f);
  auto* post = in.floats(kMost * kStreams, 0.5f);
  auto* comb = in.floats(kMost * kStreams * kStreams, 0.25f);
  const int64_t table_rows = int64_t{1} << 25;
  const EngramTable table{in.bytes(table_rows * 256, 0xbf), in.scales(table_rows * 8, -4), table_rows, 256};
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kMost * 24; ++i) ids.push_back(static_cast<int64_t>(in.rng()() % static_cast<uint64_t>(table_rows)));
  const int64_t* device_ids = in.upload(ids);
  auto* e = in.room<bf16>(kMost * 24 * 256);
  for (int64_t rows : wanted_of({1, 8, 128, 4096})) {
    const auto n = static_cast<double>(rows);
    const BenchConditions c = {{"rows", text(rows)}};
    const double stream_bytes = n * kStreams * kHidden * 2;
    print("hyper_mix", time([&](int64_t) { backend_->hyper_mix(w, x, rows, pre, post, comb); }),
          outputs * kStreams * kHidden * 4.0 + stream_bytes, 0, c);
    print("hyper_collapse", time([&](int64_t) { backend_->hyper_collapse(x, pre, rows, kStreams, kHidden, y); }),
          stream_bytes * 1.25, 0, c);
    print("hyper_expand", time([&](int64_t) { backend_->hyper_expand(o, post, comb, rows, kStreams, kHidden, x); }),
          stream_bytes * 2.25, 0, c);
    print("rms_norm", time([&](int64_t) { backend_->rms_norm(o, x, 1e-20f, rows, kHidden, y); }), n * kHidden * 4, 0, c);
    print("engram_gather", time([&](int64_t) { backend_->engram_gather(table, device_ids, rows, 24, e); }), n * 24 * (264 + 512),
          0, c);
  }
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  using namespace deepinfer;
  using namespace deepinfer::bench;
  CLI::App app("Operators of the CUDA backend at true dimensions, against the device's ceilings");
  double tflops = 0;
  double seconds = 0.25;
  std::vector<std::string> parts = {"dense", "experts", "attention", "index", "rows"};
  app.add_option("--tflops", tflops, "bf16 matrix rate measured on this device (peer_torch.py); 0: floors count bytes alone");
  app.add_option("--seconds", seconds, "for each figure; 0: every operator is called twice and nothing is timed, for a profiler")
      ->check(CLI::Range(0.0, 60.0));
  app.add_option("--parts", parts)->delimiter(',');
  std::vector<int64_t> rows;
  app.add_option("--rows", rows, "figures of these numbers of rows alone")->delimiter(',');
  std::vector<std::string> settings = {"none"};
  app.add_option("--cuda-features", settings, "as of deepinfer serve; several are measured one after the other");
  CLI11_PARSE(app, argc, argv);
  const auto wanted = [&](const char* part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  for (const std::string& setting : settings) {
    const auto features = parse_cuda_features(setting);
    const auto devices = features ? cuda_devices() : Result<std::vector<CudaDevice>>(Err(features.error()));
    auto backend =
        devices ? make_cuda_backend(devices->front().index, *features) : Result<std::unique_ptr<Backend>>(Err(devices.error()));
    if (!backend) {
      std::fprintf(stderr, "%s\n", backend.error().message().c_str());
      return 1;
    }
    OpsBench bench(backend->get(), cuda_features_text(*features), devices->front().name, tflops, seconds, rows);
    if (wanted("experts")) bench.experts();
    if (wanted("dense")) bench.dense();
    if (wanted("attention")) bench.attention();
    if (wanted("index")) bench.index();
    if (wanted("rows")) bench.rows();
  }
  return 0;
}
