#include "ops/cuda/cuda_graph.h"

#include <cuda_runtime.h>

#include "base/status.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/cuda_stream.h"

namespace deepinfer {
namespace {

class RecordedGraph final : public CudaGraph {
 public:
  RecordedGraph(cudaGraph_t graph, cudaStream_t stream, void* arguments) : stream_(stream), arguments_(arguments) {
    DI_CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    DI_CUDA(cudaGraphDestroy(graph));
  }
  ~RecordedGraph() override {
    cudaStreamSynchronize(stream_);
    cudaGraphExecDestroy(executable_);
    cudaFree(arguments_);
  }
  void replay() override { DI_CUDA(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaStream_t stream_;
  void* arguments_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<CudaGraph> record_cuda_graph(Backend& backend, FunctionRef<void()> calls) {
  auto* owner = dynamic_cast<cuda::StreamOwner*>(&backend);
  DI_CHECK(owner != nullptr, "{} records no graphs", backend.name());
  cudaGraph_t graph = nullptr;
  owner->staging().begin_recording();
  DI_CUDA(cudaStreamBeginCapture(owner->stream(), cudaStreamCaptureModeThreadLocal));
  calls();
  DI_CUDA(cudaStreamEndCapture(owner->stream(), &graph));
  return std::make_unique<RecordedGraph>(graph, owner->stream(), owner->staging().end_recording());
}

}  // namespace deepinfer
