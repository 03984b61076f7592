#include "ops/cuda/recorder.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "ops/cuda/cuda_check.h"

namespace deepinfer::cuda {
namespace {

uint64_t hash_of(const Description& description) {
  uint64_t hash = description.size();
  for (const uint64_t word : description) hash = (std::rotl(hash, 5) ^ word) * 0x9e3779b97f4a7c15ull;
  return hash;
}

}  // namespace

Recorder::Recorder(LaunchStream* stream, Staging* staging) : stream_(stream), staging_(staging) {
  for (Block& block : blocks_) {
    block.pinned = static_cast<uint8_t*>(allocate_pinned(kBlockBytes));
    DI_CUDA(cudaEventCreateWithFlags(&block.copied, cudaEventDisableTiming));
    DI_CUDA(cudaEventRecord(block.copied, *stream_));
  }
  arguments_ = static_cast<uint8_t*>(allocate_device(kBlockBytes));
}

Recorder::~Recorder() {
  cudaStreamSynchronize(*stream_);
  for (Graph& graph : graphs_) cudaGraphExecDestroy(graph.executable);
  for (Block& block : blocks_) {
    cudaEventDestroy(block.copied);
    cudaFreeHost(block.pinned);
  }
  cudaFree(arguments_);
}

void Recorder::upload(void* to, const void* host, int64_t bytes) {
  if (bytes == 0) return;
  const auto* from = staging_->upload(std::span(static_cast<const uint8_t*>(host), static_cast<size_t>(bytes)));
  uploads_.push_back({to, from, bytes});
}

void Recorder::launch_uploads() {
  if (uploads_.empty()) return;
  for (const Segment& s : uploads_) {
    describe(description_, s.to);
    describe(description_, s.bytes);
  }
  const Segment* segments = staging_->upload(std::span<const Segment>(uploads_));
  if (mode_ == Mode::kRecord) copy_segments(segments, static_cast<int64_t>(uploads_.size()), *stream_);
  uploads_.clear();
}

void Recorder::rehearse(FunctionRef<void()> calls) {
  // The device may still read the block.
  DI_CUDA(cudaStreamSynchronize(*stream_));
  pass(Mode::kDescribe, blocks_[next_block_].pinned, calls, true);
}

int64_t Recorder::pass(Mode mode, uint8_t* host, FunctionRef<void()> calls, bool rehearsal) {
  description_.clear();
  staging_->keep_arguments(host, arguments_, kBlockBytes, rehearsal);
  mode_ = mode;
  calls();
  launch_uploads();
  mode_ = Mode::kRun;
  const int64_t bytes = staging_->end_arguments();
  describe(description_, bytes);
  return bytes;
}

cudaGraphExec_t Recorder::record(uint8_t* host, FunctionRef<void()> calls) {
  const Description described = description_;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  DI_CUDA(cudaStreamBeginCapture(*stream_, cudaStreamCaptureModeThreadLocal));
  stream_->order_fully();
  pass(Mode::kRecord, host, calls);
  DI_CUDA(cudaStreamEndCapture(*stream_, &graph));
  DI_CHECK(description_ == described, "the calls of a step differ from one time to the next");
  DI_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  DI_CUDA(cudaGraphDestroy(graph));
  return executable;
}

void Recorder::forget_oldest() {
  DI_CUDA(cudaStreamSynchronize(*stream_));
  const auto oldest = std::prev(graphs_.end());
  const auto [begin, end] = by_hash_.equal_range(hash_of(oldest->description));
  by_hash_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == oldest; }));
  DI_CUDA(cudaGraphExecDestroy(oldest->executable));
  graphs_.erase(oldest);
}

void Recorder::replay(FunctionRef<void()> calls) {
  Block& block = blocks_[next_block_];
  next_block_ = (next_block_ + 1) % kBlocks;
  DI_CUDA(cudaEventSynchronize(block.copied));
  const int64_t bytes = pass(Mode::kDescribe, block.pinned, calls);
  const uint64_t hash = hash_of(description_);
  const auto [begin, end] = by_hash_.equal_range(hash);
  const auto known = std::find_if(begin, end, [&](const auto& entry) { return entry.second->description == description_; });
  if (known == end) {
    if (seen_.size() >= kMostSeen) seen_.clear();
    if (seen_.insert(hash).second) {
      ++plain_;
      return calls();
    }
    if (graphs_.size() >= kMostGraphs) forget_oldest();
    cudaGraphExec_t executable = record(block.pinned, calls);
    graphs_.push_front({std::move(description_), executable});
    by_hash_.emplace(hash, graphs_.begin());
    ++recorded_;
  } else {
    graphs_.splice(graphs_.begin(), graphs_, known->second);
    ++replayed_;
  }
  if (bytes > 0) stream_->copy(arguments_, block.pinned, static_cast<size_t>(bytes), cudaMemcpyHostToDevice);
  DI_CUDA(cudaEventRecord(block.copied, *stream_));
  DI_CUDA(cudaGraphLaunch(graphs_.front().executable, *stream_));
  stream_->order_fully();
}

}  // namespace deepinfer::cuda
