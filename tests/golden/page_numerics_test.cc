// Guards the numerics versions (ops/numerics.h): stored pages of another version are never hit, so whatever changes their bits
// has to raise it. Pages of one prompt are compared with hashes recorded in tests/data/page_numerics.tsv, for each kernel set and
// toolchain that somebody recorded them with.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/build_info.h"
#include "testing/loaded_model.h"
#include "testing/named_backend.h"
#include "testing/pages.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

constexpr int64_t kPages = 6;
constexpr int64_t kStepRows = 3 * kPagePositions;

struct Record {
  std::string numerics, toolchain, hash;
};

/// "cpu/avx512-bf16 rows avx512 1" without the version.
std::string variant_of(const std::string& numerics) { return numerics.substr(0, numerics.rfind(' ')); }

std::vector<Record> read_records() {
  std::ifstream file(testing::source_dir() + "/tests/data/page_numerics.tsv");
  std::vector<Record> records;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream fields(line);
    Record record;
    std::getline(fields, record.numerics, '\t');
    std::getline(fields, record.toolchain, '\t');
    std::getline(fields, record.hash, '\t');
    EXPECT_EQ(record.hash.size(), 32u) << line;
    records.push_back(record);
  }
  return records;
}

/// Of full pages of a prompt that is long enough for the index to choose rows.
std::string hash_of_pages(Model& model, DeviceMemory& memory) {
  testing::CountingPages pages(model.page_layout().page_bytes, kPages, &memory);
  const std::unique_ptr<SequenceState> state = model.new_sequence(&pages);
  std::vector<int32_t> tokens(static_cast<size_t>(kPages * kPagePositions));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(10 + (i * i * 31 + i * 7919) % static_cast<size_t>(model.config().vocab_size / 2));
  for (int64_t at = 0; at < kPages * kPagePositions; at += kStepRows) {
    const StepSequence sequence{state.get(), kStepRows};
    StepBatch batch;
    batch.tokens = std::span<const int32_t>(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(kStepRows));
    batch.sequences = {&sequence, 1};
    const auto out = model.forward(batch);
    EXPECT_TRUE(out.has_value()) << out.error().message();
  }
  const auto page_bytes = static_cast<size_t>(model.page_layout().page_bytes);
  std::vector<uint8_t> bytes(page_bytes * static_cast<size_t>(kPages));
  for (int64_t i = 0; i < kPages; ++i) {
    memory.download(bytes.data() + static_cast<size_t>(i) * page_bytes, state->main_rows(0).pages[i],
                    static_cast<int64_t>(page_bytes));
  }
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

/// "portable": the CPU's, with the kernels for any processor.
class PageNumerics : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string backend = GetParam();
    if (backend == "portable") {
      if (const char* set = std::getenv(kKernels); set != nullptr) wanted_ = set;
      ::setenv(kKernels, "portable", 1);
      backend = "cpu";
      portable_ = true;
    }
    if (const std::string why = testing::why_absent(backend); !why.empty()) GTEST_SKIP() << why;
    loaded_ = testing::load_model(testing::nano_dir(), backend);
  }
  void TearDown() override {
    if (!portable_) return;
    if (wanted_.empty()) {
      ::unsetenv(kKernels);
    } else {
      ::setenv(kKernels, wanted_.c_str(), 1);
    }
  }

  static constexpr const char* kKernels = "DEEPINFER_CPU_KERNELS";
  bool portable_ = false;
  std::string wanted_;
  testing::LoadedModel loaded_;
};

TEST_P(PageNumerics, AreThoseOfTheirVersion) {
  const std::string numerics = loaded_.backend->numerics(), toolchain = build_toolchain();
  const std::string hash = hash_of_pages(*loaded_.model, loaded_.backend->memory());
  const std::string line = fmt::format("{}\t{}\t{}", numerics, toolchain, hash);

  bool known_variant = false, known_version = false, seen = false;
  for (const Record& record : read_records()) {
    known_variant |= variant_of(record.numerics) == variant_of(numerics);
    if (record.numerics != numerics) continue;
    known_version = true;
    seen |= record.hash == hash;
    if (record.toolchain != toolchain) continue;
    EXPECT_EQ(hash, record.hash) << "Pages differ from those stored as \"" << numerics
                                 << "\". If that is meant, raise the version in src/ops/numerics.h and record the new line in "
                                    "tests/data/page_numerics.tsv. If not, this has found a change of bits.";
    return;
  }
  if (known_version) {
    // The toolchain is part of the fingerprint, so other bits would do no harm; equal ones are good to know.
    if (!seen) GTEST_SKIP() << "not recorded with this toolchain, with which pages differ: " << line;
    return;
  }
  if (!known_variant) GTEST_SKIP() << "nobody has recorded this kernel set yet: " << line;
  FAIL() << "the version has been raised: record its line in tests/data/page_numerics.tsv: " << line;
}

INSTANTIATE_TEST_SUITE_P(All, PageNumerics, ::testing::Values("reference", "cpu", "portable", "cuda"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace deepinfer
