#include "engine/model_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace deepinfer {

double step_clock() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

namespace {

/// Steps between two looks at what a device has counted, which take microseconds; and the pause that is as good.
constexpr int64_t kMostUncollected = 256;
constexpr std::chrono::milliseconds kIdle{20};

/// Masks take microseconds, and the backend's threads help once the forward pass is over: a few threads are enough.
int mask_thread_count() { return std::clamp(available_threads() / 8, 1, 8); }

}  // namespace

ModelExecutor::ModelExecutor(Model* model, ThreadPool* pool, int64_t places, const DraftPolicy::Options& drafts,
                             std::vector<std::unique_ptr<SequenceState>> states)
    : model_(model),
      pool_(pool),
      states_(std::move(states)),
      mask_threads_(mask_thread_count(), places),
      scratch_(static_cast<size_t>(pool->size())),
      policy_(drafts) {
  states_.resize(static_cast<size_t>(places));
  thread_ = std::thread([this] { work(); });
}

ModelExecutor::~ModelExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  queued_.notify_one();
  thread_.join();
}

void ModelExecutor::submit(const StepCommand& command, StepResult& result) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({&command, &result});
    ++submitted_;
  }
  queued_.notify_one();
}

void ModelExecutor::wait() {
  std::unique_lock lock(mutex_);
  DI_CHECK(waited_ < submitted_, "{} steps submitted, all waited for", submitted_);
  const int64_t target = ++waited_;
  finished_.wait(lock, [&] { return done_ >= target; });
}

void ModelExecutor::work() {
  model_->backend().enter_thread();
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      const auto wanted = [&] { return stop_ || !queue_.empty(); };
      // What a device has counted is asked for when nothing comes for a while, and now and then if something always does.
      if (uncollected_ > 0 && (uncollected_ >= kMostUncollected || !queued_.wait_for(lock, kIdle, wanted))) {
        lock.unlock();
        {
          const std::lock_guard turn(model_->turn());
          model_->collect_expert_load();
        }
        uncollected_ = 0;
        lock.lock();
      }
      queued_.wait(lock, wanted);
      if (queue_.empty()) return;
      job = queue_.front();
      queue_.pop_front();
    }
    {
      const std::lock_guard turn(model_->turn());
      job.result->begin = step_clock();
      run(*job.command, *job.result);
      if (copies_ != nullptr) copies_->fence();
      job.result->end = step_clock();
    }
    ++uncollected_;
    {
      const std::lock_guard lock(mutex_);
      ++done_;
    }
    finished_.notify_one();
  }
}

SequenceState& ModelExecutor::state(int32_t place) {
  std::unique_ptr<SequenceState>& s = states_[static_cast<size_t>(place)];
  if (s == nullptr) s = model_->new_borrowing_sequence();
  return *s;
}

void ModelExecutor::run(const StepCommand& command, StepResult& result) {
  for (const StepRows& rows : command.rows) {
    result.status = begin(command, rows);
    if (!result.status.ok()) return;
  }
  for (const StepRows& rows : command.rows) {
    if (rows.save_at >= 0) result.windows.push_back(std::make_shared<CachedWindow>());
  }
  find_rows(command);
  int64_t decoding = 0;
  bool prompts = false;
  for (size_t i = 0; i < live_.size(); ++i) {
    decoding += live_[i].count > 0 && command.rows[i].draw_count > 0 ? 1 : 0;
    prompts = prompts || command.rows[i].count > 1 || command.rows[i].draw_count != 1;
  }
  const DraftPolicy::Kind kind =
      model_->has_draft() ? policy_.begin_step(decoding, command.draft_rows > 0) : DraftPolicy::Kind::kPlain;
  const double start = step_clock();
  if (kind == DraftPolicy::Kind::kDraft) {
    result.status = draft(command);
    if (!result.status.ok()) return;
  }
  const double drafted = result.drafted = step_clock();
  start_masks(command);
  const auto output = forward(command, result);
  result.forward_end = step_clock();
  if (!output) {
    mask_threads_.finish();
    result.status = output.error();
    return;
  }
  result.row_layers = output->encoder_row_layers + output->decoder_row_layers;
  result.rows = static_cast<int64_t>(tokens_.size());
  result.over = model_->backend().memory().is_host() || !logit_rows_.empty();
  prompt_logprobs(command, result);
  for (size_t i = 0; i < result.lost.size(); ++i) {
    if (result.lost[i] != 0) forget(live_[i]);
  }
  draw(command, result);
  finish_masks(result);
  result.status = settle_drafts(command, kind, result);
  if (!result.status.ok()) return;
  if (!prompts && decoding > 0) {
    int64_t tokens = 0;
    for (const DrawResult& drawn : result.draws) tokens += drawn.count;
    policy_.learn_step(decoding, result.rows, tokens, offers_.empty() ? 0 : drafted - start, step_clock() - drafted);
  }
  result.draft_rows = policy_.wanted();
  for (const StepRows& rows : command.rows) {
    result.status = run_forks(command, rows);
    if (!result.status.ok()) return;
  }
}

