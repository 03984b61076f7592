// Every operator of the table: the CPU backend against the reference (DESIGN §4), and each backend against itself, bitwise, for
// any number of rows and threads (spec/sampling §3).

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "ops/backends.h"
#include "ops/op_cases.h"
#include "ops/op_compare.h"

namespace deepinfer {
namespace {

using testing::expect_close;
using testing::expect_same;
using testing::OpCase;
using testing::Outputs;
using testing::OwnedBackend;
using testing::RunRows;

const std::vector<OpCase>& cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> made = testing::all_op_cases();
    for (OpCase& c : testing::wide_index_op_cases()) made.push_back(std::move(c));
    return made;
  }();
  return all;
}

class Operator : public ::testing::TestWithParam<size_t> {
 protected:
  const OpCase& op() const { return cases()[GetParam()]; }
};

TEST_P(Operator, MatchesReference) {
  const RunRows run = op().make();
  OwnedBackend reference = testing::reference_backend(1);
  const Outputs want = run(*reference.backend, 0, op().rows());
  for (OwnedBackend& cpu : testing::cpu_backends(1)) {
    SCOPED_TRACE(cpu.name);
    for (int64_t count : op().counts) {
      SCOPED_TRACE(count);
      const Outputs got = run(*cpu.backend, 0, count);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], count);
    }
  }
}

TEST_P(Operator, RowsAndThreadsDoNotMatter) {
  const RunRows run = op().make();
  const int64_t rows = op().rows();
  std::vector<Outputs> wanted;
  for (int threads : {1, 2, 3, 5}) {
    std::vector<OwnedBackend> backends = testing::all_backends(threads);
    for (size_t i = 0; i < backends.size(); ++i) {
      SCOPED_TRACE(fmt::format("{}, {} threads", backends[i].name, threads));
      const bool reference = i == 0;
      if (reference && threads != 1 && threads != 3) continue;  // slow and plain: less of it
      Backend& backend = *backends[i].backend;
      const Outputs all = run(backend, 0, rows);
      if (threads == 1) wanted.push_back(all);
      ASSERT_NO_FATAL_FAILURE(expect_same(all, wanted[i], 0, rows));
      for (int64_t count : op().counts) {
        if (reference && count > 2) break;
        ASSERT_NO_FATAL_FAILURE(expect_same(run(backend, 0, count), wanted[i], 0, count));
      }
      if (rows > 3) {
        ASSERT_NO_FATAL_FAILURE(expect_same(run(backend, 3, rows - 3), wanted[i], 3, rows - 3));
      }
      const int64_t step = reference ? std::max<int64_t>(1, rows / 4) : threads > 1 ? 5 : 1;
      for (int64_t r = 0; r < rows; r += step) ASSERT_NO_FATAL_FAILURE(expect_same(run(backend, r, 1), wanted[i], r, 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Operator, ::testing::Range<size_t>(0, cases().size()),
                         [](const auto& param) { return cases()[param.param].name; });

// Nobody is to wonder which kernel runs, and one that was asked for is there or is an error (CASES 24).
TEST(Kernels, AreNamed) {
  for (const OwnedBackend& b : testing::all_backends(1)) {
    ASSERT_FALSE(b.backend->kernels().empty()) << b.name;
    for (const KernelChoice& k : b.backend->kernels()) EXPECT_TRUE(!k.operators.empty() && !k.kernel.empty()) << b.name;
  }
}

TEST(Kernels, WhatIsWantedMustBeThere) {
  const auto check = [](const char* wanted) {
    ::setenv("DEEPINFER_CPU_KERNELS", wanted, 1);
    const auto kernels = cpu::wanted_kernels();
    ::unsetenv("DEEPINFER_CPU_KERNELS");
    return kernels;
  };
  const auto best = cpu::wanted_kernels();
  ASSERT_TRUE(best);
  EXPECT_EQ(*best, cpu::cpu_kernels().front());
  const auto portable = check("portable");
  ASSERT_TRUE(portable);
  EXPECT_EQ(*portable, cpu::portable_kernels().front());
  for (const cpu::CpuKernels* kernels : cpu::cpu_kernels()) {
    SCOPED_TRACE(kernels->name);
    const auto found = check(kernels->name);
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, kernels);
  }
  const auto absent = [&](const char* name) {
    return std::none_of(cpu::cpu_kernels().begin(), cpu::cpu_kernels().end(),
                        [&](const cpu::CpuKernels* k) { return std::string_view(k->name) == name; });
  };
  int refused = 0;  // no processor has both
  for (const char* name : {"avx2", "neon", "avx512-bf16"}) {
    if (!absent(name)) continue;
    const auto kernels = check(name);
    ASSERT_FALSE(kernels);
    EXPECT_EQ(kernels.error().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(kernels.error().message().find(name), std::string_view::npos);
    ++refused;
  }
  EXPECT_GT(refused, 0);
  for (const char* name : {"avx999", "", "AVX2"}) {
    const auto unknown = check(name);
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(unknown.error().message().find(name), std::string_view::npos);
  }
}

}  // namespace
}  // namespace deepinfer
