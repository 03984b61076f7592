#include "performance.h"

#include <cstdio>
#include <fstream>

#include "base/memory_bandwidth.h"
#include "base/status.h"

namespace deepinfer::cli {
namespace {

double rate(int64_t count, double seconds) { return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0; }

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %lld kB", &kib) == 1) return static_cast<int64_t>(kib) * 1024;
  }
  return 0;
}

Performance measure_performance(const ModelInfo& model, const AnswerTimes& run) {
  Performance p;
  p.peak_resident_bytes = peak_resident_bytes();
  p.load = model.load;
  p.run = run;
  p.backend = model.backend;
  p.kernels = model.kernels;
  p.threads = model.threads;
  p.weight_bytes = model.weight_bytes;
  p.prefill_rate = rate(run.prefill_tokens, run.prefill_seconds);
  p.decode_rate = rate(run.decode_steps, run.decode_seconds);
  p.active_weight_bytes = model.active_weight_bytes;
  p.weight_rate = static_cast<double>(p.active_weight_bytes) * p.decode_rate;
  p.weights_fit_in_cache = p.active_weight_bytes < last_level_cache_bytes();
  if (run.decode_steps > 0) {
    // What the machine can do, not what this run was allowed to use.
    ThreadPool pool(available_threads());
    p.memory_rate = measure_read_bandwidth(pool);
  }
  return p;
}

std::string format_performance(const Performance& p) {
  const AnswerTimes& run = p.run;
  std::string out = fmt::format("load      {:.1f} ms (checkpoint {:.1f} ms, tokenizer {:.1f} ms beside it, model {:.1f} ms)\n",
                                p.load.total * 1e3, p.load.checkpoint * 1e3, p.load.tokenizer * 1e3, p.load.model * 1e3);
  out += fmt::format("prompt    {} tokens, {:.1f} tokens/s\n", run.prefill_tokens, p.prefill_rate);
  out += fmt::format("generated {} tokens, {:.1f} tokens/s, {} ({}, {} threads)\n", run.tokens, p.decode_rate, run.finish,
                     p.backend, p.threads);
  if (p.memory_rate > 0) {
    out +=
        fmt::format("weights   {:.2f} GB/s read, {:.2f} of the {:.2f} GB/s that this machine reads{}\n", p.weight_rate / 1e9,
                    p.weight_rate / p.memory_rate, p.memory_rate / 1e9, p.weights_fit_in_cache ? " (weights fit in cache)" : "");
  }
  out += fmt::format("memory    {:.1f} MiB resident at most, of it weights {:.1f} MiB and caches {:.1f} MiB\n",
                     mib(p.peak_resident_bytes), mib(p.weight_bytes), mib(run.cache_bytes));
  out += "kernels   " + format_kernels(p.backend, p.kernels) + '\n';
  return out;
}

std::string format_kernels(const std::string& backend, const std::vector<std::pair<std::string, std::string>>& kernels) {
  std::string out = backend;
  for (const auto& [operators, kernel] : kernels) out += fmt::format("\n          {}: {}", operators, kernel);
  return out;
}

}  // namespace deepinfer::cli
