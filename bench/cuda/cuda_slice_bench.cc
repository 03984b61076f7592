// A slice of the released model on one GPU (gpu_slice.h): decode steps and prefill chunks, layer by layer, against the larger of
// two floors: bytes that must move over the copy bandwidth measured here, and operations over a matrix rate measured on the same
// device (peer_torch.py). Steps are recorded as graphs, with marks between the layers or the operators, and replayed.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/ceilings.h"
#include "cuda/device_ceilings.h"
#include "cuda/gpu_slice.h"
#include "cuda/kernel_gaps.h"
#include "cuda/metered_backend.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/cuda_graph.h"

namespace deepinfer::bench {
namespace {

std::string text(int64_t v) { return std::to_string(v); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

struct Options {
  std::vector<int64_t> batches = {1, 8, 32, 64, 128, 256};
  std::vector<int64_t> contexts = {4096, 32768, 131072, 524288};
  std::vector<int64_t> chunks = {2048, 8192};
  std::vector<int64_t> chunk_contexts = {0, 32768};
  std::vector<int64_t> detail = {1, 32, 256};  ///< batches whose operators are timed
  std::vector<int64_t> draft_batches = {1, 4, 16};
  int64_t detail_context = 32768;
  int replays = 9;
  bool list = false;
};

class SliceBench {
 public:
  SliceBench(MeteredBackend* backend, GpuSlice* slice, const DeviceCeilings* ceilings, const ModelConfig& released,
             const Options& options)
      : backend_(backend), slice_(slice), ceilings_(ceilings), released_(released), options_(options) {}

  void decode();
  void prefill();
  void drafts();
  void gaps();

 private:
  using States = std::vector<std::unique_ptr<SequenceState>>;
  using Pass = std::function<void()>;

  // A pass that was measured: layers (-1: embedding and head) and, if asked for, operators.
  struct Figures {
    double us = 0;  ///< without marks
    std::map<int64_t, double> layer_us;
    std::map<int64_t, Work> layer_work;
    std::vector<MeteredBackend::Piece> operators;
    std::vector<MeteredCall> calls;
  };

  void run(std::span<const std::unique_ptr<SequenceState>> states, int64_t rows_each, bool logits);
  void take_back(std::span<const std::unique_ptr<SequenceState>> states, int64_t length);
  std::vector<MeteredBackend::Piece> timed_runs(
      const std::function<void()>& run, MeteredBackend::Marks marks, int warm, int count, double* us,
      const std::function<void()>& ready = [] {});
  std::vector<MeteredBackend::Piece> replayed(const Pass& pass, MeteredBackend::Marks marks, double* us);
  Figures measure(
      const Pass& pass, bool with_operators, bool as_graph, const Pass& ready = [] {});
  void print_layers(const std::string& name, const Figures& f, int64_t rows, const BenchConditions& conditions);
  void print_operators(const std::string& name, const Figures& f, const BenchConditions& conditions);
  void print_spans(std::vector<DeviceSpan> spans, const BenchConditions& of);
  void project(const Figures& f, int64_t tokens, const char* phase, const BenchConditions& conditions);
  double layer_bytes(const Work& work, int64_t rows) const;
  std::map<std::string, double> by_kind(const Figures& f) const;

  MeteredBackend* backend_;
  GpuSlice* slice_;
  const DeviceCeilings* ceilings_;
  const ModelConfig& released_;
  Options options_;
};

// Weights, cache rows, and the residual streams once in and out of each of the two halves of a layer.
double SliceBench::layer_bytes(const Work& work, int64_t rows) const {
  const ModelConfig& c = slice_->config();
  return work.bytes + 4.0 * static_cast<double>(rows * c.hc_mult * c.hidden_size * 2);
}

void SliceBench::run(std::span<const std::unique_ptr<SequenceState>> states, int64_t rows_each, bool logits) {
  const auto count = static_cast<int64_t>(states.size());
  const std::vector<int32_t> ids = slice_->tokens(count * rows_each);
  std::vector<StepSequence> sequences;
  std::vector<int32_t> wanted;
  for (int64_t s = 0; s < count; ++s) {
    sequences.push_back({.state = states[static_cast<size_t>(s)].get(), .count = rows_each});
    for (int64_t r = rows_each <= 16 ? 0 : rows_each - 1; logits && r < rows_each; ++r)
      wanted.push_back(static_cast<int32_t>(s * rows_each + r));
  }
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = sequences;
  batch.logit_rows = wanted;
  if (const auto out = slice_->model().forward(batch); !out) {
    std::fprintf(stderr, "slice: %s\n", out.error().message().c_str());
    std::exit(1);
  }
  backend_->end_pass();
}

void SliceBench::take_back(std::span<const std::unique_ptr<SequenceState>> states, int64_t length) {
  for (const auto& s : states) {
    if (const Status status = s->truncate(length); !status.ok()) {
      std::fprintf(stderr, "slice: %s\n", status.message().c_str());
      std::exit(1);
    }
  }
}

// Median of each piece over `count` runs, after `warm` that do not count; *us is that of the whole. `ready`: before each run.
std::vector<MeteredBackend::Piece> SliceBench::timed_runs(const std::function<void()>& run, MeteredBackend::Marks marks, int warm,
                                                          int count, double* us, const std::function<void()>& ready) {
  std::vector<std::vector<double>> times;
  std::vector<MeteredBackend::Piece> pieces;
  std::vector<double> whole;
  for (int i = -warm; i < count; ++i) {
    ready();
    backend_->memory().synchronize();
    const double start = now();
    run();
    backend_->memory().synchronize();
    if (i < 0) continue;
    whole.push_back((now() - start) * 1e6);
    if (marks == MeteredBackend::Marks::kNone) continue;
    pieces = backend_->pieces();
    times.resize(pieces.size());
    for (size_t p = 0; p < pieces.size(); ++p) times[p].push_back(pieces[p].us);
  }
  for (size_t p = 0; p < pieces.size(); ++p) pieces[p].us = median(times[p]);
  *us = median(whole);
  return pieces;
}

std::vector<MeteredBackend::Piece> SliceBench::replayed(const Pass& pass, MeteredBackend::Marks marks, double* us) {
  backend_->memory().synchronize();
  backend_->set_marks(marks);
  backend_->set_recording(true);
  const auto graph = record_cuda_graph(*backend_, [&] { pass(); });
  backend_->set_recording(false);
  std::vector<MeteredBackend::Piece> pieces = timed_runs([&] { graph->replay(); }, marks, 2, options_.replays, us);
  backend_->set_marks(MeteredBackend::Marks::kNone);
  return pieces;
}

// `ready`: what a pass needs that is no part of it.
SliceBench::Figures SliceBench::measure(const Pass& pass, bool with_operators, bool as_graph, const Pass& ready) {
  Figures f;
  ready();
  backend_->begin_count();
  pass();
  f.calls = backend_->end_count();
  for (const MeteredCall& call : f.calls) f.layer_work[call.layer] += call.work;
  const auto direct = [&](MeteredBackend::Marks marks, double* us) {
    std::vector<MeteredBackend::Piece> pieces = timed_runs(
        [&] {
          backend_->set_marks(marks);
          pass();
        },
        marks, 0, 3, us, ready);
    backend_->set_marks(MeteredBackend::Marks::kNone);
    return pieces;
  };
  const auto timed = [&](MeteredBackend::Marks marks, double* us) {
    return as_graph && backend_->records() ? replayed(pass, marks, us) : direct(marks, us);
  };
  double ignored = 0;
  timed(MeteredBackend::Marks::kNone, &f.us);
  for (const MeteredBackend::Piece& p : timed(MeteredBackend::Marks::kLayers, &ignored)) f.layer_us[p.layer] += p.us;
  if (with_operators) f.operators = timed(MeteredBackend::Marks::kOperators, &ignored);
  return f;
}

std::map<std::string, double> SliceBench::by_kind(const Figures& f) const {
  std::map<std::string, std::vector<double>> times;
  for (const auto& [layer, us] : f.layer_us) {
    if (layer >= 0 && layer < slice_->config().num_hidden_layers) times[layer_kind(slice_->config(), layer)].push_back(us);
  }
  std::map<std::string, double> out;
  for (const auto& [kind, list] : times) out[kind] = median(list);
  return out;
}

void SliceBench::print_layers(const std::string& name, const Figures& f, int64_t rows, const BenchConditions& conditions) {
  const ModelConfig& c = slice_->config();
  std::map<std::string, std::pair<Work, int64_t>> works;
  double bytes = 0, flops = 0;
  for (const auto& [layer, work] : f.layer_work) {
    bytes += layer >= 0 ? layer_bytes(work, rows) : work.bytes;
    flops += work.flops;
    if (layer < 0 || layer >= c.num_hidden_layers) continue;
    auto& [sum, count] = works[layer_kind(c, layer)];
    sum += work;
    ++count;
  }
  for (const auto& [kind, us] : by_kind(f)) {
    const auto& [sum, count] = works[kind];
    const auto n = static_cast<double>(count);
    BenchConditions all = {{"kind", kind}};
    all.insert(all.end(), conditions.begin(), conditions.end());
    all.push_back({"layers", text(count)});
    all.push_back({"active", text(sum.active / count)});
    ceilings_->print(name + "_layer", us, layer_bytes({.bytes = sum.bytes / n}, rows), sum.flops / n, all);
  }
  double in_layers = 0;
  for (const auto& [layer, us] : f.layer_us) in_layers += us;
  BenchConditions all = conditions;
  all.push_back({"layers", text(c.num_hidden_layers) + " and the head"});
  all.push_back({"sum_of_layers_us", fmt::format("{:.6g}", in_layers)});
  ceilings_->print(name + "_step", f.us, bytes, flops, all);
}

// Per operator and layer kind: calls of a kind are added up within a layer, and layers of a kind averaged.
void SliceBench::print_operators(const std::string& name, const Figures& f, const BenchConditions& conditions) {
  const ModelConfig& c = slice_->config();
  struct Sum {
    double us = 0;
    Work work;
    int64_t calls = 0;
  };
  std::map<std::string, int64_t> layers;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) ++layers[layer_kind(c, layer)];
  std::map<std::pair<std::string, std::string>, Sum> sums;
  for (size_t i = 0; i < f.operators.size() && i < f.calls.size(); ++i) {
    const auto& piece = f.operators[i];
    const std::string kind = piece.layer < 0                     ? "none"
                             : piece.layer < c.num_hidden_layers ? layer_kind(c, piece.layer)
                                                                 : "draft stage";
    std::string op = piece.name;
    // Matrices of different shapes are told apart by what they multiply.
    if (op.starts_with("linear")) op += fmt::format(" {:.3g} MB", f.calls[i].work.bytes * 1e-6);
    Sum& s = sums[{kind, op}];
    s.us += piece.us;
    s.work += f.calls[i].work;
    ++s.calls;
  }
  for (const auto& [key, s] : sums) {
    const int64_t count = layers.contains(key.first) ? layers[key.first] : 1;
    const auto n = static_cast<double>(count);
    BenchConditions all = {
        {"operator", key.second}, {"kind", key.first}, {"calls", fmt::format("{:.3g}", static_cast<double>(s.calls) / n)}};
    all.insert(all.end(), conditions.begin(), conditions.end());
    ceilings_->print(name + "_operator", s.us / n, (s.work.bytes + s.work.streams) / n, s.work.flops / n, all);
  }
}

// The whole model from the layer kinds. One GPU cannot hold it: the figure is that of one GPU of as many as hold it, layers
// dealt out among them, a batch of this size under way on each.
void SliceBench::project(const Figures& f, int64_t tokens, const char* phase, const BenchConditions& conditions) {
  const std::map<std::string, double> kinds = by_kind(f);
  double us = 0;
  for (int64_t layer = 0; layer < released_.num_hidden_layers; ++layer) {
    const auto found = kinds.find(layer_kind(released_, layer));
    if (found == kinds.end()) {
      std::fprintf(stderr, "slice: no layer of kind %s\n", layer_kind(released_, layer).c_str());
      return;
    }
    us += found->second;
  }
  if (const auto head = f.layer_us.find(-1); head != f.layer_us.end()) us += head->second;
  BenchConditions all = {{"device", ceilings_->device()}};
  all.insert(all.end(), conditions.begin(), conditions.end());
  all.push_back({"step_us", fmt::format("{:.6g}", us)});
  all.push_back({"layers", text(released_.num_hidden_layers)});
  all.push_back(
      {"assumed",
       "layer times of the slice; GPUs that hold the model share its layers, each with a batch of this size under way; no "
       "transfers, no sampling, no drafts"});
  print_bench_line(stdout, std::string("projected_") + phase, static_cast<double>(tokens) / us * 1e6, "tokens/s/GPU",
                   std::nullopt, all);
}

void SliceBench::decode() {
  const int64_t most = *std::max_element(options_.batches.begin(), options_.batches.end());
  for (const int64_t context : options_.contexts) {
    const States states = slice_->sequences(most, context, 1);
    for (const int64_t batch : options_.batches) {
      const std::span<const std::unique_ptr<SequenceState>> used(states.data(), static_cast<size_t>(batch));
      const Pass pass = [&] {
        run(used, 1, true);
        take_back(used, context);
      };
      const bool detail = context == options_.detail_context &&
                          std::find(options_.detail.begin(), options_.detail.end(), batch) != options_.detail.end();
      const Figures f = measure(pass, detail, true);
      const BenchConditions conditions = {
          {"batch", text(batch)},
          {"context", text(context)},
          {"pages", batch * context <= slice_->pool_positions() ? "own" : "some shared between sequences"}};
      print_layers("decode", f, batch, conditions);
      if (detail) print_operators("decode", f, conditions);
      project(f, batch, "decode", conditions);
    }
  }
}

void SliceBench::prefill() {
  for (const int64_t context : options_.chunk_contexts) {
    for (const int64_t chunk : options_.chunks) {
      States states;
      // A chunk cannot be taken back: each pass has a new sequence, which a server has before its turn comes.
      const Pass ready = [&] { states = slice_->sequences(1, context, chunk); };
      const Pass pass = [&] { run(states, chunk, true); };
      const Figures f = measure(pass, true, false, ready);
      const BenchConditions conditions = {{"chunk", text(chunk)}, {"context", text(context)}};
      print_layers("prefill", f, chunk, conditions);
      print_operators("prefill", f, conditions);
      project(f, chunk, "prefill", conditions);
      if (!options_.list) continue;
      ready();
      auto spans = record_device([&] {
        pass();
        backend_->memory().synchronize();
      });
      if (spans) print_spans(std::move(*spans), conditions);
    }
  }
}

// A round of drafts, and steps that verify them, at the length of the detail.
void SliceBench::drafts() {
  const int64_t context = options_.detail_context;
  const int64_t most = *std::max_element(options_.draft_batches.begin(), options_.draft_batches.end());
  const int64_t block = slice_->config().dspark_block_size;
  const States states = slice_->sequences(most, context, 2 * block);
  for (const int64_t batch : options_.draft_batches) {
    const std::span<const std::unique_ptr<SequenceState>> used(states.data(), static_cast<size_t>(batch));
    const BenchConditions conditions = {{"batch", text(batch)}, {"context", text(context)}};
    // A block of the draft module, whose tokens are given, or drawn where the logits are: greedily, and with noise.
    for (const std::string tokens : {"given", "greedy", "noise"}) {
      if (tokens != "given" && !backend_->draws()) continue;
      std::vector<DraftSequence> wanted;
      for (const auto& s : used) {
        wanted.push_back({s.get(), 1});
        if (tokens != "given") wanted.back().draw = DrawRow{.greedy = tokens == "greedy"};
      }
      const auto pick = [](int64_t k, std::span<float>, std::span<int32_t> given) {
        for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<int32_t>(100 * k + static_cast<int64_t>(i));
      };
      const Pass draft = [&] {
        if (const auto out = slice_->model().draft(wanted, block, pick); !out) {
          std::fprintf(stderr, "slice: %s\n", out.error().message().c_str());
          std::exit(1);
        }
        backend_->end_pass();
      };
      const Figures round = measure(draft, true, true);
      double bytes = 0, flops = 0;
      for (const auto& [layer, work] : round.layer_work) bytes += work.bytes, flops += work.flops;
      BenchConditions how = conditions;
      how.push_back({"tokens", tokens});
      ceilings_->print("draft_round", round.us, bytes, flops, how);
      print_operators("draft", round, how);
    }
    for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{4}, block + 1}) {
      const Pass verify = [&] {
        run(used, rows, true);
        take_back(used, context);
      };
      const Figures f = measure(verify, false, true);
      BenchConditions all = conditions;
      all.push_back({"rows_each", text(rows)});
      print_layers("verify", f, batch * rows, all);
      project(f, batch * rows, "verify_rows", all);
    }
  }
}

