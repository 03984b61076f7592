#pragma once

// As src/ops/cuda/cluster_instructions.cuh, emulated.

#include <map>

#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

inline void cluster_arrive() { emulated::cluster_arrive(); }
inline void cluster_wait() { emulated::cluster_wait(); }
inline uint32_t shared_of(uint32_t shared, uint32_t rank) { return emulated::shared_of(shared, rank); }
inline void store_cluster(uint32_t address, float v, uint32_t barrier) {
  static std::map<void*, int> stores;  // whose four bytes a barrier has not counted yet: it counts 16 at a time
  if (address % 4 != 0 || barrier % 8 != 0 || address >> 24 != barrier >> 24) std::abort();
  std::memcpy(emulated::shared_of_cluster(address, 4), &v, 4);
  auto* counter = reinterpret_cast<uint64_t*>(emulated::shared_of_cluster(barrier, 8));
  if (++stores[counter] % 4 == 0) {
    --as_emulated(counter).pending;
    end_turn(as_emulated(counter));
  }
}

}  // namespace deepinfer::cuda
