#include "ops/cuda/cuda_page_copies.h"

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "ops/cuda/cuda_check.h"

namespace deepinfer::cuda {
namespace {

/// Of a copy of rows, in either memory; devices allow nearly twice as much.
constexpr intptr_t kMostPitch = intptr_t{1} << 30;

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  // Threads that wait for a copy have nothing better to do than to sleep.
  DI_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  return event;
}

intptr_t distance(const uint8_t* from, const uint8_t* to) {
  return reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from);
}

/// How many pieces from the first on are of one size and lie in equal steps, forward in both memories: rows of one copy.
size_t rows_at(std::span<const CopyPiece> pieces) {
  if (pieces.size() < 2) return pieces.size();
  const int64_t bytes = pieces[0].bytes;
  const intptr_t device = distance(pieces[0].device, pieces[1].device);
  const intptr_t host = distance(pieces[0].host, pieces[1].host);
  if (std::min(device, host) < bytes || std::max(device, host) > kMostPitch) return 1;
  size_t end = 1;
  while (end < pieces.size() && pieces[end].bytes == bytes && distance(pieces[end - 1].device, pieces[end].device) == device &&
         distance(pieces[end - 1].host, pieces[end].host) == host) {
    ++end;
  }
  return end;
}

void copy_rows(std::span<const CopyPiece> rows, bool to_device, cudaStream_t stream) {
  const CopyPiece& first = rows.front();
  const auto device_pitch = static_cast<size_t>(distance(rows[0].device, rows[1].device));
  const auto host_pitch = static_cast<size_t>(distance(rows[0].host, rows[1].host));
  DI_CUDA(cudaMemcpy2DAsync(to_device ? first.device : first.host, to_device ? device_pitch : host_pitch,
                            to_device ? first.host : first.device, to_device ? host_pitch : device_pitch,
                            static_cast<size_t>(first.bytes), rows.size(),
                            to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
}

/// Pieces that lie anywhere, in one call: one call each takes longer than a small piece does (H200: 2.4 us for 28 kB).
class ScatteredPieces {
 public:
  explicit ScatteredPieces(bool to_device) : to_device_(to_device) {}

  void add(const CopyPiece& piece) {
    to_.push_back(to_device_ ? piece.device : piece.host);
    from_.push_back(to_device_ ? piece.host : piece.device);
    bytes_.push_back(static_cast<size_t>(piece.bytes));
  }
  void copy(cudaStream_t stream) const {
    if (to_.size() == 1) {
      DI_CUDA(cudaMemcpyAsync(to_[0], from_[0], bytes_[0], to_device_ ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
    } else if (!to_.empty()) {
      cudaMemcpyAttributes in_order{};
      in_order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      size_t first = 0;
      DI_CUDA(cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), to_.size(), &in_order, &first, 1, stream));
    }
  }

 private:
  bool to_device_;
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

}  // namespace

CudaPageCopies::CudaPageCopies(LaunchStream* operators, const Recorder* recorder) : operators_(operators), recorder_(recorder) {
  DI_CUDA(cudaGetDevice(&device_));
  for (cudaEvent_t& event : fences_) event = make_event();
  for (Way& way : ways_) {
    DI_CUDA(cudaStreamCreateWithFlags(&way.stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : way.events) event = make_event();
  }
}

CudaPageCopies::~CudaPageCopies() {
  for (Way& way : ways_) {
    cudaStreamSynchronize(way.stream);
    for (cudaEvent_t event : way.events) cudaEventDestroy(event);
    cudaStreamDestroy(way.stream);
  }
  for (cudaEvent_t event : fences_) cudaEventDestroy(event);
}

// Streams and events are the device's, and each thread begins on device 0.
void CudaPageCopies::use_device() const { DI_CUDA(cudaSetDevice(device_)); }

PinnedMemory CudaPageCopies::allocate_pinned(int64_t bytes) {
  use_device();
  PinnedMemory memory(nullptr, [](uint8_t* data) { DI_CUDA(cudaFreeHost(data)); });
  void* data = nullptr;
  if (cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable) != cudaSuccess) {
    (void)cudaGetLastError();  // or the next launch would be blamed
    return memory;
  }
  memory.reset(static_cast<uint8_t*>(data));
  return memory;
}

void CudaPageCopies::fence() {
  DI_CHECK(!recorder_->takes_uploads(), "a fence among calls to replay");
  const Fence next = last_fence_.load(std::memory_order_relaxed) + 1;
  DI_CUDA(cudaEventRecord(fences_[static_cast<size_t>(next % kEvents)], *operators_));
  // Whoever reads the number finds the event recorded.
  last_fence_.store(next, std::memory_order_release);
}

void CudaPageCopies::operators_wait(Ticket copy) {
  DI_CHECK(!recorder_->takes_uploads(), "a wait among calls to replay");
  if (copy <= 0) return;
  DI_CUDA(cudaStreamWaitEvent(*operators_, event_of(copy), 0));
  operators_->order_fully();
}

PageCopies::Ticket CudaPageCopies::start(int number, std::span<const CopyPiece> pieces, Fence after) {
  use_device();
  Way& way = ways_[static_cast<size_t>(number)];
  const std::lock_guard lock(way.mutex);
  if (after > 0) DI_CUDA(cudaStreamWaitEvent(way.stream, fences_[static_cast<size_t>(after % kEvents)], 0));
  const bool to_device = number == 0;
  ScatteredPieces scattered(to_device);
  while (!pieces.empty()) {
    const size_t rows = rows_at(pieces);
    if (rows > 1 && pieces.front().bytes > 0) copy_rows(pieces.first(rows), to_device, way.stream);
    if (rows == 1 && pieces.front().bytes > 0) scattered.add(pieces.front());
    pieces = pieces.subspan(rows);
  }
  scattered.copy(way.stream);
  ++way.issued;
  DI_CUDA(cudaEventRecord(way.events[static_cast<size_t>(way.issued % kEvents)], way.stream));
  return 2 * way.issued + number;
}

cudaEvent_t CudaPageCopies::event_of(Ticket copy) const {
  return ways_[static_cast<size_t>(copy % 2)].events[static_cast<size_t>(copy / 2 % kEvents)];
}

/// What is before it in its stream is over, too.
void CudaPageCopies::learn_over(Ticket copy) {
  std::atomic<int64_t>& over = ways_[static_cast<size_t>(copy % 2)].over;
  int64_t known = over.load();
  while (known < copy / 2 && !over.compare_exchange_weak(known, copy / 2)) {
  }
}

bool CudaPageCopies::done(Ticket copy) {
  if (copy == 0 || copy / 2 <= ways_[static_cast<size_t>(copy % 2)].over.load()) return true;
  use_device();
  const cudaError_t state = cudaEventQuery(event_of(copy));
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();  // not an error, but kept as one
    return false;
  }
  DI_CUDA(state);
  learn_over(copy);
  return true;
}

void CudaPageCopies::wait(Ticket copy) {
  if (copy == 0) return;
  use_device();
  DI_CUDA(cudaEventSynchronize(event_of(copy)));
  learn_over(copy);
}

}  // namespace deepinfer::cuda
