#include "engine/fake_executor.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/status.h"
#include "engine/model_executor.h"

namespace deepinfer {

void FakeExecutor::submit(const StepCommand& command, StepResult& result) {
  DI_CHECK(queued_ < 2, "{} steps in flight", queued_);
  result.begin = std::max(step_clock(), free_at_);
  free_at_ = result.begin + options_.seconds_per_step;
  result.end = free_at_;
  queue_[queued_++] = {&command, &result};
}

void FakeExecutor::wait() {
  DI_CHECK(queued_ > 0, "nothing to wait for");
  const Job job = queue_[0];
  queue_[0] = queue_[1];
  --queued_;
  if (options_.seconds_per_step > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, job.result->end - step_clock())));
  const StepCommand& command = *job.command;
  StepResult& result = *job.result;
  if (command.number == options_.failing_step) {
    result.status = Status::Internal("the device failed in step {}", command.number);
    return;
  }
  for (const StepRows& rows : command.rows) {
    // Like a device: how far a sequence really is, only this side knows.
    int64_t& end = ends_[rows.sequence];
    if (rows.begin || end < rows.first) end = rows.first;
    end += rows.count;
    for (int64_t i = 0; i < rows.draw_count; ++i) {
      const StepDraw& draw = command.draws[static_cast<size_t>(rows.first_draw + i)];
      DrawResult drawn{.first = static_cast<int64_t>(result.tokens.size()),
                       .first_logprobs = static_cast<int64_t>(result.logprobs.size())};
      if (draw.device->ended) {
        result.draws.push_back(drawn);
        continue;
      }
      drawn.drafted = std::max<int64_t>(0, std::min(rows.drafts, draw.device->end.position - end - 1));
      const int64_t accepted = drawn.drafted > 0 && options_.accepted
                                   ? std::clamp<int64_t>(options_.accepted(draw.sequence, end), 0, drawn.drafted)
                                   : 0;
      for (int64_t j = 0; j <= accepted && !draw.device->ended; ++j) {
        const int32_t token = options_.token ? options_.token(draw.sequence, end + j) : 10;
        draw.device->last = token;
        draw.device->ended = draw.device->end.at_token(token) || end + j + 1 >= draw.device->end.position;
        result.tokens.push_back(token);
        if (draw.logprobs >= 0) result.logprobs.emplace_back();
        ++drawn.count;
      }
      if (drawn.drafted > 0) end += drawn.count - 1;
      result.draws.push_back(drawn);
    }
    if (rows.prompt_logprobs >= 0)
      result.prompt_logprobs.resize(result.prompt_logprobs.size() +
                                    static_cast<size_t>(rows.count - (rows.next_token < 0 ? 1 : 0)));
    if (rows.save_at >= 0) result.windows.push_back(nullptr);
    result.ends.push_back(end);
    result.rows += rows.count + (rows.draw_count > 0 ? rows.drafts : 0);
  }
  result.draft_rows = int64_t{1} << 20;
}

}  // namespace deepinfer
