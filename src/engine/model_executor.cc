#include "engine/model_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace deepinfer {

double step_clock() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

namespace {

/// Masks take microseconds, and the backend's threads help once the forward pass is over: a few threads are enough.
int mask_thread_count() { return std::clamp(available_threads() / 8, 1, 8); }

}  // namespace

ModelExecutor::ModelExecutor(Model* model, ThreadPool* pool, int64_t places)
    : model_(model),
      pool_(pool),
      states_(static_cast<size_t>(places)),
      mask_threads_(mask_thread_count(), places),
      scratch_(static_cast<size_t>(pool->size())) {
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
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = queue_.front();
      queue_.pop_front();
    }
    job.result->begin = step_clock();
    run(*job.command, *job.result);
    job.result->end = step_clock();
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
  start_masks(command);
  const auto output = forward(command, result);
  if (!output) {
    mask_threads_.finish();
    result.status = output.error();
    return;
  }
  result.row_layers = output->encoder_row_layers + output->decoder_row_layers;
  prompt_logprobs(command, *output, result);
  draw(command, *output, result);
  finish_masks(result);
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

Result<StepOutput> ModelExecutor::forward(const StepCommand& command, const StepResult& result) {
  tokens_.assign(command.tokens.begin(), command.tokens.end());
  sequences_.clear();
  logit_rows_.clear();
  draw_logits_.clear();
  prompt_logits_.clear();
  int64_t row = 0;
  size_t window = 0;
  for (const StepRows& rows : command.rows) {
    WindowSnapshot* save = rows.save_at >= 0 ? &result.windows[window++]->window : nullptr;
    sequences_.push_back({&state(rows.place), rows.count, save, rows.save_at});
    for (int64_t i = row; i < row + rows.count; ++i) {
      int32_t& token = tokens_[static_cast<size_t>(i)];
      if (token == kLastSampled) token = rows.device->last;
    }
    const auto last = static_cast<int32_t>(row + rows.count - 1);
    prompt_logits_.push_back(static_cast<int64_t>(logit_rows_.size()));
    if (rows.prompt_logprobs >= 0) {
      for (auto i = static_cast<int32_t>(row); i <= last; ++i) logit_rows_.push_back(i);
    } else if (rows.draw_count > 0) {
      logit_rows_.push_back(last);
    }
    for (int64_t i = 0; i < rows.draw_count; ++i) draw_logits_.push_back(static_cast<int64_t>(logit_rows_.size()) - 1);
    row += rows.count;
  }
  StepBatch batch;
  batch.tokens = tokens_;
  batch.sequences = sequences_;
  batch.logit_rows = logit_rows_;
  return model_->forward(batch);
}