Status ModelExecutor::begin(const StepCommand& command, const StepRows& rows) {
  SequenceState& s = state(rows.place);
  const std::span pages =
      std::span(command.pages).subspan(static_cast<size_t>(rows.first_page), static_cast<size_t>(rows.page_count));
  if (!rows.begin) {
    s.append_pages(pages);
    return Status::Ok();
  }
  s.reset();
  s.append_pages(pages);
  const ReplayPlan& plan = rows.replay;
  if (plan.hit > 0) {
    const auto prefix =
        std::span(command.prefixes).subspan(static_cast<size_t>(rows.prefix_first), static_cast<size_t>(rows.prefix_count));
    DI_RETURN_IF_ERROR(plan.restored ? model_->adopt_prefix(s, prefix, {}, rows.window->window)
                                     : model_->adopt_prefix(s, prefix, {}, plan.from));
  }
  return plan.decoder_start > 0 ? s.set_decoder_start(plan.decoder_start) : Status::Ok();
}

/// Draws nothing from rows behind a failed pull: samplers and forms stay as they were.
void ModelExecutor::forget(LiveRows& live) {
  live.count = 0;
  live.drafts = 0;
  live.offer = -1;
}

void ModelExecutor::find_rows(const StepCommand& command) {
  live_.clear();
  drafting_.clear();
  offers_.clear();
  draw_rows_.resize(command.draws.size());
  for (size_t i = 0; i < command.rows.size(); ++i) {
    const StepRows& rows = command.rows[i];
    LiveRows live;
    live.first = state(rows.place).length();
    live.count = rows.device->ended ? 0 : rows.count;
    for (int64_t d = 0; d < rows.draw_count; ++d) draw_rows_[static_cast<size_t>(rows.first_draw + d)] = i;
    live_.push_back(live);
  }
}

