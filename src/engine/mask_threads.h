#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/output_constraint.h"

namespace deepinfer {

/// The masks of one draw of a step: of its own row, and of the rows of its drafts.
struct MaskRow {
  OutputConstraint* constraint = nullptr;
  std::span<const int32_t> drafts;
  std::span<uint32_t> masks;  ///< [drafts + 1, mask words]
  double seconds = 0;         ///< that filling it took
};

/// Threads of the host that fill the masks of a step while the device runs it. One user, who may wait on several threads.
class MaskThreads {
 public:
  /// Threads start with the first row. `max_rows`: of one step.
  MaskThreads(int threads, int64_t max_rows) : count_(threads), filled_(static_cast<size_t>(max_rows)) {}
  ~MaskThreads();
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  /// Begins to fill the rows, in their order; returns at once. They stay as they are until `finish`.
  void start(std::span<MaskRow> rows);
  /// Returns when the row is filled. The caller fills rows itself while there are some that nobody has begun.
  void wait(size_t row);
  /// Returns when all rows are filled.
  void finish();

 private:
  void work();
  /// Fills the next row that nobody has begun. False: there is none.
  bool fill_next();

  const int count_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::span<MaskRow> rows_;
  size_t next_ = 0;
  std::vector<std::atomic<bool>> filled_;  ///< by row
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer
