#pragma once

// As src/ops/cuda/copies.cuh, emulated: copies are done when somebody waits for them, and no earlier; until then what they write
// is no number.

#include <cuda_runtime.h>

namespace deepinfer::cuda {

inline uint32_t shared_address(const void* p) { return emulated::shared_address(p); }

inline void copy_async(uint32_t to, const void* from, bool there) { emulated::copy_later(to, there ? from : nullptr, 16); }
inline void copy_weights_async(uint32_t to, const void* from, bool there) { copy_async(to, from, there); }
inline void copy_word_async(uint32_t to, const void* from) { emulated::copy_later(to, from, 4); }

inline void commit_copies() { emulated::commit_copies(); }
template <int kPending>
void wait_copies() {
  emulated::finish_copies(kPending);
}
inline void arrive_when_copied(uint64_t* barrier) { emulated::attach_copies(barrier); }

}  // namespace deepinfer::cuda
