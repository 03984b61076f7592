// What the commands do when all is well.

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/build_info.h"
#include "checkpoint/temp_dir.h"
#include "e2e/run_program.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::nano_dir;
using testing::ProgramOptions;
using testing::run_program;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

Arguments generate(Arguments more) {
  Arguments all = {"generate", "-m", nano_dir()};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const Arguments kStory = {"-p", "Tell me a story about a fox and a lamp.", "--temperature", "0", "-n", "60"};

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Json generate_json(const Arguments& more) {
  const auto run = run_program(generate(more + Arguments{"--json"}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1);
  return Json::parse(run.out);
}

TEST(Generate, TellsAStoryTheSameEveryTime) {
  const auto first = run_program(generate(kStory));
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("fox"), std::string::npos) << first.out;
  EXPECT_EQ(first.out.find("｜"), std::string::npos) << first.out;
  for (const char* item : {"load ", "prompt ", "generated ", "weights ", "memory ", "seed "}) {
    EXPECT_NE(first.err.find(item), std::string::npos) << first.err;
  }
  for (const char* threads : {"1", "2", "3"}) {
    EXPECT_EQ(run_program(generate(kStory + Arguments{"--threads", threads, "--no-perf"})).out, first.out) << threads;
  }
  for (const Arguments& more : {Arguments{"--no-async"}, {"--replay", "bounded"}, {"--kv-cache-memory", "1MiB"}})
    EXPECT_EQ(run_program(generate(kStory + more)).out, first.out) << more[0];  // the prompt is shorter than the decoder's end
  // Neither does the cutting of the prompt show.
  EXPECT_EQ(run_program(generate(kStory + Arguments{"--prefill-chunk", "3"})).out, first.out);
  EXPECT_EQ(run_program(generate(kStory + Arguments{"--chat"})).out, first.out);
}

TEST(Generate, Json) {
  const Json json = generate_json(kStory + Arguments{"--seed", "18446744073709551615"});
  const auto streamed = run_program(generate(kStory + Arguments{"--no-perf"}));
  EXPECT_EQ(streamed.err, "");
  EXPECT_EQ(json["text"], streamed.out);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["token_ids"].size(), 60u);
  EXPECT_EQ(json["usage"]["completion_tokens"], 60);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 15);
  EXPECT_EQ(json["seed"].get<uint64_t>(), 18446744073709551615u);
  EXPECT_GT(json["timings"]["decode_tokens_per_second"].get<double>(), 0);
  EXPECT_GT(json["timings"]["load_ms"].get<double>(), 0);
}

// Each run is a process of its own.
TEST(Generate, AStoreKeepsThePrefixForTheNextProcess) {
  std::string story;
  for (int i = 0; i < 40; ++i) story += "The fox carried the lamp through the quiet wood. ";
  const Arguments prompt = {"-p", story, "-n", "12", "--seed", "7"};
  const Json cold = generate_json(prompt);
  EXPECT_FALSE(cold["usage"].contains("deepinfer"));
  const Arguments with_store = prompt + Arguments{"--kv-store", testing::scratch_dir("store") + "/kv", "--no-kv-cut-over"};
  const Json first = generate_json(with_store), second = generate_json(with_store);
  EXPECT_EQ(first["token_ids"], cold["token_ids"]);
  EXPECT_EQ(second["token_ids"], cold["token_ids"]);
  EXPECT_EQ(first["usage"]["deepinfer"]["cache"]["miss"], "not_stored");
  const Json& cache = second["usage"]["deepinfer"]["cache"];
  EXPECT_GE(cache["tokens"]["local"].get<int64_t>(), 256) << second;
  EXPECT_EQ(cache["tokens"]["local"], second["usage"]["prompt_tokens_details"]["cached_tokens"]) << second;
  EXPECT_EQ(cache["tokens"]["device"], 0) << second;
  EXPECT_TRUE(cache["miss"].is_null()) << second;
  EXPECT_GT(cache["pulled_bytes"].get<int64_t>(), 0) << second;
  EXPECT_GT(cache["ttl_seconds"].get<double>(), 80000) << second;
}