Result<StepOutput> ModelExecutor::forward(const StepCommand& command, StepResult& result) {
  tokens_.clear();
  sequences_.clear();
  logit_rows_.clear();
  size_t window = 0;
  size_t row = 0;
  for (size_t i = 0; i < command.rows.size(); ++i) {
    const StepRows& rows = command.rows[i];
    LiveRows& live = live_[i];
    WindowSnapshot* save = rows.save_at >= 0 ? &result.windows[window++]->window : nullptr;
    const auto given = std::span(command.tokens).subspan(row, static_cast<size_t>(rows.count));
    row += given.size();
    if (live.count == 0) continue;
    const int64_t count = live.count + live.drafts;
    // Of a sequence with drafts in flight the engine can only say where it may come by.
    if (rows.save_at <= live.first || rows.save_at > live.first + count) save = nullptr;
    live.row = static_cast<int64_t>(tokens_.size());
    sequences_.push_back({&state(rows.place), count, save, rows.save_at});
    for (const int32_t token : given) tokens_.push_back(token == kLastSampled ? rows.device->last : token);
    if (live.drafts > 0) {
      const auto drafts = draft_tokens_.begin() + live.offer * draft_width_;
      tokens_.insert(tokens_.end(), drafts, drafts + live.drafts);
    }
    const auto last = static_cast<int32_t>(live.row + live.count - 1);
    live.logits = static_cast<int64_t>(logit_rows_.size());
    const int32_t first = rows.prompt_logprobs >= 0 ? static_cast<int32_t>(live.row) : last;
    if (rows.prompt_logprobs < 0 && rows.draw_count == 0) continue;
    for (auto r = first; r <= last + live.drafts; ++r) logit_rows_.push_back(r);
    live.draw_logits = live.logits + last - first;
  }
  if (tokens_.empty()) return StepOutput{};
  StepBatch batch;
  batch.tokens = tokens_;
  batch.sequences = sequences_;
  batch.logit_rows = logit_rows_;
  batch.logits_stay = true;
  // Rows stand on their own: those behind a failed pull spoil no others.
  const auto arrive = [&](int64_t source) {
    for (size_t i = 0; i < command.rows.size(); ++i) {
      if (command.rows[i].pull == nullptr || result.lost[i] != 0 || live_[i].count == 0) continue;
      const double begin = step_clock();
      if (!command.rows[i].pull->wait(source, model_->backend().memory())) result.lost[i] = 1;
      result.pull_waits.push_back({.rows = static_cast<int64_t>(i), .group = source, .begin = begin, .end = step_clock()});
    }
  };
  const FunctionRef<void(int64_t)> before_source(arrive);
  const bool pulls = std::any_of(command.rows.begin(), command.rows.end(), [](const StepRows& r) { return r.pull != nullptr; });
  if (pulls) {
    result.lost.assign(command.rows.size(), 0);
    batch.before_source = &before_source;
  }
  return model_->forward(batch);
}

/// Masks of the rows that draw, drafts among them: they are known before the forward pass begins.
void ModelExecutor::start_masks(const StepCommand& command) {
  const size_t words = static_cast<size_t>(model_->config().vocab_size + 31) / 32;
  mask_rows_.clear();
  draw_mask_.clear();
  draw_order_.clear();
  size_t rows = 0;
  for (size_t i = 0; i < command.draws.size(); ++i) {
    const LiveRows& live = live_[draw_rows_[i]];
    DeviceSequence& device = *command.draws[i].device;
    const bool masked = device.constraint.has_value() && live.count > 0;
    if (!masked) draw_order_.push_back(static_cast<int64_t>(i));
    draw_mask_.push_back(masked ? static_cast<int64_t>(mask_rows_.size()) : -1);
    if (!masked) continue;
    std::span<const int32_t> drafts;
    if (live.drafts > 0) {
      drafts = std::span<const int32_t>(draft_tokens_)
                   .subspan(static_cast<size_t>(live.offer * draft_width_), static_cast<size_t>(live.drafts));
    }
    mask_rows_.push_back({.constraint = &*device.constraint, .drafts = drafts, .masks = {}, .seconds = 0});
    rows += 1 + drafts.size();
  }
  if (mask_rows_.empty()) return;
  for (size_t i = 0; i < draw_mask_.size(); ++i) {
    if (draw_mask_[i] >= 0) draw_order_.push_back(static_cast<int64_t>(i));
  }
  masks_.resize(std::max(masks_.size(), rows * words));
  size_t at = 0;
  for (MaskRow& row : mask_rows_) {
    row.masks = std::span(masks_).subspan(at * words, (1 + row.drafts.size()) * words);
    at += 1 + row.drafts.size();
  }
  mask_threads_.start(mask_rows_);
}

void ModelExecutor::finish_masks(StepResult& result) {
  mask_threads_.finish();
  for (const MaskRow& row : mask_rows_) result.masks.add(row.seconds);
}

namespace {

PositionLogprobs position_logprobs(std::span<const float> logits, int32_t token, int64_t top) {
  PositionLogprobs out;
  out.chosen = logprob_of(logits, token);
  if (top > 0) out.top = top_logprobs(logits, top);
  return out;
}

}  // namespace