// A step that is replayed, as the device's records have it: what lies between kernels, and how much each kernel has of it.
void SliceBench::gaps() {
  const int64_t context = options_.detail_context;
  const int64_t most = *std::max_element(options_.detail.begin(), options_.detail.end());
  const States states = slice_->sequences(most, context, 1);
  for (const int64_t batch : options_.detail) {
    const std::span<const std::unique_ptr<SequenceState>> used(states.data(), static_cast<size_t>(batch));
    const auto pass = [&] {
      run(used, 1, true);
      take_back(used, context);
    };
    pass();
    backend_->memory().synchronize();
    backend_->set_recording(true);
    const auto graph = record_cuda_graph(*backend_, pass);
    backend_->set_recording(false);
    const auto replay = [&] {
      graph->replay();
      backend_->memory().synchronize();
    };
    double us = 0;
    timed_runs([&] { graph->replay(); }, MeteredBackend::Marks::kNone, 2, options_.replays, &us);
    std::vector<DeviceGaps> found;
    std::vector<DeviceSpan> last, quickest;
    for (int i = 0; i < options_.replays; ++i) {
      auto spans = record_device(replay);
      if (!spans) {
        std::fprintf(stderr, "slice: %s\n", spans.error().message().c_str());
        return;
      }
      last = std::move(*spans);
      found.push_back(find_gaps(last));
      if (quickest.empty() || found.back().total_us < find_gaps(quickest).total_us) quickest = last;
    }
    std::sort(found.begin(), found.end(), [](const DeviceGaps& a, const DeviceGaps& b) { return a.share() < b.share(); });
    const DeviceGaps& g = found[found.size() / 2];
    const auto us_text = [](double v) { return fmt::format("{:.6g}", v); };
    print_bench_line(stdout, "launch_gaps", g.share(), "of the step", std::nullopt,
                     {{"device", ceilings_->device()},
                      {"batch", text(batch)},
                      {"context", text(context)},
                      {"kernels", text(g.spans)},
                      {"step_us", us_text(us)},
                      {"recorded_us", us_text(g.total_us)},
                      {"gap_us", us_text(g.gap_us)},
                      {"overlap_us", us_text(g.overlap_us)},
                      {"longest_gap_us", us_text(g.longest_us)}});
    std::map<std::string, std::pair<int64_t, double>> kernels;
    for (const DeviceSpan& s : last) {
      auto& [count, sum] = kernels[s.name];
      ++count, sum += static_cast<double>(s.end - s.begin) * 1e-3;
    }
    for (const auto& [name, figures] : kernels) {
      print_bench_line(stdout, "kernel", figures.second, "us a step", std::nullopt,
                       {{"name", name}, {"batch", text(batch)}, {"count", text(figures.first)}});
    }
    if (options_.list) print_spans(std::move(quickest), {{"batch", text(batch)}});
  }
}

