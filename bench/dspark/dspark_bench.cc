// Speculative decoding with the DSpark draft module: how many drafts are accepted (on the trained nano model, by position, kind
// of task and confidence), and what that is worth in time (on nano, and on a slice of layers at true V4.1 dimensions with
// acceptance played back from nano). Plain decoding and speculation take turns in one run.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_line.h"
#include "calibration_plot.h"
#include "common/slice_model.h"
#include "engine_rig.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::bench;

template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "dspark_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

double sigmoid(float z) { return 1.0 / (1.0 + std::exp(-static_cast<double>(z))); }

struct Prompt {
  std::string kind;
  std::vector<int32_t> ids;
};

/// The first `each` prompts of every skill.
std::vector<Prompt> read_suite(const std::string& path, int64_t each, int64_t longest) {
  std::ifstream file(path);
  std::vector<Prompt> prompts;
  std::map<std::string, int64_t> counts;
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object()) continue;
    Prompt p{row.value("skill", ""), row.value("prompt", std::vector<int32_t>())};
    if (p.ids.empty() || static_cast<int64_t>(p.ids.size()) > longest || ++counts[p.kind] > each) continue;
    prompts.push_back(std::move(p));
  }
  if (prompts.empty()) {
    std::fprintf(stderr, "dspark_bench: no prompts in %s\n", path.c_str());
    std::exit(1);
  }
  return prompts;
}

Request request_of(const std::vector<int32_t>& prompt, int64_t tokens, float temperature, uint64_t seed, bool ignore_eos) {
  Request r;
  r.prompt = prompt;
  r.max_tokens = tokens;
  r.sampling.temperature = temperature;
  r.seed = seed;
  r.ignore_eos = ignore_eos;
  r.detokenize = false;
  return r;
}

/// One block of drafts, all verified.
struct Block {
  std::vector<float> confidences;
  int64_t accepted = 0;
};

struct Acceptance {
  std::vector<int64_t> offered, accepted;  ///< by position: whose predecessors were accepted; that were
  int64_t rounds = 0, tokens = 0;
  void add(const Block& b) {
    offered.resize(std::max(offered.size(), b.confidences.size()));
    accepted.resize(offered.size());
    ++rounds;
    tokens += b.accepted;
    for (int64_t k = 0; k < static_cast<int64_t>(b.confidences.size()) && k <= b.accepted; ++k) {
      ++offered[static_cast<size_t>(k)];
      if (k < b.accepted) ++accepted[static_cast<size_t>(k)];
    }
  }
  double mean() const { return rounds > 0 ? static_cast<double>(tokens) / static_cast<double>(rounds) : 0; }
};

void line(const std::string& name, double value, const std::string& unit, const BenchConditions& conditions) {
  print_bench_line(stdout, name, value, unit, std::nullopt, conditions);
}

/// What a scheduler saves: rows verified, and drafts accepted, if the drafts of a block are cut where their chance of survival
/// falls below `least`. Compared with cutting every block at one length that accepts as many.
void report_saving(const std::vector<Block>& blocks, size_t width, BenchConditions conditions) {
  std::vector<double> fixed_rows, fixed_accepted;
  for (size_t l = 0; l <= width; ++l) {
    double rows = 0, accepted = 0;
    for (const Block& b : blocks) {
      rows += static_cast<double>(std::min(l, b.confidences.size()));
      accepted += static_cast<double>(std::min<int64_t>(static_cast<int64_t>(l), b.accepted));
    }
    fixed_rows.push_back(rows);
    fixed_accepted.push_back(accepted);
  }
  conditions.emplace_back("least_survival", "");
  for (const double least : {0.1, 0.2, 0.3, 0.5, 0.7}) {
    double rows = 0, accepted = 0;
    for (const Block& b : blocks) {
      double survival = 1;
      int64_t l = 0;
      while (l < static_cast<int64_t>(b.confidences.size())) {
        survival *= sigmoid(b.confidences[static_cast<size_t>(l)]);
        if (survival < least) break;
        ++l;
      }
      rows += static_cast<double>(l);
      accepted += static_cast<double>(std::min(l, b.accepted));
    }
    size_t above = 1;
    while (above < width && fixed_accepted[above] < accepted) ++above;
    const double part = (accepted - fixed_accepted[above - 1]) / std::max(1.0, fixed_accepted[above] - fixed_accepted[above - 1]);
    const double same = fixed_rows[above - 1] + part * (fixed_rows[above] - fixed_rows[above - 1]);
    conditions.back().second = fmt::format("{}", least);
    line("dspark_rows_saved", 1 - rows / same, "fraction", conditions);
    line("dspark_accepted_share", accepted / std::max(rows, 1.0), "fraction", conditions);
  }
}

