// What SWA bounded replay costs in quality (spec/backbone §8): KL divergence of the next token, exact run || run with replay,
// over given texts, and whether facts in long prompts are still found. docs/guides/replay.md has the tables.

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "base/json_line.h"
#include "replay_lab.h"
#include "svg_plot.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kPage = kPagePositions;

struct Options {
  int64_t sessions = 4;
  int64_t length = 7000;
  int64_t needles = 32;
  uint64_t seed = 1;
  std::set<std::string> parts;  ///< empty: all
};

struct Bucket {
  const char* name;
  int64_t first, last;
};
constexpr std::array kBuckets = {Bucket{"0-7", 0, 7}, Bucket{"8-31", 8, 31}, Bucket{"32-127", 32, 127},
                                 Bucket{"128-511", 128, 511}, Bucket{"512-1023", 512, 1023}};
using Where = BenchConditions;
/// In the order in which they came.
using Cells = std::vector<std::pair<Where, Cell>>;

std::string text_of(const Where& where) {
  std::string out;
  for (const auto& [key, value] : where) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", key, value);
  return out;
}

class ReplayBench {
 public:
  ReplayBench(Lab& lab, Model& other, ThreadPool& pool, const Tokenizer& tokenizer, Options options, BenchConditions conditions)
      : lab_(lab),
        other_(other),
        pool_(pool),
        tokenizer_(tokenizer),
        options_(options),
        conditions_(std::move(conditions)),
        window_(lab.model().config().sliding_window),
        layers_(lab.model().config().num_hidden_layers),
        keep_(window_ + 2 * (lab.model().config().dspark_block_size + 1)) {}

  void run(const std::vector<SuiteText>& suite) {
    int64_t number = 0;
    for (std::vector<int32_t>& text : make_sessions(suite, options_.sessions, options_.length, options_.seed)) {
      std::fprintf(stderr, "session %ld of %ld\n", ++number, options_.sessions);
      session(std::move(text));
    }
    if (wants("needles")) needles(suite);
  }

  void report() {
    std::fprintf(stderr, "\n%-20s %-46s %7s %9s %9s %7s\n", "name", "where", "tokens", "mean KL", "p99 KL", "top 1");
    for (const auto& [name, cells] : figures_) {
      for (const auto& [where, cell] : cells) print(name, where, cell);
    }
    for (const auto& [name, work] : work_) {
      const double saved = 1 - static_cast<double>(work.run) / static_cast<double>(work.full);
      line("replay_work_saved", saved, "fraction",
           {{"variant", name}, {"row_layers", std::to_string(work.run)}, {"full", std::to_string(work.full)}});
      std::fprintf(stderr, "work saved, %s: %.3f\n", name.c_str(), saved);
    }
    for (const auto& [where, n] : needles_) {
      const auto rows = static_cast<double>(n.rows);
      BenchConditions c = {{"fact", where},
                           {"exact", fmt::format("{:.4f}", static_cast<double>(n.exact) / rows)},
                           {"rows", std::to_string(n.rows)},
                           {"lost", std::to_string(n.lost)},
                           {"won", std::to_string(n.won)}};
      line("replay_needle_accuracy", static_cast<double>(n.passed) / rows, "fraction", c);
      std::fprintf(stderr, "needle %-28s rows %4ld exact %.3f bounded %.3f lost %ld won %ld\n", where.c_str(), n.rows,
                   static_cast<double>(n.exact) / rows, static_cast<double>(n.passed) / rows, n.lost, n.won);
    }
  }

  /// Mean KL by distance from the hit, a line per length of the replay, and by turn, a line per variant.
  void plot(const std::string& distance_file, const std::string& turn_file) const;

 private:
  struct Work {
    int64_t run = 0, full = 0;
  };
  struct Needles {
    int64_t rows = 0, exact = 0, passed = 0, lost = 0, won = 0;
  };

