// What the host adds to a step: planning and publishing, with many sequences running on a device that takes no time.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/json_line.h"
#include "common/ceilings.h"
#include "engine/engine_core.h"
#include "engine/fake_executor.h"
#include "engine/model_executor.h"
#include "engine/request_check.h"
#include "tokenizer/tokenizer.h"

namespace {

template <typename T>
T must(deepinfer::Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "host_cost_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(p * static_cast<double>(values.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  using namespace deepinfer;
  using namespace deepinfer::bench;
  CLI::App app("Host cost of a step: many sequences on a device that takes no time");
  int64_t sequences = 256, steps = 2000, prompt = 1000, output = 400;
  bool text = true;
  app.add_option("--sequences", sequences, "Running at once")->check(CLI::Range(1, 65536));
  app.add_option("--steps", steps)->check(CLI::Range(10, 10'000'000));
  app.add_option("--prompt", prompt, "Tokens")->check(CLI::Range(1, 1'000'000));
  app.add_option("--output", output, "Tokens; each sequence that ends is followed by another")->check(CLI::Range(1, 1'000'000));
  app.add_flag("!--no-text", text, "Without detokenising");
  CLI11_PARSE(app, argc, argv);

  const auto tokenizer = must(Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/models/nano/tokenizer.json"));
  FakeExecutor device(
      {.seconds_per_step = 0,
       .token = [](uint64_t s, int64_t p) { return static_cast<int32_t>(300 + (s * 31 + static_cast<uint64_t>(p) * 17) % 3000); },
       .accepted = {},
       .failing_step = -1});
  const int64_t pages = sequences * ((prompt + output) / 128 + 2);
  auto cache = must(KvCache::Create(must(PagePool::Create(64, 64 * pages)), KvCacheOptions{}));
  WindowSnapshotPool<CachedWindow> windows(0, 0);
  CoreOptions options;
  options.limits = {sequences, sequences + 2048, 128};
  options.vocab_size = tokenizer->vocab_size();
  options.geometry = {128, 40, 20, 127 * 40};
  options.decoder_keep = 140;
  options.snapshots = false;
  EngineCore core(options, cache.get(), &windows, &device, tokenizer, PrefixHasher::Random(), step_clock);
  RequestLimits limits;
  limits.vocab_size = options.vocab_size;
  limits.max_model_len = int64_t{1} << 20;
  limits.max_num_seqs = sequences;
  limits.total_pages = pages;

  RequestId next = 1;
  std::vector<RequestHandle> handles;
  const auto submit = [&] {
    Request request;
    request.prompt.resize(static_cast<size_t>(prompt));
    for (int64_t i = 0; i < prompt; ++i)
      request.prompt[static_cast<size_t>(i)] = static_cast<int32_t>(300 + (static_cast<int64_t>(next) * 7919 + i * 13) % 3000);
    // Ends are spread over the steps.
    request.max_tokens = output / 2 + static_cast<int64_t>(next * 2654435761u % static_cast<uint64_t>(output / 2 + 1));
    request.ignore_eos = true;
    request.detokenize = text;
    auto active = must(check_request(std::move(request), limits));
    active->id = next++;
    active->stream = std::make_shared<RequestStream>(active->id, 1, [](RequestId) {});
    handles.emplace_back(active->stream);
    core.submit(std::move(active), step_clock());
  };
  while (static_cast<int64_t>(handles.size()) < sequences) submit();
  while (core.running() < sequences) core.turn(step_clock());
  for (int i = 0; i < 20; ++i) core.turn(step_clock());

  std::vector<double> plan, publish, both;
  EngineStats before = core.stats();
  const EngineStats start = before;
  for (int64_t step = 0; step < steps; ++step) {
    core.turn(step_clock());
    const EngineStats after = core.stats();
    if (after.plan.count > before.plan.count && after.publish.count > before.publish.count) {
      plan.push_back(after.plan.total - before.plan.total);
      publish.push_back(after.publish.total - before.publish.total);
      both.push_back(plan.back() + publish.back());
    }
    before = after;
    // A reader, outside of what is measured; newcomers take the places of those that have ended.
    for (RequestHandle& handle : handles) {
      while (handle.poll()) {
      }
    }
    std::erase_if(handles, [](const RequestHandle& h) { return h.finished(); });
    while (static_cast<int64_t>(handles.size()) < sequences) submit();
  }
  const EngineStats end = core.stats();
  const BenchConditions conditions = {
      {"sequences", std::to_string(sequences)},
      {"steps", std::to_string(steps)},
      {"prompt", std::to_string(prompt)},
      {"output", std::to_string(output)},
      {"text", text ? "yes" : "no"},
      {"tokens_per_step", std::to_string((end.generation_tokens - start.generation_tokens) / steps)}};
  const auto print = [&](const char* name, const std::vector<double>& values) {
    for (const auto& [label, p] : {std::pair{"p50", 0.5}, {"p99", 0.99}})
      print_bench_line(stdout, fmt::format("{}_{}", name, label), percentile(values, p) * 1e6, "us", std::nullopt, conditions);
  };
  print("plan", plan);
  print("publish", publish);
  print("host_step", both);
  double sum = 0;
  for (const double v : both) sum += v;
  print_bench_line(stdout, "host_step_mean", sum / static_cast<double>(both.size()) * 1e6, "us", 100.0, conditions);
  return 0;
}