struct NanoOptions {
  std::string model, suite, svg, blocks;
  int64_t each = 12, tokens = 64, longest = 700;
  int threads = available_threads();
};

void run_nano(const NanoOptions& o) {
  LoadedModel loaded = must(load_model(o.model, "cpu", o.threads));
  const auto width = static_cast<size_t>(loaded.config().dspark_block_size);
  const std::vector<Prompt> prompts = read_suite(o.suite, o.each, o.longest);
  std::vector<Block> all;
  for (const float temperature : {0.0f, 1.0f}) {
    std::map<uint64_t, std::string> kind_of;  // by sequence
    std::vector<std::pair<uint64_t, Block>> blocks;
    RigOptions rig_options;
    rig_options.drafts = {.mode = SpeculationMode::kFixed, .most = loaded.config().dspark_block_size};
    rig_options.max_num_seqs = 16;
    rig_options.eos_token_id = loaded.config().eos_token_id;
    rig_options.trace_drafts = [&](const ModelExecutor::DraftTrace& t) {
      if (t.verified == static_cast<int64_t>(width))
        blocks.push_back({t.sequence, {{t.confidences.begin(), t.confidences.end()}, t.accepted}});
    };
    EngineRig rig(loaded.model.get(), loaded.pool.get(), rig_options);
    std::vector<Request> requests;
    for (size_t i = 0; i < prompts.size(); ++i) requests.push_back(request_of(prompts[i].ids, o.tokens, temperature, i, false));
    const EngineRig::Round round = rig.run(requests);
    for (size_t i = 0; i < prompts.size(); ++i) kind_of[round.sequences[i]] = prompts[i].kind;

    std::map<std::string, Acceptance> by_kind;
    std::vector<CalibrationBucket> buckets(10);
    for (const auto& [sequence, block] : blocks) {
      by_kind["all"].add(block);
      by_kind[kind_of.at(sequence)].add(block);
      for (int64_t k = 0; k <= std::min<int64_t>(block.accepted, static_cast<int64_t>(width) - 1); ++k) {
        const double said = sigmoid(block.confidences[static_cast<size_t>(k)]);
        CalibrationBucket& b = buckets[std::min<size_t>(9, static_cast<size_t>(said * 10))];
        b.said += said;
        ++b.drafts;
        if (k < block.accepted) ++b.accepted;
      }
    }
    double error = 0;
    int64_t count = 0;
    for (CalibrationBucket& b : buckets) {
      if (b.drafts > 0) b.said /= static_cast<double>(b.drafts);
      error += std::fabs(b.said - b.rate()) * static_cast<double>(b.drafts);
      count += b.drafts;
    }
    const BenchConditions base = {{"model", "nano"}, {"temperature", fmt::format("{}", temperature)}};
    for (const auto& [kind, a] : by_kind) {
      BenchConditions conditions = base;
      conditions.emplace_back("kind", kind);
      conditions.emplace_back("rounds", std::to_string(a.rounds));
      line("dspark_accepted_drafts", a.mean(), "tokens/round", conditions);
      if (kind != "all") continue;
      for (size_t k = 0; k < a.offered.size(); ++k) {
        BenchConditions at = conditions;
        at.emplace_back("position", std::to_string(k + 1));
        line("dspark_acceptance", static_cast<double>(a.accepted[k]) / static_cast<double>(std::max<int64_t>(a.offered[k], 1)),
             "fraction of those whose predecessors were accepted", at);
        line("dspark_survival", static_cast<double>(a.accepted[k]) / static_cast<double>(std::max<int64_t>(a.rounds, 1)),
             "fraction", at);
      }
    }
    for (const CalibrationBucket& b : buckets) {
      if (b.drafts == 0) continue;
      BenchConditions conditions = base;
      conditions.emplace_back("said", fmt::format("{:.3f}", b.said));
      conditions.emplace_back("drafts", std::to_string(b.drafts));
      line("dspark_confidence_bucket", b.rate(), "fraction accepted", conditions);
    }
    line("dspark_calibration_error", error / static_cast<double>(std::max<int64_t>(count, 1)), "mean |said - accepted|", base);
    std::vector<Block> plain;
    for (const auto& [sequence, block] : blocks) plain.push_back(block);
    report_saving(plain, width, base);
    if (!o.svg.empty() && temperature == 0) {
      write_calibration_svg(o.svg, fmt::format("Confidence of drafts, nano, greedy: {} drafts", count), buckets);
    }
    all.insert(all.end(), plain.begin(), plain.end());
  }
  if (o.blocks.empty()) return;
  std::ofstream file(o.blocks);
  for (const Block& b : all) {
    file << fmt::format("{{\"accepted\":{},\"confidences\":[", b.accepted);
    for (size_t k = 0; k < b.confidences.size(); ++k) file << fmt::format("{}{:.3f}", k == 0 ? "" : ",", b.confidences[k]);
    file << "]}\n";
  }
}