  void line(const char* name, double value, const char* unit, const BenchConditions& more) {
    BenchConditions all = conditions_;
    all.insert(all.end(), more.begin(), more.end());
    print_bench_line(stdout, name, value, unit, std::nullopt, all);
  }
  void print(const std::string& name, const Where& where, const Cell& cell) {
    Where c = where;
    c.emplace_back("tokens", std::to_string(cell.count()));
    line((name + "_kl_mean").c_str(), cell.mean(), "nats", c);
    line((name + "_kl_p99").c_str(), cell.percentile(0.99), "nats", c);
    line((name + "_same_greedy_token").c_str(), cell.same_top(), "fraction", c);
    std::fprintf(stderr, "%-20s %-46s %7ld %9.5f %9.4f %7.4f\n", name.c_str(), text_of(where).c_str(), cell.count(), cell.mean(),
                 cell.percentile(0.99), cell.same_top());
  }

  int64_t decoder_start(int64_t prompt, int64_t from) const { return std::max({int64_t{0}, prompt - keep_, from}); }
  int64_t replay_start(int64_t hit) const { return std::max<int64_t>(0, hit - window_); }
  Cell& cell(const std::string& name, const Where& where) {
    Cells& cells = figures_[name];
    for (auto& [key, cell] : cells) {
      if (key == where) return cell;
    }
    return cells.emplace_back(where, Cell()).second;
  }
  void by_distance(const std::string& name, const Where& where, int64_t zero, const std::vector<Distance>& distances) {
    for (const Bucket& b : kBuckets) {
      Where key = where;
      key.emplace_back("distance", b.name);
      for (const Distance& d : distances) {
        if (d.position - zero >= b.first && d.position - zero <= b.last) cell(name, key).add(d);
      }
    }
  }
  double mean_of(const std::string& name, const Where& where) const {
    const auto cells = figures_.find(name);
    if (cells == figures_.end()) return std::nan("");
    for (const auto& [key, cell] : cells->second) {
      if (key == where) return cell.mean();
    }
    return std::nan("");
  }

  void session(std::vector<int32_t> text);
  void other_kernels(const Reference& reference);
  bool wants(const char* part) const { return options_.parts.empty() || options_.parts.contains(part); }
  void cold(Track& exact, const Reference& reference);
  void hits(Track& exact, const Reference& reference);
  void hits_and_decoder(Track& exact, const Reference& reference);
  void turns(Track& exact, const Reference& reference);
  void needles(const std::vector<SuiteText>& suite);
  void needle(const SuiteText& row, int64_t fact);
  int64_t find_fact(const SuiteText& row) const;

  Lab& lab_;
  Model& other_;
  ThreadPool& pool_;
  const Tokenizer& tokenizer_;
  const Options options_;
  const BenchConditions conditions_;
  const int64_t window_, layers_, keep_;
  std::map<int64_t, WindowSnapshot> snapshots_;  ///< of the exact run, by position
  std::map<std::string, Cells> figures_;
  std::map<std::string, Work> work_;
  std::map<std::string, Needles> needles_;
};

constexpr std::array<int64_t, 5> kKeeps = {32, 44, 64, 128, 256};
constexpr int64_t kColdStep = 512;
constexpr int64_t kTurn = 700, kTurnPrompt = 572;  ///< the rest of a turn is the answer

void ReplayBench::session(std::vector<int32_t> text) {
  std::set<int64_t> positions;
  for (int64_t n = kColdStep; n + kPage <= options_.length; n += kColdStep) {
    for (const int64_t keep : kKeeps) positions.insert(n - keep);
  }
  for (int64_t turn = 0; (turn + 1) * kTurn <= options_.length; ++turn) positions.insert(turn * kTurn + kTurnPrompt - keep_);
  const std::vector<int64_t> stops(positions.begin(), positions.end());
  snapshots_.clear();
  Track exact(lab_.model(), options_.length);
  const auto save = [&](int64_t position) { exact.state().save_window(snapshots_[position]); };
  const Reference reference = lab_.reference(exact, std::move(text), stops, save);
  std::fprintf(stderr, "  %.3f nats a token\n", reference.nll);
  if (wants("kernels")) other_kernels(reference);
  if (wants("cold")) cold(exact, reference);
  if (wants("hits")) hits(exact, reference);
  if (wants("answers")) hits_and_decoder(exact, reference);
  if (wants("turns")) turns(exact, reference);
}

