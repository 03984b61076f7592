#include "eval_suite.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "generation.h"
#include "terminal.h"

namespace deepinfer::cli {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSuiteBytes = int64_t{1} << 30;
constexpr size_t kMaxSkillName = 100;
constexpr size_t kMaxSkills = 1000;
constexpr size_t kRowsAtOnce = 8;
constexpr int64_t kPrefillChunk = 512;

Result<std::vector<int32_t>> read_ids(const Json& row, const char* field, int64_t vocab_size) {
  const auto at = row.find(field);
  if (at == row.end() || !at->is_array() || at->empty()) {
    return Err(Status::InvalidArgument("{}: must be a list of token ids that is not empty", field));
  }
  std::vector<int32_t> ids;
  ids.reserve(at->size());
  for (const Json& id : *at) {
    if (!id.is_number_integer()) return Err(Status::InvalidArgument("{}[{}]: must be a whole number", field, ids.size()));
    // Unsigned values beyond 2^63 turn negative here and are refused as such.
    const auto value = id.get<int64_t>();
    if (value < 0 || value >= vocab_size) {
      return Err(Status::OutOfRange("{}[{}] is {}, must be from 0 to {}", field, ids.size(), id.dump(), vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

Result<SuiteRow> read_row(std::string_view line, const ModelConfig& config, std::string& skill) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Err(Status::InvalidArgument("not a JSON object"));
  const auto name = json.find("skill");
  if (name == json.end() || !name->is_string()) return Err(Status::InvalidArgument("skill: must be a text"));
  skill = name->get<std::string>();
  if (skill.empty() || skill.size() > kMaxSkillName || skill != one_line(skill)) {
    return Err(Status::InvalidArgument("skill: must be one line of 1 to {} bytes", kMaxSkillName));
  }
  SuiteRow row;
  DI_ASSIGN_OR_RETURN(row.prompt, read_ids(json, "prompt", config.vocab_size));
  DI_ASSIGN_OR_RETURN(row.answer, read_ids(json, "answer", config.vocab_size));
  const auto length = static_cast<int64_t>(row.prompt.size() + row.answer.size());
  if (length > config.max_position_embeddings) {
    return Err(Status::OutOfRange("prompt and answer have {} tokens, max_position_embeddings is {}", length,
                                  config.max_position_embeddings));
  }
  return row;
}

/// Lowest id on ties; NaN is never the largest.
int32_t greedy(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
  }
  return static_cast<int32_t>(best);
}

struct ActiveRow {
  const SuiteRow* row = nullptr;
  std::unique_ptr<SequenceState> state;
  size_t matched = 0;  ///< tokens of the answer so far; the last of them has not been run yet
};

class SuiteRun {
 public:
  SuiteRun(Model& model, const Suite& suite, FunctionRef<void(int64_t)> on_progress, FunctionRef<bool()> stop)
      : model_(model), suite_(suite), on_progress_(on_progress), stop_(stop) {
    result_.rows.resize(suite.skills.size());
    result_.passed.resize(suite.skills.size());
    logits_.resize(static_cast<size_t>(model.config().vocab_size));
  }

  Result<SuiteResult> Run() {
    while (next_ < suite_.rows.size() || !active_.empty()) {
      while (active_.size() < kRowsAtOnce && next_ < suite_.rows.size() && !stop_())
        DI_RETURN_IF_ERROR(start(suite_.rows[next_++]));
      if (stop_()) {
        result_.interrupted = true;
        break;
      }
      if (!active_.empty()) DI_RETURN_IF_ERROR(step());
    }
    return std::move(result_);
  }

 private:
  Status start(const SuiteRow& row) {
    ActiveRow active{&row, model_.new_sequence(), 0};
    auto rows = prefill(model_, *active.state, row.prompt, kPrefillChunk, stop_, logits_);
    if (!rows) return rows.error();
    if (*rows < static_cast<int64_t>(row.prompt.size())) return Status::Ok();  // interrupted: not decided
    result_.prompt_tokens += *rows;
    if (!decide(active, greedy(logits_))) active_.push_back(std::move(active));
    return Status::Ok();
  }

  /// One token for every active row.
  Status step() {
    std::vector<int32_t> tokens;
    std::vector<StepSequence> sequences;
    std::vector<int32_t> logit_rows;
    for (const ActiveRow& active : active_) {
      tokens.push_back(active.row->answer[active.matched - 1]);
      sequences.push_back({active.state.get(), 1});
      logit_rows.push_back(static_cast<int32_t>(logit_rows.size()));
    }
    StepBatch batch;
    batch.tokens = tokens;
    batch.sequences = sequences;
    batch.logit_rows = logit_rows;
    const auto out = model_.forward(batch);
    if (!out) return out.error();
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    size_t row = 0;
    std::erase_if(active_, [&](ActiveRow& active) { return decide(active, greedy(out->logits.subspan(row++ * vocab, vocab))); });
    return Status::Ok();
  }

  /// Takes in the next greedy token of a row; true once the row has passed or failed.
  bool decide(ActiveRow& active, int32_t token) {
    const SuiteRow& row = *active.row;
    ++result_.decoded_tokens;
    const bool right = row.answer[active.matched] == token;
    if (right && ++active.matched < row.answer.size()) return false;
    ++result_.rows[row.skill];
    result_.passed[row.skill] += right ? 1 : 0;
    on_progress_(++decided_);
    return true;
  }

  Model& model_;
  const Suite& suite_;
  FunctionRef<void(int64_t)> on_progress_;
  FunctionRef<bool()> stop_;
  SuiteResult result_;
  std::vector<float> logits_;
  std::vector<ActiveRow> active_;
  size_t next_ = 0;
  int64_t decided_ = 0;
};

}  // namespace

Result<Suite> load_suite(const std::string& path, const ModelConfig& config, const SuiteFilter& filter) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_input(path, kMaxSuiteBytes));
  Suite suite;
  std::vector<int64_t> taken;
  std::set<std::string> known;
  int64_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const auto line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.empty()) continue;
    std::string skill;
    auto row = read_row(line, config, skill);
    if (!row) return Err(row.error().with_context(fmt::format("{} line {}", path, line_number)));
    if (known.insert(skill).second && known.size() > kMaxSkills) {
      return Err(Status::OutOfRange("{} line {}: more than {} skills", path, line_number, kMaxSkills));
    }
    if (!filter.skills.empty() && std::find(filter.skills.begin(), filter.skills.end(), skill) == filter.skills.end()) continue;
    row->skill = static_cast<size_t>(std::find(suite.skills.begin(), suite.skills.end(), skill) - suite.skills.begin());
    if (row->skill == suite.skills.size()) {
      suite.skills.push_back(skill);
      taken.push_back(0);
    }
    if (filter.limit > 0 && taken[row->skill] == filter.limit) continue;
    ++taken[row->skill];
    suite.rows.push_back(std::move(*row));
  }
  for (const std::string& skill : filter.skills) {
    if (!known.contains(skill))
      return Err(Status::NotFound("--skill: {} has no skill \"{}\", but {}", path, skill, fmt::join(known, ", ")));
  }
  if (suite.rows.empty()) return Err(Status::InvalidArgument("{}: no rows", path));
  return suite;
}

Result<SuiteResult> run_suite(Model& model, const Suite& suite, FunctionRef<void(int64_t)> on_progress,
                              FunctionRef<bool()> stop) {
  return SuiteRun(model, suite, on_progress, stop).Run();
}

}  // namespace deepinfer::cli
