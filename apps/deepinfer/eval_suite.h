#pragma once

// Suites of skills: rows of prompt and expected answer, scored by greedy decoding.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "deepinfer/engine.h"

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
Result<Suite> load_suite(const std::string& path, const ModelInfo& model, const SuiteFilter& filter);

struct SuiteOptions {
  /// What of each prompt is in the cache before it comes: the pages that end at least this many tokens before its end. None:
  /// nothing. Rows share no pages with each other.
  std::optional<int64_t> hit;
};

struct SuiteResult {
  std::vector<int64_t> rows;    ///< per skill, decided
  std::vector<int64_t> passed;  ///< per skill
  int64_t prompt_tokens = 0;
  int64_t decoded_tokens = 0;
  int64_t hit_rows = 0;  ///< rows that found something in the cache
  int64_t cached_tokens = 0;
  int64_t replayed_tokens = 0;
  int64_t row_layers = 0;       ///< that ran for the rows, without what filled the cache
  int64_t full_row_layers = 0;  ///< the same without cache and replay
  bool interrupted = false;
};

/// A row passes when the greedy continuation of its prompt (lowest id on ties) starts with its answer; it ends with the first
/// token that differs. As many rows as the engine runs at once are under way. `on_progress` gets the number of decided rows.
Result<SuiteResult> run_suite(Engine& engine, const Suite& suite, const SuiteOptions& options,
                              FunctionRef<void(int64_t decided)> on_progress, FunctionRef<bool()> stop);

}  // namespace deepinfer::cli
