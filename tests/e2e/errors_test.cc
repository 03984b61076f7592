// Start-up errors: one line on standard error that names what is wrong, exit code 1, nothing on standard output.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/temp_dir.h"
#include "e2e/run_program.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::nano_dir;
using testing::run_program;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

void expect_error(const Arguments& arguments, const std::vector<std::string>& named, const std::string& input = {}) {
  std::string line;
  for (const std::string& a : arguments) line += a.substr(0, 60) + " ";
  SCOPED_TRACE(line);
  const auto run = run_program(arguments, {.input = input});
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_TRUE(run.err.starts_with("deepinfer: ") && run.err.ends_with('\n')) << run.err;
  for (const std::string& part : named) EXPECT_NE(run.err.find(part), std::string::npos) << run.err << "should name " << part;
}

TEST(Errors, Flags) {
  const std::string m = nano_dir();
  const std::string unreadable = testing::scratch_dir("absent") + "/absent.txt";
  const std::pair<Arguments, std::vector<std::string>> cases[] = {
      {{}, {"subcommand"}},
      {{"fly"}, {"'fly'"}},
      {{"--fly"}, {"'--fly'"}},
      {{"generate", "-p", "x"}, {"--model"}},
      {{"generate", "-m", m, "-p", "x", "--fly"}, {"--fly"}},
      {{"generate", "-m", m, "-p", "x", "y"}, {"y"}},
      {{"generate", "-m", m, "-p", "x", "-f", "y"}, {"--prompt", "--prompt-file"}},
      {{"generate", "-m", m, "-p", "x", "--raw", "--chat"}, {"--raw", "--chat"}},
      {{"generate", "-m", m, "-p", "x", "--raw", "--system", "s"}, {"--raw", "--system"}},
      {{"generate", "-m", m, "-p", "x", "--raw", "--think"}, {"--raw", "--think"}},
      {{"generate", "-m", m, "-p", "x", "--reasoning-effort", "5"}, {"--think"}},
      {{"generate", "-m", m, "-p", "x", "--think", "--reasoning-effort", "101"}, {"--reasoning-effort", "101", "100"}},
      {{"generate", "-m", m, "-p", "x", "--temperature", "nan"}, {"temperature", "nan"}},
      {{"generate", "-m", m, "-p", "x", "--temperature", "-1"}, {"temperature", "-1"}},
      {{"generate", "-m", m, "-p", "x", "--temperature", "hot"}, {"--temperature", "hot"}},
      {{"generate", "-m", m, "-p", "x", "--top-p", "0"}, {"top_p", "0"}},
      {{"generate", "-m", m, "-p", "x", "--min-p", "1.5"}, {"min_p", "1.5"}},
      {{"generate", "-m", m, "-p", "x", "--top-k", "1.5"}, {"--top-k", "1.5"}},
      {{"generate", "-m", m, "-p", "x", "--seed", "-1"}, {"--seed", "-1"}},
      {{"generate", "-m", m, "-p", "x", "--seed", "18446744073709551616"}, {"--seed", "18446744073709551616"}},
      {{"generate", "-m", m, "-p", "x", "--seed", ""}, {"--seed"}},
      {{"generate", "-m", m, "-p", "x", "--max-tokens", "0"}, {"--max-tokens", "0"}},
      {{"generate", "-m", m, "-p", "x", "--max-tokens", "99999999999999999999"}, {"--max-tokens"}},
      {{"generate", "-m", m, "-p", "x", "--threads", "0"}, {"--threads", "0"}},
      {{"generate", "-m", m, "-p", "x", "--threads", "100000"}, {"--threads", "100000"}},
      {{"generate", "-m", m, "-p", "x", "--device", "tpu"}, {"--device", "--backend", "tpu"}},
      {{"generate", "-m", m, "-p", "x", "--prefill-chunk", "0"}, {"--prefill-chunk"}},
      {{"inspect"}, {"model"}},
      {{"inspect", m, "--verify", "some"}, {"--verify", "some"}},
      {{"inspect", "/nonexistent"}, {"/nonexistent"}},
      {{"eval", "-m", m}, {"--suite"}},
      {{"eval", "-m", m, "--suite", unreadable}, {unreadable}},
      {{"eval", "-m", m, "--suite", "x", "--hit", "0"}, {"--hit", "0", "none", "all"}},
      {{"eval", "-m", m, "--suite", "x", "--hit", "some"}, {"--hit", "some"}},
      {{"generate", "-m", m, "-p", "x", "--replay", "some"}, {"--replay", "some"}},
      {{"generate", "-m", m, "-p", "x", "--kv-cache-memory", "1"}, {"1"}},
      {{"generate", "-m", m, "-p", "x", "--max-num-seqs", "1"}, {"--max-num-seqs"}},
      {{"generate", "-m", m, "-f", unreadable}, {unreadable}},
  };
  for (const auto& [arguments, named] : cases) expect_error(arguments, named);
}