void ModelExecutor::draw(const StepCommand& command, StepResult& result) {
  int64_t tokens = 0;
  int64_t logprobs = 0;
  for (size_t i = 0; i < command.draws.size(); ++i) {
    const LiveRows& live = live_[draw_rows_[i]];
    const int64_t most = live.count > 0 ? 1 + live.drafts : 0;
    result.draws.push_back({.first = tokens, .count = 0, .first_logprobs = logprobs, .drafted = live.drafts});
    tokens += most;
    if (command.draws[i].logprobs >= 0) logprobs += most;
  }
  result.tokens.resize(static_cast<size_t>(tokens));
  result.logprobs.resize(static_cast<size_t>(logprobs));
  const bool all_drawn = draw_on_device(command, result);
  std::atomic<double> waited = 0;
  const auto finish = [&](int64_t i, int thread) {
    const auto at = static_cast<size_t>(draw_order_[static_cast<size_t>(i)]);
    const LiveRows& live = live_[draw_rows_[at]];
    if (live.count == 0) return;
    std::span<const uint32_t> masks;
    if (draw_mask_[at] >= 0) {
      const double start = step_clock();
      mask_threads_.wait(static_cast<size_t>(draw_mask_[at]));
      waited += step_clock() - start;
      masks = mask_rows_[static_cast<size_t>(draw_mask_[at])].masks;
    }
    draw_tokens(command.draws[at], live, masks, scratch_[static_cast<size_t>(thread)], result.draws[at], result);
  };
  const auto count = static_cast<int64_t>(command.draws.size());
  if (all_drawn) {
    for (int64_t i = 0; i < count; ++i) finish(i, 0);  // little is left: less than waking threads
  } else {
    pool_->run(count, finish);
  }
  result.mask_wait = waited;
}

/// Whether draws of an answer need neither its history nor a mask.
bool ModelExecutor::device_draws(const DeviceSequence& device) const {
  return model_->draws() && !device.constraint.has_value() && device.sampler.draws_from_raw_logits();
}

DrawRow ModelExecutor::draw_row(const SamplingParams& params) {
  return {.greedy = params.temperature < kGreedyTemperature,
          .temperature = params.temperature,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .seed = params.seed,
          .choice_index = params.choice_index};
}

/// Fills device_tokens_, and fetches the logits that the host has to look at; true if there are none.
bool ModelExecutor::draw_on_device(const StepCommand& command, const StepResult& result) {
  device_rows_.clear();
  device_places_.clear();
  device_tokens_.assign(result.tokens.size(), kUndrawnToken);
  fetched_.clear();
  for (size_t i = 0; i < command.draws.size(); ++i) {
    const LiveRows& live = live_[draw_rows_[i]];
    const StepDraw& draw = command.draws[i];
    if (live.count == 0 || draw.logprobs >= 0 || !device_draws(*draw.device)) continue;  // log-probs want the logits themselves
    DrawRow row = draw_row(draw.device->sampler.params());
    for (int64_t j = 0; j <= live.drafts; ++j) {
      row.row = live.draw_logits + j;
      row.position = live.first + live.count + j;
      device_rows_.push_back(row);
      device_places_.push_back(result.draws[i].first + j);
    }
  }
  if (!device_rows_.empty()) {
    const std::span<const int32_t> tokens = model_->draw(device_rows_);
    for (size_t i = 0; i < tokens.size(); ++i) device_tokens_[static_cast<size_t>(device_places_[i])] = tokens[i];
  }
  for (size_t i = 0; i < command.draws.size(); ++i) {
    const LiveRows& live = live_[draw_rows_[i]];
    for (int64_t j = 0; live.count > 0 && j <= live.drafts; ++j) {
      if (device_tokens_[static_cast<size_t>(result.draws[i].first + j)] == kUndrawnToken)
        fetched_.push_back(static_cast<int32_t>(live.draw_logits + j));
    }
  }
  // Several choices may begin with one row.
  std::sort(fetched_.begin(), fetched_.end());
  fetched_.erase(std::unique(fetched_.begin(), fetched_.end()), fetched_.end());
  model_->fetch_logits(fetched_);
  return fetched_.empty();
}

