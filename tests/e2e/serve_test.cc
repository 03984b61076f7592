// `deepinfer serve` and `deepinfer chat` from the outside: settings, their sources, errors, signals. What the server answers is
// tested in tests/server and by the clients beside this file.

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "e2e/run_program.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::nano_dir;
using testing::ProgramRun;
using testing::run_program;
using Arguments = std::vector<std::string>;

ProgramRun serve(Arguments more, const testing::ProgramOptions& options = {}) {
  Arguments all = {"serve", nano_dir(), "--port", "0"};
  all.insert(all.end(), more.begin(), more.end());
  return run_program(all, options);
}

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = testing::make_temp_dir("serve") + "/" + name;
  std::ofstream(path) << text;
  return path;
}

struct Variable {
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  const char* name_;
};

TEST(Serve, StartsAndEndsOnSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    for (const Arguments& engine : {Arguments{}, Arguments{"--fake-engine"}}) {
      const ProgramRun run = serve(engine, {.signal_at_first_output = signal});
      EXPECT_EQ(run.code, 0) << run.err;
      for (const char* item : {"model ", "kernels ", "cache ", "keys ", "listening on http://127.0.0.1:"})
        EXPECT_NE(run.out.find(item), std::string::npos) << run.out;
      if (engine.empty()) EXPECT_NE(run.out.find("sparse_attention: "), std::string::npos) << run.out;
      EXPECT_NE(run.err.find("drained"), std::string::npos) << run.err;
    }
  }
}

TEST(Serve, PrintConfigNamesTheSource) {
  const std::string file = write_file(
      "a.json",
      R"({"max_num_seqs": 7, "host": "127.0.0.2", "api-key": ["secret-a", "secret-b"], "ping-interval": 2.5, "fake-engine": true})");
  const Variable variable("DEEPINFER_MAX_QUEUED_REQUESTS", "5");
  const Variable hidden("DEEPINFER_HOST", "127.0.0.3");
  const ProgramRun run = serve({"--config", file, "--ping-interval", "3", "--print-config"});
  EXPECT_EQ(run.code, 0) << run.err;
  for (const char* line : {"port\t0\tflag\n", "max-num-seqs\t7\tfile\n", "max-queued-requests\t5\tenvironment\n",
                           "host\t127.0.0.3\tenvironment\n", "ping-interval\t3\tflag\n", "fake-engine\ttrue\tfile\n",
                           "max-body-size\t64MiB\tdefault\n", "api-key\t(not shown)\tfile\n"})
    EXPECT_NE(run.out.find(line), std::string::npos) << line << run.out;
  for (const char* key : {"secret-a", "secret-b"}) EXPECT_EQ(run.out.find(key), std::string::npos);
  const ProgramRun toml =
      serve({"--config", write_file("a.toml", "max-model-len = 2048\nhost = \"127.0.0.4\"\n"), "--print-config"});
  EXPECT_NE(toml.out.find("max-model-len\t2048\tfile\n"), std::string::npos) << toml.out << toml.err;
}

void expect_error(const Arguments& arguments, const std::string& text) {
  const ProgramRun run = run_program(arguments);
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find(text), std::string::npos) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

TEST(Serve, ErrorsAreOneLine) {
  const std::string nano = nano_dir();
  expect_error({"serve"}, "no model");
  expect_error({"serve", "/nonexistent"}, "/nonexistent");
  expect_error({"serve", nano, "--model", "/other"}, "MODEL is");
  expect_error({"serve", nano, "--port", "65536"}, "--port: is 65536, must be from 0 to 65535");
  expect_error({"serve", nano, "--fake-engine", "--host", "localhost.example"}, "--host");
  expect_error({"serve", nano, "--fake-engine", "--ssl-certfile", "x"}, "--ssl-keyfile");
  expect_error({"serve", nano, "--fake-engine", "--log-format", "xml"}, "--log-format");
  expect_error({"serve", nano, "--api-key-file", "/nonexistent"}, "/nonexistent");
  expect_error({"serve", nano, "--config", "/nonexistent"}, "/nonexistent");
  expect_error({"serve", nano, "--config", write_file("b.json", R"({"nope": 1})")}, "nope: there is no such setting");
  expect_error({"serve", nano, "--config", write_file("c.json", "{")}, "not valid JSON");
  expect_error({"serve", nano, "--config", write_file("d.json", R"({"port": {"a": 1}})")}, "port: must be");
  expect_error({"serve", nano, "--config", write_file("e.toml", "port = 99999\n")}, "--port: is 99999");
  const Variable variable("DEEPINFER_MAX_NUM_SEQS", "none");
  expect_error({"serve", nano}, "--max-num-seqs");
}

TEST(Chat, DirectlyOnAModel) {
  const Arguments chat = {"chat", "-m", nano_dir(), "--temperature", "0", "--max-tokens", "30"};
  const std::string prompt = "Tell me a story about a fox and a lamp.\n";
  const ProgramRun run = run_program(chat, {.input = prompt + "/reset\n" + prompt});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("fox"), std::string::npos) << run.out;
  const std::string half = run.out.substr(0, run.out.size() / 2);
  EXPECT_EQ(run.out, half + half);
  EXPECT_EQ(run_program(chat, {.input = "/help\n/unknown\n/quit\n"}).code, 0);
}

TEST(Chat, ErrorsAreOneLine) {
  expect_error({"chat", "--url", "https://127.0.0.1:1"}, "--url is");
  expect_error({"chat", "--url", "http://127.0.0.1:1"}, "Connection refused");
  expect_error({"chat", "--tools", "/nonexistent"}, "/nonexistent");
  expect_error({"chat", "--tools", write_file("t.json", "{}")}, "must be a JSON list");
}

}  // namespace
}  // namespace deepinfer