TEST(Errors, Prompts) {
  const Arguments base = {"generate", "-m", nano_dir()};
  const auto with = [&](const Arguments& more) {
    Arguments all = base;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_error(with({"-p", ""}), {"--prompt", "empty"});
  expect_error(base, {"standard input", "empty"});
  expect_error(base, {"standard input", "empty"}, "\n");
  expect_error(base, {"standard input", "UTF-8", "byte 5"}, "hello\xc3(");
  expect_error(with({"-p", "ab\xff"}), {"--prompt", "UTF-8", "byte 2"});
  expect_error(with({"-p", "x", "--system", "\xc3"}), {"--system", "UTF-8", "byte 0"});
  expect_error(with({"-p", "Tell me a story.", "--max-model-len", "5"}), {"5", "--max-model-len"});
  std::string large;
  for (int i = 0; i < 9000; ++i) large += " 1";
  const std::string file = testing::scratch_dir("large") + "/prompt.txt";
  std::ofstream(file) << large;
  expect_error(with({"-f", file}), {"8192", "max_position_embeddings"});
}

void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  std::ofstream(path, std::ios::binary) << text.replace(at, from.size(), to);
}

/// Writes a NaN into the first scale tensor of the shard.
void put_nan_scale(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), 8);
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  const Json tensors = Json::parse(header);
  for (const auto& [name, tensor] : tensors.items()) {
    if (name == "__metadata__" || tensor["dtype"] != "F8_E8M0") continue;
    file.seekp(static_cast<std::streamoff>(8 + length + tensor["data_offsets"][0].get<uint64_t>()));
    file.put('\xff');
    return;
  }
  FAIL() << "no scale in " << path;
}

TEST(Errors, Checkpoints) {
  const std::string shard = "/model-00002-of-00002.safetensors";
  struct Case {
    std::function<void(const std::string&)> damage;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {[](const std::string& d) { std::filesystem::remove(d + "/config.json"); }, {"config.json"}},
      {[](const std::string& d) { std::filesystem::remove(d + "/tokenizer.json"); }, {"tokenizer.json"}},
      {[&](const std::string& d) { std::filesystem::remove(d + shard); }, {shard}},
      {[&](const std::string& d) { std::filesystem::resize_file(d + shard, 200000); }, {shard}},
      {[&](const std::string& d) { std::filesystem::resize_file(d + shard, 0); }, {shard}},
      {[&](const std::string& d) { put_nan_scale(d + shard); }, {"scale"}},
      {[](const std::string& d) { replace_in(d + "/config.json", "\"hidden_size\":", "\"hidden_size\": -1, \"x\":"); },
       {"config.json", "hidden_size", "-1"}},
      {[](const std::string& d) { replace_in(d + "/config.json", "\"vocab_size\": 4096", "\"vocab_size\": \"many\""); },
       {"config.json", "vocab_size"}},
      {[](const std::string& d) { replace_in(d + "/config.json", "{", ""); }, {"config.json"}},
      {[](const std::string& d) { replace_in(d + "/tokenizer.json", "{", "["); }, {"tokenizer.json"}},
      {[](const std::string& d) { replace_in(d + "/tokenizer.json", "<｜User｜>", "<｜Abuser｜>"); }, {"<｜User｜>"}},
  };
  for (const Case& c : cases) {
    const std::string directory = testing::copy_of_nano();
    c.damage(directory);
    expect_error({"generate", "-m", directory, "-p", "x", "-n", "1"}, c.named);
  }
  expect_error({"generate", "-m", "/nonexistent", "-p", "x"}, {"/nonexistent"});
  expect_error({"generate", "-m", "bad\nname", "-p", "x"}, {"bad"});
}

TEST(Errors, Suites) {
  const std::string suite = testing::scratch_dir("suite") + "/suite.jsonl";
  const std::string good = R"({"skill":"a","prompt":[0,5],"answer":[6]})";
  std::string long_prompt = "0";
  for (int i = 0; i < 8192; ++i) long_prompt += ",5";
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"", {"no rows"}},
      {good + "\nnonsense", {"line 2", "JSON"}},
      {good + "\n\n[1]", {"line 3", "JSON"}},
      {R"({"prompt":[0],"answer":[6]})", {"line 1", "skill"}},
      {R"({"skill":"","prompt":[0],"answer":[6]})", {"line 1", "skill"}},
      {R"({"skill":"a\n","prompt":[0],"answer":[6]})", {"line 1", "skill"}},
      {R"({"skill":"a","answer":[6]})", {"line 1", "prompt"}},
      {R"({"skill":"a","prompt":[],"answer":[6]})", {"line 1", "prompt"}},
      {R"({"skill":"a","prompt":[0],"answer":"6"})", {"line 1", "answer"}},
      {R"({"skill":"a","prompt":[0,4096],"answer":[6]})", {"line 1", "prompt[1]", "4096", "4095"}},
      {R"({"skill":"a","prompt":[0],"answer":[-1]})", {"line 1", "answer[0]", "-1"}},
      {R"({"skill":"a","prompt":[0],"answer":[1.5]})", {"line 1", "answer[0]"}},
      {R"({"skill":"a","prompt":[0],"answer":[18446744073709551615]})", {"line 1", "answer[0]", "18446744073709551615"}},
      {R"({"skill":"a","prompt":[)" + long_prompt + R"(],"answer":[6]})", {"line 1", "8194", "8192"}},
      {std::string(100000, '['), {"line 1", "JSON"}},
  };
  for (const auto& [text, named] : cases) {
    std::ofstream(suite, std::ios::trunc) << text;
    expect_error({"eval", "-m", nano_dir(), "--suite", suite}, named);
  }
  std::ofstream(suite, std::ios::trunc) << good;
  expect_error({"eval", "-m", nano_dir(), "--suite", suite, "--skill", "b"}, {"--skill", "\"b\"", "a"});
  expect_error({"eval", "-m", nano_dir(), "--suite", suite, "--report", "/nonexistent/report.json"},
               {"--report", "/nonexistent"});
}

}  // namespace
}  // namespace deepinfer
