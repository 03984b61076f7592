#include "eval_suite.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "terminal.h"

namespace deepinfer::cli {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSuiteBytes = int64_t{1} << 30;
constexpr size_t kMaxSkillName = 100;
constexpr size_t kMaxSkills = 1000;
/// With a cache to fill, rows go in blocks: what one block needs must not be evicted before it is used.
constexpr size_t kBlockRows = 64;
/// How soon a signal is seen when nothing else happens.
constexpr std::chrono::milliseconds kSignalInterval{20};

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

Result<SuiteRow> read_row(std::string_view line, const ModelInfo& model, std::string& skill) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Err(Status::InvalidArgument("not a JSON object"));
  const auto name = json.find("skill");
  if (name == json.end() || !name->is_string()) return Err(Status::InvalidArgument("skill: must be a text"));
  skill = name->get<std::string>();
  if (skill.empty() || skill.size() > kMaxSkillName || skill != one_line(skill)) {
    return Err(Status::InvalidArgument("skill: must be one line of 1 to {} bytes", kMaxSkillName));
  }
  SuiteRow row;
  DI_ASSIGN_OR_RETURN(row.prompt, read_ids(json, "prompt", model.vocab_size));
  DI_ASSIGN_OR_RETURN(row.answer, read_ids(json, "answer", model.vocab_size));
  const auto length = static_cast<int64_t>(row.prompt.size() + row.answer.size());
  if (length > model.max_model_len)
    return Err(Status::OutOfRange("prompt and answer have {} tokens, max_model_len is {}", length, model.max_model_len));
  return row;
}

struct ActiveRow {
  const SuiteRow* row = nullptr;
  RequestHandle handle;
  size_t matched = 0;  ///< tokens of the answer so far
};

