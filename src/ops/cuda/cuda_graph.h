#pragma once

#include <memory>

#include "base/function_ref.h"
#include "ops/ops.h"

namespace deepinfer {

/// A sequence of operator calls, recorded once and replayed without the host's part in each launch. What the calls were given
/// stays what it was: pointers, sizes, and the contents of spans. Page tables and lists of experts are those the backend saw last
/// at the same host address. Neither they nor scratch may have to grow: make the same calls once before they are recorded, and
/// none with larger ones as long as the graph is used.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  virtual void replay() = 0;

  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

 protected:
  CudaGraph() = default;
};

/// `backend`: of make_cuda_backend, which has to live as long as the graph. `calls` runs nothing on the device. It must not wait
/// for it either: no download, no allocation.
std::unique_ptr<CudaGraph> record_cuda_graph(Backend& backend, FunctionRef<void()> calls);

/// What became of the steps that a CUDA backend was given by Backend::replay.
struct CudaReplays {
  int64_t graphs = 0;  ///< kept now
  int64_t replayed = 0, recorded = 0;
  int64_t plain = 0;  ///< shapes met for the first time
};
CudaReplays cuda_replays(Backend& backend);

}  // namespace deepinfer