// One after the other as they began. `later_us`: by how much the end of all that has begun is later for this one, which is what
// it costs where kernels begin early and wait.
void SliceBench::print_spans(std::vector<DeviceSpan> spans, const BenchConditions& of) {
  std::sort(spans.begin(), spans.end(), [](const DeviceSpan& a, const DeviceSpan& b) { return a.begin < b.begin; });
  const auto us = [](uint64_t ns) { return fmt::format("{:.2f}", static_cast<double>(ns) * 1e-3); };
  uint64_t end = spans.empty() ? 0 : spans.front().begin;
  for (const DeviceSpan& s : spans) {
    BenchConditions conditions = {{"at", us(s.begin - spans.front().begin)},
                                  {"later_us", us(s.end > end ? s.end - end : 0)},
                                  {"blocks", text(s.blocks)},
                                  {"threads", text(s.threads)}};
    conditions.insert(conditions.end(), of.begin(), of.end());
    conditions.push_back({"name", s.name.substr(0, 96)});
    print_bench_line(stdout, "span", static_cast<double>(s.end - s.begin) * 1e-3, "us", std::nullopt, conditions);
    end = std::max(end, s.end);
  }
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  using namespace deepinfer;
  using namespace deepinfer::bench;
  CLI::App app("A slice of the released model on one GPU: decode steps and prefill chunks against the device's ceilings");
  Options options;
  double tflops = 0;
  int64_t experts = 384;
  double pool_gib = 9;
  bool on_cpu = false;
  std::string features_text = "none";
  std::string config_path = std::string(DEEPINFER_SOURCE_DIR) + "/tests/data/released_config.json";
  std::string directory = (std::filesystem::temp_directory_path() / "deepinfer-gpu-slice").string();
  std::vector<std::string> parts = {"decode", "prefill", "drafts"};
  app.add_option("--tflops", tflops, "bf16 matrix rate measured on this device (peer_torch.py); 0: floors count bytes alone");
  app.add_option("--experts", experts, "routed experts per layer")->check(CLI::Range(8, 384));
  app.add_option("--pool-gib", pool_gib, "random cache rows")->check(CLI::Range(0.01, 100.0));
  app.add_option("--config", config_path, "config.json of the release");
  app.add_option("--dir", directory, "where the sparse checkpoint is written");
  app.add_option("--batches", options.batches)->delimiter(',');
  app.add_option("--contexts", options.contexts)->delimiter(',');
  app.add_option("--chunks", options.chunks)->delimiter(',');
  app.add_option("--chunk-contexts", options.chunk_contexts)->delimiter(',');
  app.add_option("--detail", options.detail, "batches whose operators are timed")->delimiter(',');
  app.add_option("--detail-context", options.detail_context);
  app.add_option("--draft-batches", options.draft_batches)->delimiter(',');
  app.add_option("--replays", options.replays)->check(CLI::Range(1, 1000));
  app.add_option("--parts", parts, "of decode, prefill, drafts and gaps: what lies between kernels at the batches of --detail")
      ->delimiter(',');
  app.add_flag("--list", options.list, "gaps and prefill: every kernel of a step, in order");
  app.add_option("--cuda-features", features_text, "as of deepinfer serve");
  app.add_flag("--cpu", on_cpu, "no GPU: to try the program, with weights of zero; its figures mean nothing");
  CLI11_PARSE(app, argc, argv);
  ThreadPool pool(on_cpu ? available_threads() : 1);
  std::string device = "CPU";
  Result<std::unique_ptr<Backend>> inner = make_cpu_backend(&pool);
  const auto features = parse_cuda_features(features_text);
  if (!features) {
    std::fprintf(stderr, "%s\n", features.error().message().c_str());
    return 1;
  }
  if (!on_cpu) {
    const auto devices = cuda_devices();
    if (devices) device = devices->front().name;
    inner =
        devices ? make_cuda_backend(devices->front().index, *features) : Result<std::unique_ptr<Backend>>(Err(devices.error()));
  }
  if (!inner) {
    std::fprintf(stderr, "%s\n", inner.error().message().c_str());
    return 1;
  }
  const auto released = ModelConfig::Load(config_path);
  if (!released) {
    std::fprintf(stderr, "%s\n", released.error().message().c_str());
    return 1;
  }
  const DeviceCeilings ceilings((*inner)->memory(), device, tflops);
  MeteredBackend backend(inner->get());
  const double start = now();
  GpuSlice slice(&backend, config_path, directory, experts, static_cast<int64_t>(pool_gib * (1 << 30)));
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  print_bench_line(stdout, "slice_ready", now() - start, "s", std::nullopt,
                   {{"device", device},
                    {"features", cuda_features_text(*features)},
                    {"layers", text(slice.config().num_hidden_layers)},
                    {"experts", text(experts)},
                    {"free_gib", fmt::format("{:.1f}", static_cast<double>(backend.memory().free_bytes()) / (1 << 30))},
                    {"pool_positions", text(slice.pool_positions())}});
  SliceBench bench(&backend, &slice, &ceilings, *released, options);
  const auto wants = [&](const char* part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  if (wants("decode")) bench.decode();
  if (wants("prefill")) bench.prefill();
  if (wants("drafts")) bench.drafts();
  if (wants("gaps")) bench.gaps();
  return 0;
}