// Two correct programs differ, too: the same exact run with other kernels, at the positions that are judged elsewhere.
void ReplayBench::other_kernels(const Reference& reference) {
  Lab lab(other_, pool_);
  Track track(other_, options_.length);
  for (const Distance& d : lab.compare(track, reference, 0, options_.length)) {
    cell("replay_other_kernels", {{"position", "all"}}).add(d);
    const int64_t range = d.position / 1024 * 1024;
    if (d.position >= kPage) cell("replay_other_kernels", {{"position", fmt::format("{}-{}", range, range + 1023)}}).add(d);
    // The last logits of a turn's prompt and all but the last of its answer.
    if ((d.position + 1) % kTurn >= kTurnPrompt)
      cell("replay_other_kernels", {{"turn", std::to_string(d.position / kTurn + 1)}}).add(d);
  }
}

// Nothing cached. Only the last tokens of the prompt run the decoder; the distance is from the end of the prompt.
void ReplayBench::cold(Track& exact, const Reference& reference) {
  Track track(lab_.model(), options_.length);
  for (int64_t n = kColdStep; n + kPage <= options_.length; n += kColdStep) {
    for (const int64_t keep : kKeeps) {
      track.restore(exact, reference.tokens, without_decoder(snapshots_.at(n - keep)));
      by_distance("replay_cold", {{"keep", std::to_string(keep)}}, n - 1, lab_.compare(track, reference, n - 1, n - 1 + kPage));
    }
  }
}

// A hit at each page boundary (at each fourth for other lengths than the window's), windows rebuilt from so many tokens; all
// layers run. The distance is from the hit.
void ReplayBench::hits(Track& exact, const Reference& reference) {
  Track track(lab_.model(), options_.length);
  const int64_t enough = (window_ - 1) * layers_;
  for (int64_t hit = kPage; hit + kPage <= options_.length; hit += kPage) {
    for (const int64_t replay : {int64_t{0}, window_, 2 * window_, 4 * window_, enough}) {
      if (replay == enough ? hit % (16 * kPage) != 0 : replay != window_ && hit % (4 * kPage) != 0) continue;
      track.adopt(exact, reference.tokens, hit, std::max<int64_t>(0, hit - replay));
      const int64_t end = std::min(options_.length, hit + (replay == window_ && hit % (2 * kPage) == 0 ? 1024
                                                           : replay == enough                          ? 64
                                                                                                       : 512));
      const auto distances = lab_.compare(track, reference, hit, end);
      if (replay < enough) {
        by_distance("replay_hit", {{"replay", std::to_string(replay)}}, hit, distances);
        if (replay != window_) continue;
        for (const Distance& d : std::span(distances).first(kPage))
          cell("replay_hit_at", {{"hit", fmt::format("{}-{}", hit / 1024 * 1024, hit / 1024 * 1024 + 1023)}}).add(d);
        continue;
      }
      for (const Distance& d : distances) {
        if (d.kl > 1e-6 || !d.same_top) fail(fmt::format("hit {}: KL {} behind a replay of exact length", hit, d.kl));
      }
    }
  }
}

