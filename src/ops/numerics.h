#pragma once

namespace deepinfer {

// Numerics versions: what the bits of a cached page depend on besides model, tokens and kernel set. Pages outlive the process
// that computed them, and a hit has to give what computing would give, to the bit; so they are stored under these numbers
// (Backend::numerics), and a build with another number begins with none.
//
// Raise the number of a backend when the same tokens may give it other rows of global KV, in one bit: another order of additions,
// another rounding point, another approximation of exp, another layout of a page; and all three when src/model changes so. What
// only makes steps faster, or changes logits and drafts alone, leaves them. tests/golden/page_numerics_test.cc compares the pages
// of a prompt with recorded hashes and says when it is time; it can't see a CUDA backend where there is no GPU.
//
// What needs no number as it is part of the name anyway: the kernel sets that the processor gets, compiler and C library (which
// has the exp and log1p of single values; src/base/build_info.h).
inline constexpr int kReferenceNumerics = 2;
inline constexpr int kCpuNumerics = 2;
inline constexpr int kCudaNumerics = 2;

}  // namespace deepinfer
