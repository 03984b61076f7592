#pragma once

// The instruction sets that Highway sources of this folder are compiled for. Included before any header of Highway.
//
// SSSE3 has nothing over SSE4 that is used here. SVE and RISC-V vectors have no size at compile time, so they cannot be elements
// of an array of accumulators: Arm processors get NEON.

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

/// Those whose vectors have all that the portable kernels need; other processors get the baseline kernels.
#define DEEPINFER_PORTABLE_TARGETS (HWY_AVX3 | HWY_AVX2 | HWY_SSE4 | HWY_NEON)

/// FUNCTION compiled for `target`, one of those; nullptr if it was not. Where HWY_ONCE.
#define DEEPINFER_CHOOSE(target, FUNCTION)            \
  ((target) == HWY_AVX3   ? HWY_CHOOSE_AVX3(FUNCTION) \
   : (target) == HWY_AVX2 ? HWY_CHOOSE_AVX2(FUNCTION) \
   : (target) == HWY_SSE4 ? HWY_CHOOSE_SSE4(FUNCTION) \
   : (target) == HWY_NEON ? HWY_CHOOSE_NEON(FUNCTION) \
                          : nullptr)
