// What structured output costs the engine: the same requests with every answer in a form and with none, prompts and numbers of
// tokens equal, in turns on one engine. The answers in their forms come first and say how long the free ones are.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>
#include <random>

#include "base/json_line.h"
#include "deepinfer/engine.h"

namespace deepinfer::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = DEEPINFER_SOURCE_DIR "/models/nano";
  int64_t requests = 192;
  int64_t concurrency = 16;
  int64_t prompt = 64;
  int64_t max_tokens = 128;
  int64_t rounds = 5;
};

const grammar::GrammarSpec& form(int64_t i) {
  using namespace grammar;  // NOLINT(google-build-using-namespace): a table of them
  static const std::vector<GrammarSpec> forms = {
      JsonSchemaSpec{R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},
        "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":5}},
        "required":["name","age","email"],"additionalProperties":false})"},
      JsonSchemaSpec{R"({"type":"array","minItems":3,"items":{"type":"object","properties":{"id":{"type":"integer"},
        "state":{"enum":["open","closed","waiting"]},"note":{"type":["string","null"],"maxLength":80}},
        "required":["id","state","note"],"additionalProperties":false}})"},
      JsonSchemaSpec{R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},"children":{"type":"array",
        "items":{"$ref":"#/$defs/node"}}},"required":["value","children"]}},"$ref":"#/$defs/node"})"},
      JsonSchemaSpec{R"({"type":"object","properties":{"date":{"type":"string","format":"date-time"},
        "code":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4}$"},"text":{"type":"string","minLength":60}},
        "required":["date","code","text"]})"},
      JsonObjectSpec{},
      RegexSpec{"([a-z]{3,12} ){20,60}[a-z]+\\."},
      RegexSpec{"[\\s\\S]{100,400}"},
      EbnfSpec{"root ::= line{8,40}\nline ::= [A-Z] [a-z]{2,9} \": \" [0-9]{1,6} \"\\n\""},
  };
  return forms[static_cast<size_t>(i) % forms.size()];
}

Request make_request(const Options& o, const ModelInfo& model, int64_t i) {
  std::mt19937_64 random(static_cast<uint64_t>(i) + 1);
  Request r;
  for (int64_t t = 0; t < o.prompt; ++t)
    r.prompt.push_back(
        static_cast<int32_t>(10 + random() % static_cast<uint64_t>(std::min<int64_t>(model.vocab_size, 4000) - 10)));
  r.seed = static_cast<uint64_t>(i);
  r.max_tokens = o.max_tokens;
  r.detokenize = false;
  return r;
}

struct Run {
  double seconds = 0;
  int64_t tokens = 0;
  std::vector<int64_t> lengths;
  StepTimes masks;
  double mask_wait = 0;
  int64_t steps = 0;
};