struct Side {
  std::string name;
  std::unique_ptr<EngineRig> rig;
  std::vector<double> rates;      ///< tokens per second of each round
  std::vector<double> cpu_rates;  ///< tokens per second of processor time
  EngineStats first, last;

  void add(const EngineRig::Round& r) {
    rates.push_back(static_cast<double>(r.tokens) / r.seconds);
    cpu_rates.push_back(static_cast<double>(r.tokens) / r.cpu_seconds);
  }
};

/// Runs one round on one side; `want`: the answers of the first side, which all others have to give. Rounds below 0 are not
/// counted.
void take_turn(Side& side, const std::vector<Request>& requests, int64_t round, std::vector<std::vector<int32_t>>& want) {
  const EngineRig::Round r = side.rig->run(requests);
  if (want.empty()) want = r.answers;
  if (r.answers != want) {
    std::fprintf(stderr, "dspark_bench: %s gave other answers than plain decoding\n", side.name.c_str());
    std::exit(1);
  }
  if (round == 0) side.first = r.before;
  side.last = r.after;
  if (round >= 0) side.add(r);
}

/// Medians of tokens per second, and of the ratio to plain within each round.
void report_sides(std::vector<Side>& sides, const BenchConditions& base) {
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  for (Side& side : sides) {
    std::vector<double> ratios;
    for (size_t r = 0; r < side.rates.size(); ++r) ratios.push_back(side.rates[r] / sides[0].rates[r]);
    BenchConditions conditions = base;
    conditions.emplace_back("mode", side.name);
    const auto drafts = static_cast<double>(std::max<int64_t>(side.last.drafts - side.first.drafts, 1));
    const auto verified = static_cast<double>(side.last.drafted_tokens - side.first.drafted_tokens);
    const auto accepted = static_cast<double>(side.last.accepted_tokens - side.first.accepted_tokens);
    conditions.emplace_back("verified_per_round", fmt::format("{:.2f}", verified / drafts));
    conditions.emplace_back("accepted_per_round", fmt::format("{:.2f}", accepted / drafts));
    const double tokens = static_cast<double>(side.last.generation_tokens - side.first.generation_tokens);
    conditions.emplace_back("rounds_per_token", fmt::format("{:.3f}", (side.last.drafts - side.first.drafts) / tokens));
    std::vector<double> cpu;
    for (size_t r = 0; r < side.cpu_rates.size(); ++r) cpu.push_back(side.cpu_rates[r] / sides[0].cpu_rates[r]);
    line("dspark_speed_ratio", median(ratios), "tokens/s over plain decoding", conditions);
    line("dspark_cpu_speed_ratio", median(cpu), "tokens per second of processor time over plain decoding", conditions);
    line("dspark_tokens_per_second", median(side.rates), "tokens/s", conditions);
  }
}

const std::vector<std::pair<std::string, DraftPolicy::Options>> kModes = {
    {"plain", {SpeculationMode::kOff, 0}},     {"fixed 1", {SpeculationMode::kFixed, 1}},
    {"fixed 2", {SpeculationMode::kFixed, 2}}, {"fixed 3", {SpeculationMode::kFixed, 3}},
    {"fixed 5", {SpeculationMode::kFixed, 5}}, {"variable", {SpeculationMode::kVariable, 5}}};

/// The modes that are measured: plain decoding always, as what the others are compared with.
std::vector<std::pair<std::string, DraftPolicy::Options>> modes_of(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, DraftPolicy::Options>> modes;
  for (const auto& mode : kModes) {
    if (names.empty() || &mode == &kModes.front() || std::find(names.begin(), names.end(), mode.first) != names.end())
      modes.push_back(mode);
  }
  return modes;
}

void add_modes(CLI::App* app, std::vector<std::string>& modes) {
  std::vector<std::string> names;
  for (const auto& [name, drafts] : kModes) names.push_back(name);
  app->add_option("--modes", modes, "beside plain decoding (default: all)")->delimiter(',')->check(CLI::IsMember(names));
}

