#pragma once

// Blocks that run side by side, a cluster, and the shared memory of each other. tests/ops/cuda/emulated has them for a host
// without a GPU.

#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

/// All threads of a cluster's blocks: those that have waited see the barriers of all blocks that were shown (show_barriers).
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/// The place in block `rank` of the cluster where `shared` is in this one.
__device__ inline uint32_t shared_of(uint32_t shared, uint32_t rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared), "r"(rank));
  return r;
}
/// v on its way to such a place, four bytes that the barrier there counts.
__device__ inline void store_cluster(uint32_t address, float v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address), "f"(v),
               "r"(barrier)
               : "memory");
}

}  // namespace deepinfer::cuda
