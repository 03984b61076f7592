#pragma once

// Suites of skills: rows of prompt and expected answer, scored by greedy decoding.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "model/model.h"

namespace deepinfer::cli {

struct SuiteRow {
  size_t skill = 0;  ///< index into Suite::skills
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
};

struct Suite {
  std::vector<std::string> skills;  ///< in order of first appearance
  std::vector<SuiteRow> rows;
};

struct SuiteFilter {
  int64_t limit = 0;                ///< rows per skill, the first ones; 0: all
  std::vector<std::string> skills;  ///< empty: all
};

/// A JSON Lines file of {"skill": text, "prompt": ids, "answer": ids, ...}. Every row is checked, also those that the filter
/// drops: ids within the vocabulary, prompt and answer within the context. Errors name the line and the field.
Result<Suite> load_suite(const std::string& path, const ModelConfig& config, const SuiteFilter& filter);

struct SuiteResult {
  std::vector<int64_t> rows;    ///< per skill, decided
  std::vector<int64_t> passed;  ///< per skill
  int64_t prompt_tokens = 0;
  int64_t decoded_tokens = 0;
  bool interrupted = false;
};

/// A row passes when the greedy continuation of its prompt (lowest id on ties) starts with its answer; decoding stops at the
/// first token that differs. Several rows decode in one step. `on_progress` gets the number of decided rows.
Result<SuiteResult> run_suite(Model& model, const Suite& suite, FunctionRef<void(int64_t decided)> on_progress,
                              FunctionRef<bool()> stop);

}  // namespace deepinfer::cli
