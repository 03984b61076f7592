// What kernels have to keep to so that one may begin before the one before it has ended (ops/cuda/launch_order.cuh), read off
// their sources: no GPU is needed, and no kernel can forget.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "testing/paths.h"

namespace deepinfer {
namespace {

std::string without_comments(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 2, "//") == 0) {
      at = std::min(text.find('\n', at), text.size());
    } else {
      out += text[at++];
    }
  }
  return out;
}

struct Kernel {
  std::string name;
  std::string body;
};

// Bodies of the functions that begin with __global__.
std::vector<Kernel> kernels_of(const std::string& text) {
  std::vector<Kernel> out;
  static const std::string kGlobal = "__global__";
  for (size_t at = text.find(kGlobal); at != std::string::npos; at = text.find(kGlobal, at)) {
    at += kGlobal.size();
    int depth = 0;
    size_t open = at;
    for (; open < text.size() && !(text[open] == '{' && depth == 0); ++open)
      depth += text[open] == '(' ? 1 : text[open] == ')' ? -1 : 0;
    size_t end = open;
    for (depth = 0; end < text.size(); ++end) {
      depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      if (depth == 0) break;
    }
    // The name stands before the last parenthesis that opens at depth 0.
    std::string head = text.substr(at, open - at);
    static const std::regex kName(R"((\w+)\s*\($)");
    std::string name;
    depth = 0;
    for (size_t i = 0; i < head.size(); ++i) {
      if (head[i] == '(' && depth++ == 0) {
        std::smatch found;
        const std::string before = head.substr(0, i + 1);
        if (std::regex_search(before, found, kName)) name = found[1];
      }
      if (head[i] == ')') --depth;
    }
    out.push_back({name, text.substr(open, end - open)});
    at = end;
  }
  return out;
}

/// What is wrong with a kernel; empty: nothing.
std::string broken_rule(const Kernel& kernel) {
  const size_t turn = std::min(kernel.body.find("take_turn()"), kernel.body.find("take_turn_alone()"));
  const size_t wait = std::min(turn, kernel.body.find("wait_for_earlier()"));
  if (wait == std::string::npos) return "never waits for its turn";
  const std::string before = kernel.body.substr(0, wait);
  if (std::regex_search(before, std::regex(R"(\breturn\b)"))) return "returns before its turn";
  if (turn != std::string::npos) {
    if (before.find_first_not_of("{ \n") != std::string::npos) return "does something before take_turn";
    return "";
  }
  if (before.find("let_next_begin()") == std::string::npos) return "waits without letting the next kernel begin";
  // The wait stands at the level of the body: nobody comes round it.
  if (std::count(before.begin(), before.end(), '{') - std::count(before.begin(), before.end(), '}') != 1)
    return "waits on some ways only";
  return "";
}

std::vector<std::filesystem::path> sources() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_dir() + "/src/ops/cuda")) {
    const std::string extension = entry.path().extension();
    if (extension == ".cu" || extension == ".cuh" || extension == ".cc" || extension == ".h") out.push_back(entry.path());
  }
  return out;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return without_comments(text.str());
}

TEST(LaunchRules, EveryKernelTakesItsTurn) {
  size_t kernels = 0;
  for (const auto& path : sources()) {
    for (const Kernel& kernel : kernels_of(read(path))) {
      ++kernels;
      EXPECT_EQ(broken_rule(kernel), "") << path.filename() << ", " << kernel.name;
    }
  }
  EXPECT_GT(kernels, 30U);
}