/// `lengths` empty: every answer in its form. Otherwise free answers of these lengths.
Run run(Engine& engine, const Options& o, const std::vector<int64_t>& lengths) {
  Run out;
  const EngineStats before = engine.stats();
  const auto start = Clock::now();
  std::deque<std::pair<RequestHandle, int64_t>> open;
  out.lengths.resize(static_cast<size_t>(o.requests));
  int64_t next = 0;
  while (next < o.requests || !open.empty()) {
    while (next < o.requests && static_cast<int64_t>(open.size()) < o.concurrency) {
      Request r = make_request(o, engine.model(), next);
      if (lengths.empty()) {
        r.structured_output = StructuredOutput{.form = form(next)};
      } else {
        r.max_tokens = lengths[static_cast<size_t>(next)];
        r.ignore_eos = true;
      }
      auto handle = engine.submit(std::move(r));
      if (!handle) {
        std::fprintf(stderr, "%s\n", handle.error().message().c_str());
        std::exit(1);
      }
      open.emplace_back(*handle, next++);
    }
    // In the order of submission: what has ended behind the oldest is taken with it.
    auto [handle, index] = open.front();
    while (const auto output = handle.next()) {
      out.lengths[static_cast<size_t>(index)] += static_cast<int64_t>(output->tokens.size());
      if (output->finish == FinishReason::kError) {
        std::fprintf(stderr, "%s\n", output->error.message().c_str());
        std::exit(1);
      }
    }
    open.pop_front();
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const EngineStats after = engine.stats();
  out.tokens = std::accumulate(out.lengths.begin(), out.lengths.end(), int64_t{0});
  out.masks.total = after.masks.total - before.masks.total;
  out.masks.count = after.masks.count - before.masks.count;
  out.mask_wait = after.mask_wait_seconds - before.mask_wait_seconds;
  out.steps = after.steps - before.steps;
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int main_with(const Options& o) {
  EngineOptions options;
  options.model = o.model;
  options.enable_prefix_caching = false;
  auto engine = Engine::Create(options);
  if (!engine) return std::fprintf(stderr, "%s\n", engine.error().message().c_str()), 1;
  const std::vector<int64_t> lengths = run(**engine, o, {}).lengths;  // compiles every form
  run(**engine, o, lengths);
  std::vector<double> free, formed, ratio, mask_us, wait_share;
  for (int64_t round = 0; round < o.rounds; ++round) {
    // Who goes first takes turns, too.
    Run a, b;
    if (round % 2 == 0) {
      a = run(**engine, o, {});
      b = run(**engine, o, lengths);
    } else {
      b = run(**engine, o, lengths);
      a = run(**engine, o, {});
    }
    if (a.lengths != lengths || b.lengths != lengths) return std::fprintf(stderr, "answers changed between rounds\n"), 1;
    formed.push_back(static_cast<double>(a.tokens) / a.seconds);
    free.push_back(static_cast<double>(b.tokens) / b.seconds);
    ratio.push_back(formed.back() / free.back());
    mask_us.push_back(a.masks.total / static_cast<double>(a.masks.count) * 1e6);
    wait_share.push_back(a.mask_wait / a.seconds);
    std::fprintf(stderr, "round %ld: in forms %.0f tokens/s, free %.0f, ratio %.4f, %ld and %ld steps\n", round, formed.back(),
                 free.back(), ratio.back(), a.steps, b.steps);
  }
  const ModelInfo model = (*engine)->model();
  const BenchConditions conditions = {{"model", model.name},
                                      {"backend", model.backend},
                                      {"threads", std::to_string(model.threads)},
                                      {"vocab", std::to_string(model.vocab_size)},
                                      {"requests", std::to_string(o.requests)},
                                      {"concurrency", std::to_string(o.concurrency)},
                                      {"prompt", std::to_string(o.prompt)},
                                      {"max_tokens", std::to_string(o.max_tokens)},
                                      {"rounds", std::to_string(o.rounds)},
                                      {"forms", "8, compiled"}};
  print_bench_line(stdout, "constrained_throughput", median(formed), "tokens/s", median(free), conditions);
  print_bench_line(stdout, "constrained_ratio_worst_round", *std::min_element(ratio.begin(), ratio.end()), "fraction",
                   std::nullopt, conditions);
  print_bench_line(stdout, "constrained_ratio_median", median(ratio), "fraction", std::nullopt, conditions);
  print_bench_line(stdout, "constrained_mask_mean", median(mask_us), "us", std::nullopt, conditions);
  print_bench_line(stdout, "constrained_mask_wait", median(wait_share), "fraction of the run", std::nullopt, conditions);
  return 0;
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  deepinfer::bench::Options o;
  CLI::App app("Throughput with every answer in a form over that with free ones (ceiling), on one engine in turns");
  app.add_option("-m,--model", o.model, "Checkpoint folder (default: models/nano)");
  app.add_option("--requests", o.requests, "Requests of a run (default: 192)")->check(CLI::Range(1, 100000));
  app.add_option("--concurrency", o.concurrency, "At once (default: 16)")->check(CLI::Range(1, 256));
  app.add_option("--prompt", o.prompt, "Tokens of a prompt (default: 64)")->check(CLI::Range(1, 100000));
  app.add_option("--max-tokens", o.max_tokens, "Tokens of an answer at most (default: 128)")->check(CLI::Range(1, 100000));
  app.add_option("--rounds", o.rounds, "Pairs of runs (default: 5)")->check(CLI::Range(1, 100));
  CLI11_PARSE(app, argc, argv);
  return deepinfer::bench::main_with(o);
}