struct SpeedOptions {
  std::string model, suite;
  std::vector<int64_t> batches = {1, 4, 16};
  std::vector<std::string> modes;
  int64_t tokens = 128, rounds = 5, per_round = 2;
  float temperature = 0;
  int threads = available_threads();
};

void run_speed(const SpeedOptions& o) {
  LoadedModel loaded = must(load_model(o.model, "cpu", o.threads));
  const std::vector<Prompt> prompts = read_suite(o.suite, 40, 120);
  for (const int64_t batch : o.batches) {
    std::vector<Side> sides;
    for (const auto& [name, drafts] : modes_of(o.modes)) {
      RigOptions options;
      options.drafts = drafts;
      options.max_num_seqs = batch;
      options.eos_token_id = loaded.config().eos_token_id;
      sides.push_back({name, std::make_unique<EngineRig>(loaded.model.get(), loaded.pool.get(), options), {}, {}, {}, {}});
    }
    for (int64_t round = -1; round < o.rounds; ++round) {  // the first one warms up, and teaches
      std::vector<Request> requests;
      for (int64_t i = 0; i < batch * o.per_round; ++i) {
        const Prompt& p = prompts[static_cast<size_t>((round + 1) * 31 + i * 17) % prompts.size()];
        requests.push_back(request_of(p.ids, o.tokens, o.temperature, static_cast<uint64_t>(i), true));
      }
      std::vector<std::vector<int32_t>> want;
      for (Side& side : sides) {
        take_turn(side, requests, round, want);
      }
    }
    report_sides(sides, {{"model", "nano"},
                         {"backend", loaded.backend->name()},
                         {"threads", std::to_string(o.threads)},
                         {"temperature", fmt::format("{}", o.temperature)},
                         {"batch", std::to_string(batch)},
                         {"tokens", std::to_string(o.tokens)}});
  }
}

struct SliceOptions {
  std::string directory = (std::filesystem::temp_directory_path() / "deepinfer-dspark-slice").string();
  std::string blocks;
  std::vector<int64_t> batches = {1, 4, 16};
  std::vector<std::string> modes;
  int64_t experts = 32, tokens = 40, rounds = 3;
  int threads = available_threads();
  bool keep = false;
};