TEST(Generate, SeedDecidesTheText) {
  const Arguments base = {"-p", "Tell me a story about a fox and a lamp.", "-n", "40"};
  const Json a = generate_json(base + Arguments{"--seed", "7"});
  EXPECT_EQ(generate_json(base + Arguments{"--seed", "7", "--threads", "1"})["token_ids"], a["token_ids"]);
  EXPECT_NE(generate_json(base + Arguments{"--seed", "8"})["token_ids"], a["token_ids"]);
  // A seed that was drawn is told, and gives the same text again.
  const Json drawn = generate_json(base);
  EXPECT_EQ(generate_json(base + Arguments{"--seed", drawn["seed"].dump()})["token_ids"], drawn["token_ids"]);
}

TEST(Generate, EndsAtEosUnlessTold) {
  const Arguments base = {"-p", "What day comes after Wednesday?", "--system", "Answer briefly.", "--temperature", "0"};
  const Json stopped = generate_json(base);
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["token_ids"].back(), 1);
  EXPECT_EQ(stopped["text"].get<std::string>().find("｜"), std::string::npos);
  const Json on = generate_json(base + Arguments{"--ignore-eos", "-n", "50"});
  EXPECT_EQ(on["finish_reason"], "length");
  EXPECT_EQ(on["token_ids"].size(), 50u);
}

TEST(Generate, RawShowsSpecialsAndReadsThem) {
  const std::string prompt =
      "<｜begin▁of▁sentence｜><｜System｜>Answer briefly.<｜User｜>What day comes after Wednesday?<｜Assistant｜></think>";
  const Json raw = generate_json({"--raw", "-p", prompt, "--temperature", "0"});
  const Json chat = generate_json({"-p", "What day comes after Wednesday?", "--system", "Answer briefly.", "--temperature", "0"});
  EXPECT_EQ(raw["token_ids"], chat["token_ids"]);
  EXPECT_EQ(raw["usage"]["prompt_tokens"], 14);
  EXPECT_EQ(raw["text"], chat["text"].get<std::string>() + "<｜end▁of▁sentence｜>");
  // The start token is added where it is missing; spelled by a user of a chat it is text.
  const std::string rest = prompt.substr(std::string("<｜begin▁of▁sentence｜>").size());
  EXPECT_EQ(generate_json({"--raw", "-p", rest, "--temperature", "0"})["token_ids"], raw["token_ids"]);
  EXPECT_GT(generate_json({"-p", prompt, "-n", "1"})["usage"]["prompt_tokens"], 30);
}

TEST(Generate, Thinking) {
  const Arguments base = {"-p", "What is 123 + 456?", "--temperature", "0", "--think"};
  const Json json = generate_json(base);
  EXPECT_NE(json["text"].get<std::string>().find("</think>"), std::string::npos) << json["text"];
  // The number of the effort is one token per digit.
  EXPECT_EQ(generate_json(base + Arguments{"--reasoning-effort", "max", "-n", "1"})["usage"]["prompt_tokens"].get<int>(),
            generate_json(base + Arguments{"--reasoning-effort", "5", "-n", "1"})["usage"]["prompt_tokens"].get<int>() + 2);
}

TEST(Generate, AnswersInAForm) {
  const Arguments ask = {"-p", "Tell me about a fox.", "--no-perf", "--seed", "3"};
  const auto choice = run_program(generate(ask + Arguments{"--choice", "yes", "--choice", "no"}));
  EXPECT_EQ(choice.code, 0) << choice.err;
  EXPECT_TRUE(choice.out == "yes" || choice.out == "no") << choice.out;
  const std::string schema =
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":1,"maximum":9}},"required":["n"],"additionalProperties":false})";
  const std::string file = testing::scratch_dir("schema") + "/schema.json";
  std::ofstream(file) << schema;
  const auto given = run_program(generate(ask + Arguments{"--json-schema", schema}));
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_TRUE(Json::parse(given.out)["n"].is_number_integer()) << given.out;
  EXPECT_EQ(run_program(generate(ask + Arguments{"--json-schema", "@" + file})).out, given.out);
  EXPECT_EQ(run_program(generate(ask + Arguments{"--regex", "fox(-[0-9]){2}"})).out.substr(0, 4), "fox-");
  EXPECT_EQ(run_program(generate(ask + Arguments{"--grammar", "root ::= \"a\" \"b\""})).out, "ab");
  const Arguments list = {"--json-schema", R"({"type":"array","items":{"type":"boolean"},"maxItems":2,"uniqueItems":true})"};
  const auto refused = run_program(generate(ask + list));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("#/uniqueItems"), std::string::npos) << refused.err;
  const auto loose = run_program(generate(ask + list + Arguments{"--no-strict"}));
  EXPECT_EQ(loose.code, 0) << loose.err;
  EXPECT_TRUE(Json::parse(loose.out).is_array()) << loose.out;
  EXPECT_NE(loose.err.find("not enforced: #/uniqueItems"), std::string::npos) << loose.err;
}

