// With CUPTI; device_records_absent.cc without.

#include <cupti.h>

#include <cstdlib>
#include <mutex>

#include "cuda/kernel_gaps.h"

namespace deepinfer::bench {
namespace {

constexpr size_t kBufferBytes = 4 << 20;

// CUPTI's callbacks have no argument of ours.
struct Records {
  std::mutex mutex;
  std::vector<DeviceSpan> spans;
};
Records& records() {
  static Records all;
  return all;
}

Status status_of(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return Status::Ok();
  const char* text = "unknown error";
  cuptiGetResultString(result, &text);
  return Status::FailedPrecondition("CUPTI: {}: {}", what, text);
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*size*/, size_t valid) {
  CUpti_Activity* record = nullptr;
  const std::lock_guard lock(records().mutex);
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      records().spans.push_back({kernel->name != nullptr ? kernel->name : "", kernel->start, kernel->end,
                                 int64_t{kernel->gridX} * kernel->gridY * kernel->gridZ,
                                 int64_t{kernel->blockX} * kernel->blockY * kernel->blockZ});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      records().spans.push_back({"copy", copy->start, copy->end});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      records().spans.push_back({"fill", fill->start, fill->end});
    }
  }
  std::free(buffer);
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

}  // namespace

Result<std::vector<DeviceSpan>> record_device(FunctionRef<void()> run) {
  {
    const std::lock_guard lock(records().mutex);
    records().spans.clear();
  }
  if (const Status s = status_of(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "callbacks"); !s.ok()) return Err(s);
  for (const CUpti_ActivityKind kind : kKinds) {
    if (const Status s = status_of(cuptiActivityEnable(kind), "enabling records"); !s.ok()) return Err(s);
  }
  run();
  const Status flushed = status_of(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flushing records");
  for (const CUpti_ActivityKind kind : kKinds) cuptiActivityDisable(kind);
  if (!flushed.ok()) return Err(flushed);
  const std::lock_guard lock(records().mutex);
  return records().spans;
}

}  // namespace deepinfer::bench
