#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/recorder.h"

namespace deepinfer::cuda {

/// What a CUDA backend is beside the operators.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  virtual LaunchStream& stream() = 0;
  virtual Staging& staging() = 0;
  virtual const Recorder& recorder() = 0;
};

}  // namespace deepinfer::cuda