TEST(Generate, PromptFromStandardInputAndFile) {
  const Arguments rest = {"--temperature", "0", "-n", "20", "--no-perf"};
  const auto given = run_program(generate(rest + Arguments{"-p", "Tell me a story."}));
  EXPECT_EQ(run_program(generate(rest), {.input = "Tell me a story.\n"}).out, given.out);
  EXPECT_EQ(run_program(generate(rest), {.input = "Tell me a story."}).out, given.out);
  const std::string file = testing::scratch_dir("prompt") + "/prompt.txt";
  std::ofstream(file) << "Tell me a story.\n";
  EXPECT_EQ(run_program(generate(rest + Arguments{"-f", file})).out, given.out);
}

TEST(Generate, ContextBoundsTheText) {
  const Json json = generate_json({"-p", "Tell me a story.", "--ignore-eos", "--max-model-len", "30", "-n", "1000"});
  EXPECT_EQ(json["usage"]["total_tokens"], 30);
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST(Generate, InterruptKeepsWhatWasWritten) {
  const auto run =
      run_program(generate({"-p", "Tell me a story.", "--ignore-eos", "-n", "8000"}), {.signal_at_first_output = SIGINT});
  EXPECT_EQ(run.code, 130) << run.err;
  EXPECT_FALSE(run.out.empty());
  EXPECT_NE(run.err.find("interrupted"), std::string::npos) << run.err;
}

TEST(Generate, ReaderThatGoesAwayEndsTheText) {
  const auto run =
      run_program(generate({"-p", "Tell me a story.", "--ignore-eos", "-n", "8000"}), {.close_at_first_output = true});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.err.find("interrupted"), std::string::npos) << run.err;
}

// Weights are used where they lie, and nothing else is large.
// Nobody can be told that standard error is gone; the text is there all the same.
TEST(Generate, StandardStreamsThatAreClosedOrFull) {
  const std::vector<std::string> arguments = {"generate", "-m", nano_dir(), "-t", "1", "-p", "Hello", "-n", "5", "-s", "1"};
  const auto want = run_program(arguments);
  ASSERT_EQ(want.code, 0) << want.err;
  for (const ProgramOptions& options : {ProgramOptions{.full = true}, ProgramOptions{.closed = {STDERR_FILENO}},
                                        ProgramOptions{.closed = {STDIN_FILENO, STDERR_FILENO}}}) {
    const auto run = run_program(arguments, options);
    EXPECT_EQ(run.code, 0);
    EXPECT_EQ(run.out, want.out);
  }
  const auto mute = run_program(arguments, {.closed = {STDOUT_FILENO}});
  EXPECT_EQ(mute.code, 1);
  EXPECT_NE(mute.err.find("standard output: cannot write"), std::string::npos) << mute.err;
  const auto deaf = run_program({"generate", "-m", nano_dir()}, {.closed = {STDIN_FILENO}});
  EXPECT_EQ(deaf.code, 1);
  EXPECT_NE(deaf.err.find("standard input"), std::string::npos) << deaf.err;
  EXPECT_EQ(run_program({"generate", "-m", "/nonexistent", "-p", "x"}, {.full = true}).code, 1);
}