// As the engine does it: a hit, then a prompt that ends so many tokens later, of which the end runs the decoder.
void ReplayBench::hits_and_decoder(Track& exact, const Reference& reference) {
  Track track(lab_.model(), options_.length);
  for (int64_t hit = 2 * kPage; hit + 4 * kPage <= options_.length; hit += 4 * kPage) {
    const int64_t from = replay_start(hit);
    for (const int64_t suffix : {8, 32, 128, 400}) {
      for (const bool compact : {false, true}) {
        const int64_t prompt = hit + suffix;
        track.adopt(exact, reference.tokens, hit, from);
        if (compact && !track.state().set_decoder_start(decoder_start(prompt, from)).ok()) fail("decoder start refused");
        for (const Distance& d : lab_.compare(track, reference, prompt - 1, prompt - 1 + 64))
          cell("replay_hit_answer", {{"decoder", compact ? "compact" : "off"}, {"suffix", std::to_string(suffix)}}).add(d);
      }
    }
  }
}

// Ten turns: each hits the pages that the turns before have left, replays, answers, and leaves its own.
void ReplayBench::turns(Track& exact, const Reference& reference) {
  struct Variant {
    const char* name;
    bool reuse, compact, hit;
  };
  for (const Variant v :
       {Variant{"bounded", true, true, true}, Variant{"bounded, decoder off", true, false, true},
        Variant{"bounded, exact pages", false, true, true}, Variant{"cold, decoder compact", false, true, false}}) {
    Track tracks[] = {Track(lab_.model(), options_.length), Track(lab_.model(), options_.length)};
    Work& work = work_[fmt::format("ten turns, {}", v.name)];
    lab_.take_row_layers();
    for (int64_t turn = 0; (turn + 1) * kTurn <= options_.length; ++turn) {
      Track& track = tracks[turn % 2];
      const Track& before = v.reuse && turn > 0 ? tracks[(turn + 1) % 2] : exact;
      const int64_t prompt = turn * kTurn + kTurnPrompt;
      const int64_t end = (turn + 1) * kTurn;
      if (v.hit) {
        // The last token of an answer does not run.
        const int64_t hit = std::max<int64_t>(0, turn * kTurn - 1) / kPage * kPage;
        track.adopt(before, reference.tokens, hit, replay_start(hit));
        if (v.compact && !track.state().set_decoder_start(decoder_start(prompt, replay_start(hit))).ok()) fail("decoder start");
      } else {
        track.restore(exact, reference.tokens, without_decoder(snapshots_.at(prompt - keep_)));
        work.run += (prompt - keep_) * lab_.model().config().first_decoder_layer();
      }
      for (const Distance& d : lab_.compare(track, reference, prompt - 1, end - 1))
        cell("replay_turns", {{"variant", v.name}, {"turn", std::to_string(turn + 1)}}).add(d);
      work.full += (end - 1) * layers_;
    }
    work.run += lab_.take_row_layers();
  }
}

/// The last token of the one place in the prompt that has the answer's value; -1 if there is none, or more.
int64_t ReplayBench::find_fact(const SuiteText& row) const {
  std::string value = tokenizer_.decode(row.answer);
  if (const size_t thought = value.find("</think>"); thought != std::string::npos) value.erase(0, thought + 8);
  value.resize(std::min(value.size(), value.find("<｜end")));
  std::string text;
  std::vector<size_t> ends;
  for (const int32_t id : row.prompt) {
    text += tokenizer_.decode(std::span(&id, 1));
    ends.push_back(text.size());
  }
  const auto letter = [&](size_t i) { return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0; };
  int64_t found = -1;
  for (size_t at = text.find(value); at != std::string::npos && !value.empty(); at = text.find(value, at + 1)) {
    if ((at > 0 && letter(at - 1)) || letter(at + value.size())) continue;
    if (found >= 0) return -1;
    found = std::lower_bound(ends.begin(), ends.end(), at + value.size()) - ends.begin();
  }
  return found;
}

void ReplayBench::needles(const std::vector<SuiteText>& suite) {
  std::map<std::string, int64_t> taken;
  for (const SuiteText& row : suite) {
    if (!row.skill.starts_with("recall_")) continue;
    const int64_t most = row.prompt.size() > 1500 ? options_.needles / 3 : options_.needles;
    if (taken[row.skill] == most) continue;
    const int64_t fact = find_fact(row);
    if (fact < 0) continue;
    ++taken[row.skill];
    needle(row, fact);
  }
  for (const auto& [skill, count] : taken)
    std::fprintf(stderr, "%s: %ld rows with one place of the fact\n", skill.c_str(), count);
}

