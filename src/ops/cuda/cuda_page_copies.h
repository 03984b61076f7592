#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <mutex>

#include "ops/cuda/launch.h"
#include "ops/cuda/recorder.h"
#include "ops/page_copies.h"

namespace deepinfer::cuda {

/// Page copies of one device: a stream for each way, and events between them and the stream of the operators.
///
/// Fences and tickets are numbers; the event of number n is events[n % kEvents]. When an event is recorded anew for a later
/// number, whoever still waits for the earlier one waits for the later one instead: longer than it has to, and never less, since
/// what is behind it in its stream is over by then.
class CudaPageCopies final : public PageCopies {
 public:
  /// `operators`: the stream of the operators of the current device; `recorder` says when it is being recorded.
  CudaPageCopies(LaunchStream* operators, const Recorder* recorder);
  ~CudaPageCopies() override;

  PinnedMemory allocate_pinned(int64_t bytes) override;
  void fence() override;
  void operators_wait(Ticket copy) override;
  Fence last_fence() const override { return last_fence_.load(std::memory_order_acquire); }
  Ticket to_device(std::span<const CopyPiece> pieces, Fence after) override { return start(0, pieces, after); }
  Ticket to_host(std::span<const CopyPiece> pieces, Fence after) override { return start(1, pieces, after); }
  bool done(Ticket copy) override;
  void wait(Ticket copy) override;

 private:
  static constexpr int64_t kEvents = 256;
  using Events = std::array<cudaEvent_t, kEvents>;

  /// One way: 0 to the device, 1 to the host. The ticket of its copy number n is 2 n + way, n from 1.
  struct Way {
    cudaStream_t stream = nullptr;
    Events events{};
    std::mutex mutex;  ///< of `issued`, and of the order in the stream
    int64_t issued = 0;
    std::atomic<int64_t> over = 0;  ///< copies up to this one are known to be over
  };

  Ticket start(int way, std::span<const CopyPiece> pieces, Fence after);
  cudaEvent_t event_of(Ticket copy) const;
  void learn_over(Ticket copy);
  void use_device() const;

  int device_ = 0;
  LaunchStream* operators_;
  const Recorder* recorder_;
  Events fences_{};
  std::atomic<Fence> last_fence_ = 0;
  std::array<Way, 2> ways_;
};

}  // namespace deepinfer::cuda