TEST(Generate, Memory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own memory";
#endif
  const Json json = generate_json(kStory);
  const auto& memory = json["memory"];
  EXPECT_LT(memory["peak_resident_bytes"].get<int64_t>(),
            memory["weight_bytes"].get<int64_t>() + memory["cache_bytes"].get<int64_t>() + (int64_t{64} << 20));
}

TEST(Inspect, NanoIsSound) {
  for (const char* level : {"headers", "scales", "full"}) {
    const auto run = run_program({"inspect", nano_dir(), "--verify", level});
    EXPECT_EQ(run.code, 0) << run.out;
    EXPECT_EQ(run.err, "");
  }
  const auto device = run_program({"inspect", nano_dir(), "--device", "cpu"});
  EXPECT_EQ(device.code, 0);
  EXPECT_NE(device.out.find("kernels   cpu/"), std::string::npos);
  EXPECT_NE(device.out.find("\n          "), std::string::npos) << "an operator and its kernel";
  const auto run = run_program({"inspect", nano_dir(), "--json"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(Json::parse(run.out)["problem_count"], 0);
}

TEST(Inspect, DamageGivesExitCodeOne) {
  const std::string directory = testing::copy_of_nano();
  std::filesystem::resize_file(directory + "/model-00002-of-00002.safetensors", 100000);
  const auto run = run_program({"inspect", directory});
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.out.find("model-00002"), std::string::npos) << run.out;
}

TEST(Eval, TableAndJson) {
  const std::string directory = testing::scratch_dir("suite");
  const std::string suite = directory + "/suite.jsonl";
  // Two rows whose answers are what the model says, one that is wrong from the second token on.
  const Json said = generate_json({"-p", "What day comes after Wednesday?", "--system", "Answer briefly.", "--temperature", "0"});
  const std::vector<int> prompt = {0, 4078, 1663, 3546, 49, 4079, 533, 413, 1499, 595, 2132, 66, 4080, 4082};
  Json wrong = said["token_ids"];
  wrong[1] = wrong[1].get<int>() == 7 ? 8 : 7;
  {
    std::ofstream out(suite);
    out << Json{{"skill", "chat"}, {"prompt", prompt}, {"answer", said["token_ids"]}}.dump() << "\n\n";
    out << Json{{"skill", "chat"}, {"prompt", prompt}, {"answer", wrong}}.dump() << "\n";
    out << Json{{"skill", "new"}, {"prompt", prompt}, {"answer", said["token_ids"]}}.dump();
  }
  const std::string report = directory + "/report.json";
  const auto table = run_program({"eval", "-m", nano_dir(), "--suite", suite, "--report", report});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(table.err, "");
  EXPECT_NE(table.out.find("chat                          2    50.0      84.4       -34.4"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("new                           1   100.0\n"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("average over skills           3    75.0\n"), std::string::npos) << table.out;

  const auto run = run_program({"eval", "-m", nano_dir(), "--suite", suite, "--json", "--threads", "1"});
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json["skills"]["chat"]["passed"], 1);
  EXPECT_EQ(json["skills"]["new"]["expected"], nullptr);
  std::ifstream file(report);
  EXPECT_EQ(Json::parse(file)["skills"], json["skills"]);

  const Json limited =
      Json::parse(run_program({"eval", "-m", nano_dir(), "--suite", suite, "--json", "--limit", "1", "--skill", "chat"}).out);
  EXPECT_EQ(limited["skills"].size(), 1u);
  EXPECT_EQ(limited["skills"]["chat"]["rows"], 1);
  EXPECT_EQ(limited["average"], 1.0);
}

// Hits at page boundaries: exact replay gives what a cold run gives, bounded replay runs less, and both say what they did.
TEST(Eval, HitsAndReplay) {
  const std::string suite = testing::scratch_dir("suite") + "/suite.jsonl";
  {
    std::ofstream out(suite);
    for (const int length : {400, 300, 256, 129, 128, 20}) {
      std::vector<int> prompt = {0};
      for (int i = 1; i < length; ++i) prompt.push_back(300 + i * 7 % 3000);
      out << Json{{"skill", "chat"}, {"prompt", prompt}, {"answer", {5, 6}}}.dump() << "\n";
    }
  }
  const auto eval = [&](const Arguments& more) {
    const auto run = run_program(Arguments{"eval", "-m", nano_dir(), "--suite", suite, "--json"} + more);
    EXPECT_EQ(run.code, 0) << run.err;
    return Json::parse(run.out);
  };
  const Json cold = eval({});
  EXPECT_EQ(cold["replay"]["mode"], "exact");
  EXPECT_EQ(cold["replay"]["cached_tokens"], 0);
  EXPECT_EQ(cold["replay"]["hit_before_end"], nullptr);
  const Json all = eval({"--hit", "all"});
  EXPECT_EQ(all["skills"], cold["skills"]);
  EXPECT_EQ(all["replay"]["hit_rows"], 4);
  EXPECT_EQ(all["replay"]["cached_tokens"], 384 + 256 + 128 + 128);
  EXPECT_EQ(all["replay"]["replayed_tokens"], 310 + 256 + 128 + 128);
  const Json bounded = eval({"--hit", "129", "--replay", "bounded"});
  EXPECT_EQ(bounded["replay"]["cached_tokens"], 256 + 128);
  EXPECT_EQ(bounded["replay"]["replayed_tokens"], 2 * 32);
  EXPECT_EQ(bounded["replay"]["decoder_keep_tokens"], 44);
  EXPECT_GT(bounded["replay"]["work_saved"], 0.3);
  const Json restored = eval({"--hit", "all", "--window-snapshot-memory", "1MiB"});
  EXPECT_EQ(restored["skills"], cold["skills"]);
  EXPECT_EQ(restored["replay"]["replayed_tokens"], 0);
  const auto table = run_program({"eval", "-m", nano_dir(), "--suite", suite, "--replay", "bounded"});
  EXPECT_NE(table.out.find("bounded replay, decoder compact: 0 rows with a hit"), std::string::npos) << table.out;
}

// What the README says to type.
TEST(Eval, TheSuiteBesideTheModel) {
  const auto run =
      run_program({"eval", "--model", nano_dir(), "--suite", nano_dir() + "/skills.jsonl", "--skill", "chat", "--json"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out)["skills"]["chat"]["rows"], 4) << run.out;
}

TEST(Eval, TheSharedSuite) {
  if (testing::shared_dir().empty())
    GTEST_SKIP() << "the suite is read from the shared folder ($DEEPINFER_SHARED), which is absent";
  const auto run = run_program({"eval", "-m", nano_dir(), "--suite", testing::shared_dir() + "/nano/skills.jsonl", "--limit", "2",
                                "--skill", "chat", "--skill", "copy"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("average over skills"), std::string::npos) << run.out;
}

TEST(Program, VersionAndHelp) {
  const auto version = run_program({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_NE(version.out.find(build_version()), std::string::npos);
  EXPECT_NE(version.out.find("cpu/"), std::string::npos);
  ::setenv("DEEPINFER_CPU_KERNELS", "baseline", 1);
  const auto baseline = run_program({"--version"});
  ::setenv("DEEPINFER_CPU_KERNELS", "avx999", 1);
  const auto unknown = run_program({"--version"});
  ::unsetenv("DEEPINFER_CPU_KERNELS");
  EXPECT_NE(baseline.out.find("cpu/baseline"), std::string::npos) << baseline.out;
  EXPECT_EQ(unknown.code, 1);
  EXPECT_NE(unknown.err.find("avx999"), std::string::npos) << unknown.err;
  for (const Arguments& help : {Arguments{"--help"},
                                {"generate", "--help"},
                                {"inspect", "--help"},
                                {"eval", "--help"},
                                {"cache", "--help"},
                                {"cache", "export", "--help"},
                                {"cache", "import", "--help"},
                                {"cache", "verify", "--help"}}) {
    const auto run = run_program(help);
    EXPECT_EQ(run.code, 0);
    EXPECT_EQ(run.err, "");
    EXPECT_NE(run.out.find("Example"), std::string::npos) << run.out;
  }
}

}  // namespace
}  // namespace deepinfer