void ReplayBench::needle(const SuiteText& row, int64_t fact) {
  std::vector<int32_t> text = row.prompt;
  text.insert(text.end(), row.answer.begin(), row.answer.end());
  const auto prompt = static_cast<int64_t>(row.prompt.size());
  const auto end = static_cast<int64_t>(text.size()) - 1;
  const int64_t cut = std::max<int64_t>(0, prompt - keep_) / 2 * 2;
  Track exact(lab_.model(), end + 1);
  WindowSnapshot snapshot;
  const Reference reference = lab_.reference(exact, std::move(text), std::span(&cut, cut > 0 ? 1 : 0),
                                             [&](int64_t) { exact.state().save_window(snapshot); });
  const auto vocab = static_cast<size_t>(lab_.model().config().vocab_size);
  bool right = true;
  for (int64_t p = prompt - 1; p < end; ++p) {
    const auto at = reference.logprobs.begin() + p * static_cast<int64_t>(vocab);
    right = right && std::max_element(at, at + static_cast<int64_t>(vocab)) - at == reference.tokens[static_cast<size_t>(p) + 1];
  }
  const auto judge = [&](Track& track, const std::string& where) {
    bool passed = true;
    for (const Distance& d : lab_.compare(track, reference, prompt - 1, end)) {
      passed = passed && d.top == reference.tokens[static_cast<size_t>(d.position) + 1];
      cell("replay_needle", {{"fact", where}}).add(d);
    }
    Needles& n = needles_[where];
    ++n.rows;
    n.exact += right ? 1 : 0;
    n.passed += passed ? 1 : 0;
    n.lost += right && !passed ? 1 : 0;
    n.won += !right && passed ? 1 : 0;
  };
  Track track(lab_.model(), end + 1);
  if (cut > 0) {
    track.restore(exact, reference.tokens, without_decoder(snapshot));
    judge(track, "no hit");
  }
  struct Place {
    int64_t behind;  ///< the hit ends so far behind the fact
    const char* name;
  };
  for (const Place place : {Place{-64, "64 after the hit"}, Place{-12, "12 after the hit"}, Place{8, "in the window, 8 before"},
                            Place{20, "in the window, 20 before"}, Place{48, "outside, 48 before"},
                            Place{128, "outside, 128 before"}, Place{512, "outside, 512 before"}}) {
    const int64_t hit = (fact + place.behind) / 2 * 2;
    if (hit < 2 || hit >= prompt) continue;
    track.adopt(exact, reference.tokens, hit, replay_start(hit));
    if (!track.state().set_decoder_start(decoder_start(prompt, replay_start(hit))).ok()) fail("decoder start refused");
    judge(track, place.name);
  }
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  if (!(out << text)) fail(path + ": cannot write");
}

