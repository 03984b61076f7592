#pragma once

namespace deepinfer::cuda {

/// Whether the lane is the one of its warp, of which all lanes are here, that asks for copies: the compiler sees that it is
/// alone, and writes no loop over lanes.
__device__ inline bool chosen_lane() {
  int chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.s32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen != 0;
}

}  // namespace deepinfer::cuda
