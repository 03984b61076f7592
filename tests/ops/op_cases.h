#pragma once

// One declared table of operator cases (ops.h): what each operator is run on. Correctness and batch invariance read the same
// table; a case knows how to run any range of its rows on any backend.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace deepinfer::testing {

/// How an output is compared with the reference's (DESIGN §4). All are bitwise when a backend is compared with itself.
enum class Compare : uint8_t {
  kBits,            ///< the same bytes: choices, packed rows, gathers
  kFloat,           ///< fp32, relative L2 <= 1e-5
  kBf16,            ///< equal on >= 99 %, within one unit in the last place on >= 99.9 %
  kInnerQuantiser,  ///< bf16 behind a quantiser inside the operator, whose single flips reach every output of the row
};

struct Output {
  std::string name;
  Compare compare = Compare::kBits;
  int64_t row_bytes = 0;
  std::vector<uint8_t> bytes;
};
using Outputs = std::vector<Output>;

/// Runs rows [begin, begin + count).
using RunRows = std::function<Outputs(Backend& backend, int64_t begin, int64_t count)>;

struct OpCase {
  std::string name;               ///< operator and shape, a test name
  std::vector<int64_t> counts;    ///< ascending; the last is the number of rows of the case
  std::function<RunRows()> make;  ///< draws the inputs

  int64_t rows() const { return counts.back(); }
};

std::vector<OpCase> row_op_cases();
std::vector<OpCase> matrix_op_cases();
std::vector<OpCase> attention_op_cases();
std::vector<OpCase> expert_op_cases();
std::vector<OpCase> all_op_cases();
/// Index keys as wide as a checkpoint may have them (ModelConfig::validate).
std::vector<OpCase> wide_index_op_cases();

/// The shapes of the release and its shards, too large for a CPU's unit tests; weights of a few experts only.
std::vector<OpCase> large_matrix_op_cases();
std::vector<OpCase> large_attention_op_cases();
std::vector<OpCase> large_expert_op_cases();
std::vector<OpCase> large_op_cases();

}  // namespace deepinfer::testing