void ReplayBench::plot(const std::string& distance_file, const std::string& turn_file) const {
  Plot distance;
  distance.title = "KL(exact || replay) by distance from the hit";
  distance.x_label = "tokens behind the hit (middle of the range)";
  distance.y_label = "mean KL, nats";
  int color = 0;
  for (const int64_t replay : {window_, 2 * window_, 4 * window_}) {  // without a replay the scale would show nothing else
    PlotLine l;
    l.label = fmt::format("replay {}", replay);
    l.color = color++;
    for (const Bucket& b : kBuckets) {
      const double kl = mean_of("replay_hit", {{"replay", std::to_string(replay)}, {"distance", b.name}});
      l.points.push_back({static_cast<double>(b.first + b.last + 1) / 2, kl});
    }
    distance.lines.push_back(std::move(l));
  }
  if (!distance_file.empty()) write_file(distance_file, render_svg({distance}));

  Plot turn;
  turn.title = "KL(exact || replay) of the answers, by turn of a session";
  turn.x_label = "turn";
  turn.y_label = "mean KL, nats";
  color = 0;
  for (const char* name : {"bounded", "bounded, decoder off", "bounded, exact pages", "cold, decoder compact"}) {
    PlotLine l;
    l.label = name;
    l.color = color++;
    for (int i = 1; i <= 99; ++i) {
      const double kl = mean_of("replay_turns", {{"variant", name}, {"turn", std::to_string(i)}});
      if (std::isfinite(kl)) l.points.push_back({static_cast<double>(i), kl});
    }
    turn.lines.push_back(std::move(l));
  }
  PlotLine control;
  control.label = "other kernels (control)";
  control.color = color;
  control.dashed = true;
  for (int i = 1; i <= 99; ++i) {
    const double kl = mean_of("replay_other_kernels", {{"turn", std::to_string(i)}});
    if (std::isfinite(kl)) control.points.push_back({static_cast<double>(i), kl});
  }
  turn.lines.push_back(std::move(control));
  if (!turn_file.empty()) write_file(turn_file, render_svg({turn}));
}

int run_bench(int argc, char** argv) {
  CLI::App app("What bounded replay costs in quality");
  Options o;
  std::string directory = std::string(DEEPINFER_SOURCE_DIR) + "/models/nano";
  const char* shared = std::getenv("DEEPINFER_SHARED");
  std::string suite = std::string(shared != nullptr ? shared : DEEPINFER_SOURCE_DIR "/../shared") + "/nano/skills.jsonl";
  std::string distance_file, turn_file;
  int threads = available_threads();
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--model", directory);
  app.add_option("--suite", suite, "JSON Lines: skill, prompt, answer");
  app.add_option("--sessions", o.sessions, "Texts made of the suite's rows")->check(CLI::Range(1, 1000));
  app.add_option("--session-tokens", o.length)->check(CLI::Range(1500, 100000));
  app.add_option("--needles", o.needles, "Rows of each recall skill, a third of the long ones")->check(CLI::Range(3, 1000));
  std::vector<std::string> parts;
  app.add_option("--seed", o.seed);
  app.add_option("--part", parts, "Only this; may be repeated")
      ->check(CLI::IsMember({"kernels", "cold", "hits", "answers", "turns", "needles"}))
      ->allow_extra_args(false);
  app.add_option("--svg-distance", distance_file);
  app.add_option("--svg-turns", turn_file);
  CLI11_PARSE(app, argc, argv);
  o.parts.insert(parts.begin(), parts.end());

  ThreadPool pool(threads);
  const auto tokenizer = must(Tokenizer::Load(directory + "/tokenizer.json"));
  const auto checkpoint = must(Checkpoint::Open(directory));
  const auto backend = make_cpu_backend(&pool);
  ::setenv("DEEPINFER_CPU_KERNELS", "portable", 1);
  const auto portable = make_cpu_backend(&pool);
  const auto model = must(Model::Create(checkpoint, make_engram_token_map(*tokenizer).map, backend.get()));
  const auto other = must(Model::Create(checkpoint, make_engram_token_map(*tokenizer).map, portable.get()));
  const ModelConfig& c = model->config();
  const BenchConditions conditions = {{"model", "nano"},
                                      {"backend", backend->name()},
                                      {"window", std::to_string(c.sliding_window)},
                                      {"layers", std::to_string(c.num_hidden_layers)},
                                      {"first_decoder_layer", std::to_string(c.first_decoder_layer())},
                                      {"sessions", fmt::format("{} of {} tokens", o.sessions, o.length)},
                                      {"seed", std::to_string(o.seed)}};
  Lab lab(*model, pool);
  ReplayBench bench(lab, *other, pool, *tokenizer, o, conditions);
  bench.run(read_suite(suite));
  bench.report();
  bench.plot(distance_file, turn_file);
  return 0;
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) { return deepinfer::bench::run_bench(argc, argv); }