void ModelExecutor::start_masks(const StepCommand& command) {
  const size_t words = static_cast<size_t>(model_->config().vocab_size + 31) / 32;
  mask_rows_.clear();
  draw_mask_.clear();
  draw_order_.clear();
  for (const StepDraw& d : command.draws) {
    const bool masked = d.device->constraint.has_value();
    if (!masked) draw_order_.push_back(static_cast<int64_t>(draw_mask_.size()));
    draw_mask_.push_back(masked ? static_cast<int64_t>(mask_rows_.size()) : -1);
    if (masked) mask_rows_.push_back({&*d.device->constraint, {}, 0});
  }
  if (mask_rows_.empty()) return;
  for (size_t i = 0; i < draw_mask_.size(); ++i) {
    if (draw_mask_[i] >= 0) draw_order_.push_back(static_cast<int64_t>(i));
  }
  masks_.resize(std::max(masks_.size(), mask_rows_.size() * words));
  for (size_t i = 0; i < mask_rows_.size(); ++i) mask_rows_[i].mask = std::span(masks_).subspan(i * words, words);
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

void ModelExecutor::draw(const StepCommand& command, const StepOutput& output, StepResult& result) {
  const auto draws = static_cast<int64_t>(command.draws.size());
  if (draws == 0) return;
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  result.tokens.resize(static_cast<size_t>(draws));
  std::vector<size_t> logprob_of_draw(static_cast<size_t>(draws));
  size_t logprobs = 0;
  for (size_t i = 0; i < command.draws.size(); ++i) {
    logprob_of_draw[i] = logprobs;
    if (command.draws[i].logprobs >= 0) ++logprobs;
  }
  result.logprobs.resize(logprobs);
  std::vector<int64_t> positions(static_cast<size_t>(draws));
  for (const StepRows& rows : command.rows) {
    for (int64_t i = 0; i < rows.draw_count; ++i) positions[static_cast<size_t>(rows.first_draw + i)] = rows.first + rows.count;
  }
  std::atomic<double> waited = 0;
  pool_->run(draws, [&](int64_t i, int thread) {
    const auto at = static_cast<size_t>(draw_order_[static_cast<size_t>(i)]);
    const StepDraw& d = command.draws[at];
    std::span<const uint32_t> mask;
    if (draw_mask_[at] >= 0) {
      const double start = step_clock();
      mask_threads_.wait(static_cast<size_t>(draw_mask_[at]));
      waited += step_clock() - start;
      mask = mask_rows_[static_cast<size_t>(draw_mask_[at])].mask;
    }
    const auto logits = output.logits.subspan(static_cast<size_t>(draw_logits_[at]) * vocab, vocab);
    int32_t token = -1;
    if (const auto only = only_token(mask)) {
      token = *only;  // what any sampling would draw
    } else {
      // Samplers change logits in place, and several may draw from one row.
      std::vector<float>& scratch = scratch_[static_cast<size_t>(thread)];
      scratch.assign(logits.begin(), logits.end());
      token = d.device->sampler.sample(scratch, positions[at], mask);
    }
    d.device->sampler.add_output(token);
    if (d.device->constraint.has_value()) {
      OutputConstraint& constraint = *d.device->constraint;
      // An answer that has ended may have a row more, which is dropped.
      DI_CHECK(constraint.accept(token) || constraint.ended(), "token {} was drawn under a mask without it", token);
    }
    d.device->last = token;
    result.tokens[at] = token;
    if (d.logprobs >= 0) result.logprobs[logprob_of_draw[at]] = position_logprobs(logits, token, d.logprobs);
  });
  result.mask_wait = waited;
}

void ModelExecutor::prompt_logprobs(const StepCommand& command, const StepOutput& output, StepResult& result) {
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  int64_t row = 0;
  for (size_t i = 0; i < command.rows.size(); ++i) {
    const StepRows& rows = command.rows[i];
    if (rows.prompt_logprobs >= 0) {
      const int64_t count = rows.count - (rows.next_token < 0 ? 1 : 0);
      const size_t first = result.prompt_logprobs.size();
      result.prompt_logprobs.resize(first + static_cast<size_t>(count));
      pool_->run(count, [&](int64_t j, int) {
        const int32_t next = j + 1 < rows.count ? tokens_[static_cast<size_t>(row + j + 1)] : rows.next_token;
        const auto logits = output.logits.subspan(static_cast<size_t>(prompt_logits_[i] + j) * vocab, vocab);
        result.prompt_logprobs[first + static_cast<size_t>(j)] = position_logprobs(logits, next, rows.prompt_logprobs);
      });
    }
    row += rows.count;
  }
}

Status ModelExecutor::run_forks(const StepCommand& command, const StepRows& rows) {
  SequenceState& original = state(rows.place);
  const auto page_bytes = static_cast<size_t>(model_->page_layout().page_bytes);
  for (int64_t i = 0; i < rows.fork_count; ++i) {
    const StepFork& fork = command.forks[static_cast<size_t>(rows.first_fork + i)];
    SequenceState& s = state(fork.place);
    s.reset();
    const auto pages =
        std::span(command.pages).subspan(static_cast<size_t>(fork.first_page), static_cast<size_t>(fork.page_count));
    if (fork.copy_from != nullptr) std::memcpy(pages.back(), fork.copy_from, page_bytes);
    s.append_pages(pages);
    DI_RETURN_IF_ERROR(s.copy_from(original));
  }
  return Status::Ok();
}

}  // namespace deepinfer