/// The slice's weights are random, so nothing that it drafts is right: drafts of nano's blocks are put in their place, as many
/// true ones as nano's were, with nano's confidences.
void run_slice(const SliceOptions& o) {
  std::vector<Block> blocks;
  std::ifstream file(o.blocks);
  for (std::string text; std::getline(file, text);) {
    const auto row = nlohmann::json::parse(text, nullptr, false);
    if (row.is_object()) blocks.push_back({row.value("confidences", std::vector<float>()), row.value("accepted", int64_t{0})});
  }
  if (blocks.empty()) {
    std::fprintf(stderr, "dspark_bench: no blocks in %s\n", o.blocks.c_str());
    std::exit(1);
  }
  const SliceModel slice = make_slice_model(o.directory, o.experts, o.threads, 1);
  const ModelConfig& config = slice.model->config();
  for (const int64_t batch : o.batches) {
    std::map<uint64_t, std::pair<int64_t, const std::vector<int32_t>*>> truth;  // by sequence: length of the prompt, answer
    size_t next_block = 0;
    const auto play_back = [&](uint64_t sequence, int64_t position, std::span<int32_t> drafts, std::span<float> confidences) {
      const auto& [prompt, answer] = truth.at(sequence);
      const Block& block = blocks[next_block++ * 7919 % blocks.size()];
      for (size_t k = 0; k < drafts.size(); ++k) {
        const auto at = static_cast<size_t>(position - prompt) + k;
        const int32_t right = at < answer->size() ? (*answer)[at] : 0;
        drafts[k] = static_cast<int64_t>(k) < block.accepted ? right : (right + 1) % static_cast<int32_t>(config.vocab_size);
        confidences[k] = block.confidences[std::min(k, block.confidences.size() - 1)];
      }
    };
    std::vector<Side> sides;
    for (const auto& [name, drafts] : modes_of(o.modes)) {
      RigOptions options;
      options.drafts = drafts;
      options.max_num_seqs = batch;
      options.pages = 4 * batch + 8;
      options.replace_drafts = play_back;
      sides.push_back({name, std::make_unique<EngineRig>(slice.model.get(), slice.pool.get(), options), {}, {}, {}, {}});
    }
    std::map<std::string, uint64_t> sequences;  // so far, by side
    for (int64_t round = -1; round < o.rounds; ++round) {
      std::vector<Request> requests;
      for (int64_t i = 0; i < batch; ++i) {
        std::vector<int32_t> prompt;
        for (int64_t p = 0; p < 16; ++p)
          prompt.push_back(static_cast<int32_t>((i * 7919 + p * 31 + round * 5 + 5) % config.vocab_size));
        requests.push_back(request_of(prompt, o.tokens, 0, static_cast<uint64_t>(i), true));
      }
      std::vector<std::vector<int32_t>> want;
      for (Side& side : sides) {
        truth.clear();
        for (size_t i = 0; i < requests.size() && !want.empty(); ++i)
          truth[sequences[side.name] + i + 1] = {static_cast<int64_t>(requests[i].prompt.size()), &want[i]};
        sequences[side.name] += requests.size();
        take_turn(side, requests, round, want);
      }
    }
    report_sides(sides, {{"model", "slice"},
                         {"layers", std::string(kSliceLayers) + " and 1 draft stage"},
                         {"experts", std::to_string(o.experts) + " of 384"},
                         {"backend", slice.backend->name()},
                         {"threads", std::to_string(o.threads)},
                         {"batch", std::to_string(batch)},
                         {"tokens", std::to_string(o.tokens)}});
  }
  if (!o.keep) std::filesystem::remove_all(o.directory);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("DSpark speculative decoding: acceptance, calibration, speed against plain decoding");
  app.require_subcommand(1);
  NanoOptions nano;
  nano.model = std::string(DEEPINFER_SOURCE_DIR) + "/models/nano";
  auto* accept = app.add_subcommand("acceptance", "drafts of the trained nano model, all verified");
  accept->add_option("--model", nano.model);
  accept->add_option("--suite", nano.suite, "prompts by skill (skills.jsonl)")->required()->check(CLI::ExistingFile);
  accept->add_option("--each", nano.each, "prompts of each skill")->check(CLI::Range(1, 10000));
  accept->add_option("--tokens", nano.tokens, "of an answer at most")->check(CLI::Range(2, 8192));
  accept->add_option("--longest", nano.longest, "prompt")->check(CLI::Range(1, 8192));
  accept->add_option("--threads", nano.threads)->check(CLI::Range(1, 1024));
  accept->add_option("--svg", nano.svg, "draw what the confidence head says against what is accepted");
  accept->add_option("--blocks", nano.blocks, "write every block, for `slice`");
  SpeedOptions speed;
  speed.model = nano.model;
  auto* fast = app.add_subcommand("speed", "nano, plain decoding against fixed and variable lengths");
  fast->add_option("--model", speed.model);
  fast->add_option("--suite", speed.suite)->required()->check(CLI::ExistingFile);
  fast->add_option("--batches", speed.batches)->delimiter(',');
  add_modes(fast, speed.modes);
  fast->add_option("--tokens", speed.tokens)->check(CLI::Range(2, 8192));
  fast->add_option("--rounds", speed.rounds)->check(CLI::Range(1, 1000));
  fast->add_option("--per-round", speed.per_round, "requests per sequence of the batch")->check(CLI::Range(1, 1000));
  fast->add_option("--temperature", speed.temperature)->check(CLI::Range(0.0, 2.0));
  fast->add_option("--threads", speed.threads)->check(CLI::Range(1, 1024));
  SliceOptions slice;
  auto* real = app.add_subcommand("slice", "layers at true dimensions, acceptance played back from nano");
  real->add_option("--blocks", slice.blocks, "what `acceptance --blocks` wrote")->required()->check(CLI::ExistingFile);
  real->add_option("--dir", slice.directory, "where the random checkpoint is written");
  real->add_option("--experts", slice.experts, "routed experts per layer (released: 384)")->check(CLI::Range(6, 384));
  real->add_option("--batches", slice.batches)->delimiter(',');
  add_modes(real, slice.modes);
  real->add_option("--tokens", slice.tokens)->check(CLI::Range(2, 8192));
  real->add_option("--rounds", slice.rounds)->check(CLI::Range(1, 1000));
  real->add_option("--threads", slice.threads)->check(CLI::Range(1, 1024));
  real->add_flag("--keep", slice.keep, "keep the random checkpoint for the next run");
  CLI11_PARSE(app, argc, argv);
  if (accept->parsed()) run_nano(nano);
  if (fast->parsed()) run_speed(speed);
  if (real->parsed()) run_slice(slice);
  return 0;
}