/// Sample and match (dspark.md §6, rule B): each row's token is the very one that plain decoding draws there, from the same
/// logits, noise, mask and counts; the next row counts only if its input turns out to be that token.
void ModelExecutor::draw_tokens(const StepDraw& draw, const LiveRows& live, std::span<const uint32_t> masks,
                                std::vector<float>& scratch, DrawResult& drawn, StepResult& result) {
  DeviceSequence& device = *draw.device;
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const size_t words = (vocab + 31) / 32;
  for (int64_t j = 0; j <= live.drafts; ++j) {
    const auto row = model_->logits().subspan(static_cast<size_t>(live.draw_logits + j) * vocab, vocab);
    const int64_t position = live.first + live.count + j;
    const auto mask = masks.empty() ? masks : masks.subspan(static_cast<size_t>(j) * words, words);
    int32_t token = device_tokens_[static_cast<size_t>(drawn.first + j)];
    if (token != kUndrawnToken) {
      // Drawn where the logits are.
    } else if (const auto only = only_token(mask)) {
      token = *only;  // what any sampling would draw
    } else {
      // Samplers change logits in place, and several may draw from one row.
      scratch.assign(row.begin(), row.end());
      token = device.sampler.sample(scratch, position, mask);
    }
    if (device.constraint.has_value())
      DI_CHECK(device.constraint->accept(token), "token {} was drawn under a mask without it", token);
    device.sampler.add_output(token);
    device.last = token;
    device.ended = device.end.at_token(token) || position + 1 >= device.end.position;
    result.tokens[static_cast<size_t>(drawn.first + j)] = token;
    if (draw.logprobs >= 0)
      result.logprobs[static_cast<size_t>(drawn.first_logprobs + j)] = position_logprobs(row, token, draw.logprobs);
    drawn.count = j + 1;
    if (device.ended || j == live.drafts || tokens_[static_cast<size_t>(live.row + live.count + j)] != token) return;
  }
}

void ModelExecutor::prompt_logprobs(const StepCommand& command, StepResult& result) {
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  for (size_t i = 0; i < command.rows.size(); ++i) {
    const StepRows& rows = command.rows[i];
    const int64_t row = live_[i].row;
    if (rows.prompt_logprobs >= 0 && live_[i].count > 0) {
      const int64_t count = rows.count - (rows.next_token < 0 ? 1 : 0);
      const size_t first = result.prompt_logprobs.size();
      result.prompt_logprobs.resize(first + static_cast<size_t>(count));
      fetched_.resize(static_cast<size_t>(count));
      std::iota(fetched_.begin(), fetched_.end(), static_cast<int32_t>(live_[i].logits));
      model_->fetch_logits(fetched_);
      pool_->run(count, [&](int64_t j, int) {
        const int32_t next = j + 1 < rows.count ? tokens_[static_cast<size_t>(row + j + 1)] : rows.next_token;
        const auto logits = model_->logits().subspan(static_cast<size_t>(live_[i].logits + j) * vocab, vocab);
        result.prompt_logprobs[first + static_cast<size_t>(j)] = position_logprobs(logits, next, rows.prompt_logprobs);
      });
    }
  }
}

Status ModelExecutor::run_forks(const StepCommand& command, const StepRows& rows) {
  SequenceState& original = state(rows.place);
  const int64_t page_bytes = model_->page_layout().page_bytes;
  for (int64_t i = 0; i < rows.fork_count; ++i) {
    const StepFork& fork = command.forks[static_cast<size_t>(rows.first_fork + i)];
    SequenceState& s = state(fork.place);
    s.reset();
    const auto pages =
        std::span(command.pages).subspan(static_cast<size_t>(fork.first_page), static_cast<size_t>(fork.page_count));
    if (fork.copy_from != nullptr) model_->backend().memory().copy(pages.back(), fork.copy_from, page_bytes);
    s.append_pages(pages);
    DI_RETURN_IF_ERROR(s.copy_from(original));
  }
  return Status::Ok();
}

}  // namespace deepinfer
