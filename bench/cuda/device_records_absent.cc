#include "cuda/kernel_gaps.h"

namespace deepinfer::bench {

Result<std::vector<DeviceSpan>> record_device(FunctionRef<void()> /*run*/) {
  return Err(Status::FailedPrecondition("CUPTI: was not there when this was built"));
}

}  // namespace deepinfer::bench
