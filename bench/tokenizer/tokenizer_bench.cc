// Speed of the tokenizer on one thread, one JSON line per figure.
//   tokenizer_bench --tokenizer FILE [--seconds S] [--corpus NAME] [--write DIR] [english texts...]
// The ceiling of encode and decode is the speed at which the same bytes are checked to be UTF-8 in the same run: what it costs
// to look at every byte once. --write stores the documents, one JSON array per corpus, for bench/tokenizer/peers.mjs.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/build_info.h"
#include "corpus.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace {

using deepinfer::Tokenizer;
using Clock = std::chrono::steady_clock;

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Bytes per second: passes over the corpus until `seconds` are over, the median pass counts.
double median_rate(double seconds, size_t bytes, const std::function<void()>& pass) {
  std::vector<double> rates;
  pass();
  const Clock::time_point begin = Clock::now();
  while (rates.empty() || seconds_since(begin) < seconds) {
    const Clock::time_point start = Clock::now();
    pass();
    rates.push_back(static_cast<double>(bytes) / seconds_since(start));
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end());
  return rates[rates.size() / 2];
}

void print(const std::string& name, double value, const std::string& unit, double ceiling, const nlohmann::json& conditions) {
  nlohmann::json line{{"name", name},
                      {"value", value},
                      {"unit", unit},
                      {"ceiling", nullptr},
                      {"fraction", nullptr},
                      {"conditions", conditions},
                      {"commit", deepinfer::build_commit()}};
  if (ceiling > 0) {
    line["ceiling"] = ceiling;
    line["fraction"] = value / ceiling;
  }
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Speed of the tokenizer"};
  std::string file, only, write;
  double seconds = 2;
  std::vector<std::string> texts;
  app.add_option("--tokenizer", file, "tokenizer.json")->required();
  app.add_option("--seconds", seconds, "for each figure");
  app.add_option("--corpus", only, "english, chinese or code; all if absent");
  app.add_option("--write", write, "store the corpora in this folder and end");
  app.add_option("texts", texts, "more English text files");
  CLI11_PARSE(app, argc, argv);

  const auto corpora = deepinfer::bench::make_corpora(4 << 20, texts);
  if (!write.empty()) {
    for (const auto& corpus : corpora) std::ofstream(write + "/" + corpus.name + ".json") << nlohmann::json(corpus.documents);
    return 0;
  }
  const Clock::time_point start = Clock::now();
  const auto loaded = Tokenizer::Load(file);
  const double load = seconds_since(start);
  if (!loaded) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", loaded.error().message().c_str());
    return 1;
  }
  const Tokenizer& tokenizer = **loaded;
  nlohmann::json conditions{{"cpu", cpu_model()}, {"threads", 1}, {"vocabulary", tokenizer.vocab_size()}};
  if (only.empty()) {
    print("tokenizer load", load * 1e3, "ms", 0, conditions);
    const Clock::time_point map_start = Clock::now();
    const auto map = make_engram_token_map(tokenizer);
    conditions["keys"] = map.compressed_vocab_size;
    print("engram token map", seconds_since(map_start) * 1e3, "ms", 0, conditions);
    conditions.erase("keys");
  }
  for (const auto& corpus : corpora) {
    if (!only.empty() && corpus.name != only) continue;
    size_t count = 0, sink = 0;
    std::vector<std::vector<int32_t>> ids;
    for (const std::string& document : corpus.documents) {
      ids.push_back(tokenizer.encode(document));
      count += ids.back().size();
      if (tokenizer.decode(ids.back()) != document) {
        std::fprintf(stderr, "tokenizer_bench: %s does not decode to itself\n", corpus.name.c_str());
        return 1;
      }
    }
    const double ceiling = median_rate(seconds / 4, corpus.bytes, [&] {
      for (const std::string& document : corpus.documents) sink += deepinfer::utf8_valid_prefix(document);
    });
    const double encode = median_rate(seconds, corpus.bytes, [&] {
      for (const std::string& document : corpus.documents) sink += tokenizer.encode(document).size();
    });
    const double decode = median_rate(seconds / 2, corpus.bytes, [&] {
      for (const auto& document : ids) sink += tokenizer.decode(document).size();
    });
    conditions["bytes"] = corpus.bytes;
    conditions["documents"] = corpus.documents.size();
    conditions["bytes_per_token"] = static_cast<double>(corpus.bytes) / static_cast<double>(count);
    conditions["ceiling"] = "UTF-8 check of the same bytes";
    print("encode " + corpus.name, encode / 1e6, "MB/s", ceiling / 1e6, conditions);
    print("decode " + corpus.name, decode / 1e6, "MB/s", ceiling / 1e6, conditions);
    if (sink == 0) return 1;
  }
  return 0;
}