// Only LaunchStream::launch knows when a kernel may begin early; what is put on its stream beside it has to be told to it. Page
// copies have streams of their own.
TEST(LaunchRules, EveryLaunchCopyAndFillGoesThroughOnePlace) {
  for (const auto& path : sources()) {
    if (path.filename() == "launch.h" || path.filename() == "cuda_page_copies.cc") continue;
    const std::string text = read(path);
    for (const char* call : {"<<<", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"})
      EXPECT_EQ(text.find(call), std::string::npos) << path.filename() << " has " << call;
  }
}

// What a launch asks for begins behind what a kernel declares: at no multiple of 1024 then.
TEST(LaunchRules, SharedMemoryOfBothKindsIsNotOverlaid) {
  int kernels = 0;
  for (const auto& path : sources()) {
    for (const Kernel& kernel : kernels_of(read(path))) {
      const bool declares = kernel.body.find("__shared__") != std::string::npos;
      const bool asks = kernel.body.find("dynamic_shared<") != std::string::npos;
      kernels += declares || asks ? 1 : 0;
      EXPECT_FALSE(declares && asks) << path.filename() << ", " << kernel.name << ": use dynamic_shared_behind";
    }
  }
  EXPECT_GT(kernels, 15);
}

// Kernels are compiled for the host, too (tests/ops/cuda/emulated), which has other definitions of what is written in assembler.
TEST(LaunchRules, InstructionsAndSharedMemoryHaveNames) {
  for (const auto& path : sources()) {
    static const std::set<std::string> kInstructions = {
        "attention_instructions.cuh", "chosen_lane.cuh",         "instructions.cuh",
        "streamed_instructions.cuh",  "warpgroup.cuh",           "warpgroup_shared.cuh",
        "warpgroup_rows.cuh",         "launch_order.cuh",        "ready.cuh",
        "fp16_instructions.cuh",      "cluster_instructions.cuh"};
    if (kInstructions.contains(path.filename())) continue;
    const std::string text = read(path);
    for (const char* word : {"asm volatile", "asm(", "extern __shared__"})
      EXPECT_EQ(text.find(word), std::string::npos) << path.filename() << " has " << word;
  }
}

// What makes a stream wait for an event makes its next kernel follow more than one thing.
TEST(LaunchRules, AStreamThatWaitsForAnEventOrdersItsNextKernelFully) {
  int waits = 0;
  for (const auto& path : sources()) {
    const std::string text = read(path);
    static const std::regex kWait(R"(cudaStreamWaitEvent\((\*?\w+), [^;]*;)");
    for (auto at = std::sregex_iterator(text.begin(), text.end(), kWait); at != std::sregex_iterator(); ++at) {
      std::string stream = (*at)[1];
      if (stream.starts_with("way")) continue;  // copies alone
      ++waits;
      stream = stream.starts_with('*') ? stream.substr(1) + "->" : stream + '.';
      const std::string behind = text.substr(static_cast<size_t>(at->position() + at->length()), 120);
      EXPECT_NE(behind.find(stream + "order_fully()"), std::string::npos) << path.filename() << ": " << at->str();
    }
  }
  EXPECT_GE(waits, 2);
}

TEST(LaunchRules, AreHeldAgainstKernelsThatBreakThem) {
  const auto rule = [](const char* text) {
    const auto kernels = kernels_of(without_comments(text));
    return kernels.size() == 1 ? broken_rule(kernels[0]) : "not one kernel";
  };
  EXPECT_EQ(rule("__global__ void __launch_bounds__(8) f(int a) {\n  take_turn();\n  if (a) return;\n}"), "");
  EXPECT_EQ(rule("__global__ void f(int a) { let_next_begin(); if (a) { g(); } wait_for_earlier(); }"), "");
  EXPECT_EQ(rule("__global__ void f(int a) { if (a) return; }"), "never waits for its turn");
  EXPECT_EQ(rule("__global__ void f(int a) { /**/ if (a) return; wait_for_earlier(); }"), "returns before its turn");
  EXPECT_EQ(rule("__global__ void f(int* a) { a[0] = 1; take_turn(); }"), "does something before take_turn");
  EXPECT_EQ(rule("__global__ void f(int a) { wait_for_earlier(); }"), "waits without letting the next kernel begin");
  EXPECT_EQ(rule("__global__ void f(int a) { take_turn_alone(); if (a) return; }"), "");
  EXPECT_EQ(rule("__global__ void f(int a) { g(); take_turn_alone(); }"), "does something before take_turn");
  EXPECT_EQ(rule("__global__ void f(int a) { let_next_begin(); if (a) { wait_for_earlier(); } }"), "waits on some ways only");
}

}  // namespace
}  // namespace deepinfer
