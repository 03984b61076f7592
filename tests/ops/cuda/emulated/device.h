#pragma once

// A GPU's thread blocks on one thread of the host: every thread of a block is a fiber, and gives way where it would wait for
// others. Blocks of a grid run one after the other, those of a
// cluster together. What a warp does as one is done once, when its last lane arrives. Shared
// memory is not a number before it is written.
//
// Products of warpgroups are computed when they are waited for, not when they are issued: operands that are overwritten too early
// and results that are used too early show. Data races between threads do not: fibers change only where they wait.

#include <cstdint>

#include "base/function_ref.h"

namespace deepinfer::emulated {

struct Place {
  unsigned x = 0, y = 0, z = 0;
};
struct ThreadPlace {
  Place thread, block, block_size, grid_size;
};
/// Of the fiber that runs.
const ThreadPlace& place();
int lane();

/// `body` once for every thread of every block; `cluster` of them, which follow each other along x, run side by side.
void run(const Place& grid, unsigned threads, uint64_t shared_bytes, unsigned cluster, FunctionRef<void()> body);

/// The block's, at a multiple of 1024.
uint8_t* shared_memory();
/// Of the shared window; aborts where there is none.
uint32_t shared_address(const void* p);
const uint8_t* shared_at(uint32_t address, uint32_t bytes);
/// The same place in block `rank` of the cluster, and where that is.
uint32_t shared_of(uint32_t address, uint32_t rank);
uint8_t* shared_of_cluster(uint32_t address, uint32_t bytes);

/// Gives way until it is true; aborts if that never happens.
void wait_until(FunctionRef<bool()> done);
/// Barrier `number` of `threads` threads of the block.
void block_barrier(int number, int threads);
/// All threads of a cluster, in two steps.
void cluster_arrive();
void cluster_wait();
/// `once` with the arguments of all 32 lanes of the warp, when all are there.
void with_warp(void* argument, FunctionRef<void(void* const*)> once);

/// sums [16 rows, n] (+)= a [16, 16] b [16, n], one rounding a sum, where mma.m16n8k16 has them: lanes' sums [n / 8][4], lanes'
/// a. b(k, j): column j.
void multiply(float* const (&sums)[32], const uint32_t (&a)[32][4], int n, FunctionRef<float(int, int)> b, bool add);

/// A product of a warpgroup that was issued: descriptor as of wgmma, rows of operand b along the 16 columns or across them.
struct Product {
  float* sums = nullptr;
  uint32_t a[4] = {};
  uint64_t descriptor = 0;
  bool add = false;
  int n = 0;
  bool across = false;
  uint64_t rows = 0;  ///< descriptor of 64 rows, instead of a
};
/// Bytes for shared memory, or zeros, that come when they are waited for; until then there are 0xff.
struct SharedCopy {
  uint8_t* to = nullptr;
  const void* from = nullptr;  ///< nullptr: zeros
  uint32_t bytes = 16;
};
void issue_copy(const SharedCopy& copy);
/// Copies may read nothing there: what lies behind an array, in the word that its last byte lies in. Until it is allowed again.
void forbid_copies(const void* from, size_t bytes);
void allow_copies(const void* from);
void commit_copies();
/// All groups but the last `pending`.
void finish_copies(uint64_t pending);
/// Copies of this thread that are in no group yet come with finish_attached of this barrier.
void attach_copies(const void* barrier);
/// Does what is attached to a barrier; `arrive` once for every time that copies were attached.
void finish_attached(const void* barrier, FunctionRef<void()> arrive);
/// A copy that a barrier counts, and all of its copies that are under way: `arrived` with the bytes of each.
void issue_bulk_copy(const void* barrier, const SharedCopy& copy);
void finish_bulk_copies(const void* barrier, FunctionRef<void(uint32_t)> arrived);

void issue(const Product& product);
void commit();
/// Computes all groups but the last `pending`.
void finish(uint64_t pending);

}  // namespace deepinfer::emulated
