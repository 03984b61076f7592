// Speed of constraints over the maskbench sample with the 128k vocabulary, one thread: the time to compile a schema and fill its
// first mask, and the time of each mask along the valid instances. Beside it, as the ceiling, the time to copy one mask. Times of
// masks are also given in time of the processor: on a shared machine the tail of the others is that of its scheduler.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/json_line.h"
#include "grammar/support.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer::bench {
namespace {

using Clock = std::chrono::steady_clock;

double thread_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

double microseconds(Clock::time_point begin) { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); }

void print(const char* name, std::vector<double> values, double copy) {
  std::sort(values.begin(), values.end());
  for (const auto& [label, part] :
       {std::pair{"p50", 0.5}, std::pair{"p90", 0.9}, std::pair{"p99", 0.99}, std::pair{"p99.9", 0.999}, std::pair{"max", 1.0}}) {
    const double value = values[std::min(values.size() - 1, static_cast<size_t>(part * static_cast<double>(values.size())))];
    print_bench_line(stdout, name, value, "us", copy,
                     {{"percentile", label}, {"samples", std::to_string(values.size())}, {"threads", "1"}});
  }
}

int run() {
  const std::string folder = testing::public_vectors("maskbench-sample");
  const auto tokenizer = testing::official_tokenizer("v4.1");
  const auto vocabulary = testing::large_vocabulary();
  if (folder.empty() || vocabulary == nullptr) {
    std::fprintf(stderr, "needs maskbench-sample (DEEPINFER_PUBLIC_VECTORS) and npm install in tests/e2e\n");
    return 1;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<uint32_t> mask(vocabulary->mask_words());
  std::vector<uint32_t> copy_of(mask.size());
  auto begin = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    std::memcpy(copy_of.data(), mask.data(), mask.size() * 4);
    asm volatile("" : : "r"(copy_of.data()) : "memory");
  }
  const double copy = microseconds(begin) / 1000;
  std::vector<double> compile_times;
  std::vector<double> mask_times;
  std::vector<double> mask_processor_times;
  for (const auto& path : paths) {
    if (path.extension() != ".json") continue;
    const auto file = testing::read_json_file(path);
    const std::string schema = file["schema"].dump();
    begin = Clock::now();
    const auto made = compile_grammar(grammar::JsonSchemaSpec{schema}, vocabulary);
    if (!made) continue;
    grammar::GrammarMatcher(*made).fill_mask(mask);
    compile_times.push_back(microseconds(begin));
    // Spelling the instances warms nothing: it runs on a grammar of its own.
    const auto spelling = compile_grammar(grammar::JsonSchemaSpec{schema}, vocabulary);
    for (const auto& test : file["tests"]) {
      if (!test["valid"].get<bool>()) continue;
      const auto text = testing::spelling_of(*spelling, file["schema"], test["data"]);
      if (!text) continue;
      grammar::GrammarMatcher matcher(*made);
      for (const int32_t id : tokenizer->encode(*text)) {
        const double processor = thread_microseconds();
        begin = Clock::now();
        matcher.fill_mask(mask);
        mask_times.push_back(microseconds(begin));
        mask_processor_times.push_back(thread_microseconds() - processor);
        if (mask_processor_times.back() > 500) {
          std::fprintf(stderr, "%.0f us, %.0f of the processor, in %s before token %d \"%s\"\n", mask_times.back(),
                       mask_processor_times.back(), path.filename().c_str(), id, std::string(vocabulary->bytes(id)).c_str());
        }
        if (!matcher.accept(id)) break;
      }
    }
  }
  print("grammar_compile_to_first_mask", compile_times, copy);
  print("grammar_mask", mask_times, copy);
  print("grammar_mask_processor_time", mask_processor_times, copy);
  return 0;
}

}  // namespace
}  // namespace deepinfer::bench

int main() { return deepinfer::bench::run(); }
