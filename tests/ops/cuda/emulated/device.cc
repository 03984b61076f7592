#include "ops/cuda/emulated/device.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/scalar_types.h"
#include "ops/cuda/cuda_check.h"

namespace deepinfer {
namespace emulated {
namespace {

constexpr int kWarp = 32;
constexpr uint32_t kSharedBase = 1024;  // of the window
constexpr uint64_t kMostTurns = 50'000'000;

struct Copy {
  uint32_t to;
  uint32_t bytes;
  const void* from;
};
struct Fiber {
  ucontext_t context = {};
  ThreadPlace place;
  bool ended = false;
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  std::vector<Copy> asked;
  std::deque<std::vector<Copy>> copies;
};

struct Gathering {
  int arrived = 0;
  uint64_t times = 0;
  void* arguments[kWarp] = {};
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Gathering> warps, barriers;
  std::unordered_map<const void*, std::vector<std::vector<Copy>>> attached;  // by barrier
  ucontext_t outside = {};
  size_t current = 0;
  size_t running = 0;
  uint64_t turns_without_progress = 0;
  std::vector<uint8_t> memory;
  uint8_t* shared = nullptr;
  uint64_t shared_bytes = 0;
  const FunctionRef<void()>* body = nullptr;
};

Block* block = nullptr;  // the one that runs

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated device: thread %zu: %s\n", block == nullptr ? 0 : block->current, what);
  std::abort();
}

Fiber& self() { return *block->fibers[block->current]; }

size_t next_fiber() {
  size_t next = block->current;
  do next = (next + 1) % block->fibers.size();
  while (block->fibers[next]->ended && next != block->current);
  return next;
}

void give_way() {
  if (++block->turns_without_progress > kMostTurns) fail("waits for ever");
  const size_t before = block->current;
  const size_t next = next_fiber();
  if (next == before) fail("waits for threads that have ended");
  block->current = next;
  swapcontext(&block->fibers[before]->context, &block->fibers[next]->context);
}

void enter() {
  (*block->body)();
  self().ended = true;
  block->turns_without_progress = 0;
  if (--block->running == 0) setcontext(&block->outside);
  block->current = next_fiber();
  setcontext(&self().context);
}

void gather(Gathering& g, int count, FunctionRef<void()> once) {
  const uint64_t times = g.times;
  if (++g.arrived == count) {
    once();
    g.arrived = 0;
    ++g.times;
    block->turns_without_progress = 0;
    return;
  }
  while (g.times == times) give_way();
}

float half_of(uint32_t pair, int i) { return to_float(bf16{static_cast<uint16_t>(pair >> 16 * i)}); }

// The layouts of the PTX manual ("Matrix Descriptor Format", 128-byte swizzle).
float operand(const Product& p, int k, int n) {
  const auto field = [&](int shift) { return static_cast<uint32_t>(p.descriptor >> shift & 0x3fff) << 4; };
  if (p.descriptor >> 62 != 1 || (p.descriptor >> 49 & 7) != 0) fail("a descriptor without 128-byte swizzle, or with an offset");
  const auto uk = static_cast<uint32_t>(k);
  const auto un = static_cast<uint32_t>(n);
  const uint32_t offset = p.across ? un % 64 * 2 + un / 64 * field(16) + uk % 8 * 128 + uk / 8 * field(32)
                                   : un % 8 * 128 + un / 8 * field(32) + uk * 2;
  const uint32_t at = field(0) + offset;
  bf16 v;
  std::memcpy(&v, shared_at(at ^ (at >> 7 & 7) << 4, 2), 2);
  return to_float(v);
}

}  // namespace

const ThreadPlace& place() { return self().place; }
int lane() { return static_cast<int>(place().thread.x) % kWarp; }

void run(const Place& grid, unsigned threads, uint64_t shared_bytes, FunctionRef<void()> body) {
  constexpr size_t kStackBytes = 128 << 10;
  const auto stacks = std::make_unique_for_overwrite<uint8_t[]>(threads * kStackBytes);
  for (unsigned i = 0; i < grid.x * grid.y * grid.z; ++i) {
    Block own;
    block = &own;
    own.body = &body;
    own.memory.assign(shared_bytes + kSharedBase, 0xff);
    own.shared = own.memory.data() + (kSharedBase - reinterpret_cast<uintptr_t>(own.memory.data()) % kSharedBase) % kSharedBase;
    own.shared_bytes = shared_bytes;
    own.warps.resize((threads + kWarp - 1) / kWarp);
    own.barriers.resize(16);
    own.running = threads;
    for (unsigned t = 0; t < threads; ++t) {
      auto fiber = std::make_unique<Fiber>();
      fiber->place = {{t, 0, 0}, {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y}, {threads, 1, 1}, grid};
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = stacks.get() + t * kStackBytes;
      fiber->context.uc_stack.ss_size = kStackBytes;
      makecontext(&fiber->context, enter, 0);
      own.fibers.push_back(std::move(fiber));
    }
    swapcontext(&own.outside, &own.fibers[0]->context);
    block = nullptr;
  }
}

uint8_t* shared_memory() { return block->shared; }
uint32_t shared_address(const void* p) {
  const auto offset = static_cast<uint64_t>(static_cast<const uint8_t*>(p) - block->shared);
  if (offset > block->shared_bytes) fail("an address that is not in shared memory");
  return kSharedBase + static_cast<uint32_t>(offset);
}
namespace {
uint8_t* copied_to(const Copy& copy) { return const_cast<uint8_t*>(shared_at(copy.to, copy.bytes)); }
void do_copies(const std::vector<Copy>& copies) {
  for (const Copy& c : copies) {
    if (c.from == nullptr) {
      std::memset(copied_to(c), 0, c.bytes);
    } else {
      std::memcpy(copied_to(c), c.from, c.bytes);
    }
  }
}
}  // namespace

void copy_later(uint32_t to, const void* from, uint32_t bytes) {
  if (to % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0)
    fail("a copy at an address that is no multiple of its size");
  const Copy copy{to, bytes, from};
  std::memset(copied_to(copy), 0xff, bytes);
  self().asked.push_back(copy);
}
void commit_copies() {
  self().copies.push_back(std::move(self().asked));
  self().asked.clear();
}
void finish_copies(uint64_t pending) {
  for (auto& groups = self().copies; groups.size() > pending; groups.pop_front()) do_copies(groups.front());
}
void attach_copies(const void* barrier) {
  block->attached[barrier].push_back(std::move(self().asked));
  self().asked.clear();
}
void finish_attached(const void* barrier, FunctionRef<void()> arrive) {
  const auto own = block->attached.find(barrier);
  if (own == block->attached.end()) return;
  for (const auto& copies : own->second) {
    do_copies(copies);
    arrive();
  }
  own->second.clear();
}

const uint8_t* shared_at(uint32_t address, uint32_t bytes) {
  if (address < kSharedBase || address - kSharedBase + bytes > block->shared_bytes) fail("a step over the end of shared memory");
  return block->shared + (address - kSharedBase);
}

void wait_until(FunctionRef<bool()> done) {
  while (!done()) give_way();
  block->turns_without_progress = 0;
}
void block_barrier(int number, int threads) {
  gather(block->barriers[static_cast<size_t>(number)], threads, [] {});
}
void with_warp(void* argument, FunctionRef<void(void* const*)> once) {
  Gathering& warp = block->warps[block->current / kWarp];
  warp.arguments[lane()] = argument;
  gather(warp, kWarp, [&] { once(warp.arguments); });
}

void multiply(float* const (&sums)[32], const uint32_t (&a)[32][4], int n, FunctionRef<float(int, int)> b, bool add) {
  double rows[16][16];
  for (int l = 0; l < kWarp; ++l) {
    for (int i = 0; i < 8; ++i) rows[l / 4 + i / 2 % 2 * 8][l % 4 * 2 + i % 2 + i / 4 * 8] = half_of(a[l][i / 2], i % 2);
  }
  for (int j = 0; j < n; ++j) {
    double column[16];
    for (int k = 0; k < 16; ++k) column[k] = b(k, j);
    for (int row = 0; row < 16; ++row) {
      double sum = 0;
      for (int k = 0; k < 16; ++k) sum += rows[row][k] * column[k];
      float& at = sums[row % 8 * 4 + j % 8 / 2][j / 8 * 4 + row / 8 * 2 + j % 2];
      at = static_cast<float>((add ? static_cast<double>(at) : 0.0) + sum);
    }
  }
}

void issue(const Product& product) { self().open.push_back(product); }
void commit() {
  self().groups.push_back(std::move(self().open));
  self().open.clear();
}
void finish(uint64_t pending) {
  with_warp(nullptr, [&](void* const*) {
    const size_t first = block->current / kWarp * kWarp;
    const auto fiber = [&](size_t l) -> Fiber& { return *block->fibers[first + l]; };
    while (fiber(0).groups.size() > pending) {
      for (size_t i = 0; i < fiber(0).groups.front().size(); ++i) {
        const Product& product = fiber(0).groups.front()[i];
        float* sums[kWarp];
        uint32_t a[kWarp][4];
        for (size_t l = 0; l < kWarp; ++l) {
          const Product& own = fiber(l).groups.front()[i];
          if (own.descriptor != product.descriptor || own.add != product.add)
            fail("a product of which a warp's lanes think differently");
          sums[l] = own.sums;
          std::memcpy(a[l], own.a, sizeof own.a);
        }
        multiply(
            sums, a, product.n, [&](int k, int j) { return operand(product, k, j); }, product.add);
      }
      for (size_t l = 0; l < kWarp; ++l) fiber(l).groups.pop_front();
    }
  });
}

}  // namespace emulated

namespace cuda {
void cuda_failed(const char* file, int line, const char* what, const char* reason) {
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, reason);
  std::abort();
}
}  // namespace cuda
}  // namespace deepinfer
