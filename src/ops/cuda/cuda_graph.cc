#include "ops/cuda/cuda_graph.h"

#include <cuda_runtime.h>

#include <vector>

#include "base/status.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/cuda_stream.h"

namespace deepinfer {
namespace {

class RecordedGraph final : public CudaGraph {
 public:
  /// The arguments of `calls` stay what they are now.
  RecordedGraph(cuda::StreamOwner* owner, FunctionRef<void()> calls) : stream_(owner->stream()) {
    constexpr int64_t kBytes = 16 << 20;
    std::vector<uint8_t> host(kBytes);
    DI_CUDA(cudaMalloc(reinterpret_cast<void**>(&arguments_), kBytes));
    cudaGraph_t graph = nullptr;
    owner->staging().keep_arguments(host.data(), arguments_, kBytes);
    DI_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    stream_.order_fully();
    calls();
    DI_CUDA(cudaStreamEndCapture(stream_, &graph));
    owner->staging().copy_to(arguments_, host.data(), owner->staging().end_arguments());
    DI_CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    DI_CUDA(cudaGraphDestroy(graph));
  }
  ~RecordedGraph() override {
    cudaStreamSynchronize(stream_);
    cudaGraphExecDestroy(executable_);
    cudaFree(arguments_);
  }
  void replay() override {
    DI_CUDA(cudaGraphLaunch(executable_, stream_));
    stream_.order_fully();
  }

 private:
  cuda::LaunchStream& stream_;
  uint8_t* arguments_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

cuda::StreamOwner* owner_of(Backend& backend) {
  auto* owner = dynamic_cast<cuda::StreamOwner*>(&backend);
  DI_CHECK(owner != nullptr, "{} records no graphs", backend.name());
  return owner;
}

}  // namespace

std::unique_ptr<CudaGraph> record_cuda_graph(Backend& backend, FunctionRef<void()> calls) {
  return std::make_unique<RecordedGraph>(owner_of(backend), calls);
}

CudaReplays cuda_replays(Backend& backend) { return owner_of(backend)->recorder().replays(); }

}  // namespace deepinfer
