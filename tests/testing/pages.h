#pragma once

#include <cstdlib>
#include <cstring>
#include <set>

#include "model/sequence_state.h"

namespace deepinfer::testing {

/// Pages that are counted, limited, and full of rubbish when handed out.
class CountingPages final : public PageAllocator {
 public:
  explicit CountingPages(int64_t page_bytes, int64_t budget = int64_t{1} << 40, DeviceMemory* memory = &host_memory())
      : bytes_(page_bytes), budget_(budget), memory_(memory) {}
  ~CountingPages() override {
    for (uint8_t* page : live_) memory_->free(page);
  }
  uint8_t* allocate() override {
    if (live() >= budget_) return nullptr;
    auto* page = static_cast<uint8_t*>(memory_->allocate(bytes_));
    memory_->fill(page, 0x5F, bytes_);
    live_.insert(page);
    return page;
  }
  void free(uint8_t* page) override {
    if (live_.erase(page) != 1) std::abort();  // freed twice, or never handed out
    memory_->free(page);
  }
  int64_t live() const { return static_cast<int64_t>(live_.size()); }
  void set_budget(int64_t budget) { budget_ = budget; }

 private:
  int64_t bytes_;
  int64_t budget_;
  DeviceMemory* memory_;
  std::set<uint8_t*> live_;
};

}  // namespace deepinfer::testing