/// Wakes the one who waits for news of any request; engine threads ring it.
class Bell {
 public:
  void ring() {
    {
      const std::lock_guard lock(mutex_);
      rung_ = true;
    }
    bell_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    bell_.wait_for(lock, kSignalInterval, [&] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable bell_;
  bool rung_ = false;
};

class SuiteRun {
 public:
  SuiteRun(Engine& engine, const Suite& suite, const SuiteOptions& options, FunctionRef<void(int64_t)> on_progress,
           FunctionRef<bool()> stop)
      : engine_(engine),
        suite_(suite),
        options_(options),
        on_progress_(on_progress),
        stop_(stop),
        page_(engine.model().page_tokens),
        at_once_(static_cast<size_t>(engine.options().max_num_seqs)) {
    result_.rows.resize(suite.skills.size());
    result_.passed.resize(suite.skills.size());
  }

  Result<SuiteResult> run() {
    const size_t total = suite_.rows.size();
    const size_t block = options_.hit.has_value() ? kBlockRows : total;
    for (size_t first = 0; first < total && !result_.interrupted; first += block) {
      const size_t end = std::min(first + block, total);
      if (options_.hit.has_value()) DI_RETURN_IF_ERROR(fill_cache(first, end));
      const EngineStats before = settled_stats();
      DI_RETURN_IF_ERROR(run_rows(first, end));
      const EngineStats after = settled_stats();
      result_.row_layers += after.row_layers - before.row_layers;
      result_.full_row_layers += after.full_row_layers - before.full_row_layers;
    }
    return std::move(result_);
  }

 private:
  Request request(size_t index, size_t prompt_tokens, size_t max_tokens) const {
    const SuiteRow& row = suite_.rows[index];
    Request request;
    request.prompt.assign(row.prompt.begin(), row.prompt.begin() + static_cast<std::ptrdiff_t>(prompt_tokens));
    request.sampling.temperature = 0;
    request.seed = 0;
    request.max_tokens = static_cast<int64_t>(max_tokens);
    request.ignore_eos = true;
    request.detokenize = false;
    request.cache_salt = std::to_string(index);
    return request;
  }

  /// Runs the start of each prompt, up to the page where its hit is to end.
  Status fill_cache(size_t first, size_t end) {
    std::vector<RequestHandle> handles;
    for (size_t i = first; i < end; ++i) {
      const auto prompt = static_cast<int64_t>(suite_.rows[i].prompt.size());
      const int64_t boundary = std::max<int64_t>(prompt - *options_.hit, 0) / page_ * page_;
      if (boundary == 0) continue;
      auto handle = engine_.submit(request(i, static_cast<size_t>(boundary), 1));
      if (!handle) return handle.error();
      handles.push_back(*std::move(handle));
    }
    for (RequestHandle& handle : handles) {
      while (!handle.finished()) {
        const auto news = handle.next_for(kSignalInterval);
        if (stop_() && !result_.interrupted) {
          result_.interrupted = true;
          for (RequestHandle& each : handles) each.cancel();
        }
        if (news.has_value() && news->finish == FinishReason::kError) return news->error;
      }
    }
    return Status::Ok();
  }

  Status run_rows(size_t next, size_t end) {
    while (next < end || !active_.empty()) {
      if (stop_()) result_.interrupted = true;
      if (result_.interrupted) break;
      while (active_.size() < at_once_ && next < end) {
        const SuiteRow& row = suite_.rows[next];
        auto handle = engine_.submit(request(next, row.prompt.size(), row.answer.size()));
        if (!handle) return handle.error();
        active_.push_back({&row, *std::move(handle)});
        active_.back().handle.set_callback([bell = bell_] { bell->ring(); });
        ++next;
      }
      bell_->wait();
      Status failed;
      std::erase_if(active_, [&](ActiveRow& active) { return failed.ok() && take_news(active, failed); });
      DI_RETURN_IF_ERROR(failed);
    }
    for (ActiveRow& active : active_) active.handle.cancel();
    active_.clear();
    return Status::Ok();
  }

  /// True once the row has passed or failed.
  bool take_news(ActiveRow& active, Status& failed) {
    const SuiteRow& row = *active.row;
    while (const auto news = active.handle.poll()) {
      if (news->finish == FinishReason::kError) {
        failed = news->error;
        return false;
      }
      for (const int32_t token : news->tokens) {
        if (active.matched == 0) count_prompt(news->usage);
        ++result_.decoded_tokens;
        const bool right = row.answer[active.matched] == token;
        if (right && ++active.matched < row.answer.size()) continue;
        active.handle.cancel();
        ++result_.rows[row.skill];
        result_.passed[row.skill] += right ? 1 : 0;
        on_progress_(++decided_);
        return true;
      }
    }
    return false;
  }

  void count_prompt(const Usage& usage) {
    result_.prompt_tokens += usage.prompt_tokens;
    result_.hit_rows += usage.cached_tokens > 0 ? 1 : 0;
    result_.cached_tokens += usage.cached_tokens;
    result_.replayed_tokens += usage.replayed_tokens;
  }

  /// Nothing runs, and every step that gave a token has been counted.
  EngineStats settled_stats() const {
    EngineStats stats = engine_.stats();
    while (stats.running + stats.waiting > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      stats = engine_.stats();
    }
    return stats;
  }

  Engine& engine_;
  const Suite& suite_;
  const SuiteOptions options_;
  FunctionRef<void(int64_t)> on_progress_;
  FunctionRef<bool()> stop_;
  const int64_t page_;
  const size_t at_once_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  SuiteResult result_;
  std::vector<ActiveRow> active_;
  int64_t decided_ = 0;
};

}  // namespace

Result<Suite> load_suite(const std::string& path, const ModelInfo& model, const SuiteFilter& filter) {
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
    auto row = read_row(line, model, skill);
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

Result<SuiteResult> run_suite(Engine& engine, const Suite& suite, const SuiteOptions& options,
                              FunctionRef<void(int64_t decided)> on_progress, FunctionRef<bool()> stop) {
  return SuiteRun(engine, suite, options, on_progress, stop).run();
}

}  // namespace deepinfer::cli
