#include "ops/cuda/emulated/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "base/scalar_types.h"

namespace deepinfer {
namespace emulated {
namespace {

constexpr int kWarp = 32;
constexpr uint32_t kSharedBase = 1024;  // of the window
constexpr uint64_t kMostTurns = 50'000'000;

void enter();

// Where a fiber stands while others run. The library's contexts save the signal mask with two calls of the system, at every step
// from thread to thread.
#if defined(__x86_64__)
extern "C" void deepinfer_emulated_switch(void** from, void* to);
asm(R"(
.text
.globl deepinfer_emulated_switch
deepinfer_emulated_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
struct Context {
  void* stack = nullptr;
  void prepare(uint8_t* memory, size_t bytes) {
    auto* top = reinterpret_cast<uint64_t*>(memory + bytes / 16 * 16);
    *--top = 0;  // enter() never returns
    *--top = reinterpret_cast<uint64_t>(&enter);
    stack = top - 6;  // registers, whatever they are
  }
  void change_to(Context& other) { deepinfer_emulated_switch(&stack, other.stack); }
};
#else
struct Context {
  ucontext_t context = {};
  void prepare(uint8_t* memory, size_t bytes) {
    getcontext(&context);
    context.uc_stack.ss_sp = memory;
    context.uc_stack.ss_size = bytes;
    makecontext(&context, enter, 0);
  }
  void change_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

struct Fiber {
  Context context;
  ThreadPlace place;
  bool ended = false;
  uint64_t cluster_turn = 0;
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  std::vector<SharedCopy> open_copies;
  std::deque<std::vector<SharedCopy>> copy_groups;
};

struct Gathering {
  int arrived = 0;
  uint64_t times = 0;
  void* arguments[kWarp] = {};
};

constexpr size_t kBarriers = 16;  // of a block

// Or the blocks of a cluster, one behind the other.
struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Gathering> warps, barriers;
  size_t threads = 0;  // of one
  size_t cluster_arrived = 0;
  uint64_t cluster_turns = 0;
  std::unordered_map<const void*, std::vector<std::vector<SharedCopy>>> attached;  // by barrier
  std::unordered_map<const void*, std::vector<SharedCopy>> bulk;                   // likewise
  Context outside;
  size_t current = 0;
  size_t running = 0;
  uint64_t turns_without_progress = 0;
  std::vector<uint8_t> memory;
  uint8_t* shared = nullptr;
  uint64_t shared_bytes = 0, shared_step = 0;  // from one block's to the next
  const FunctionRef<void()>* body = nullptr;
};

Block* block = nullptr;  // the one that runs

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated device: thread %zu: %s\n", block == nullptr ? 0 : block->current, what);
  std::abort();
}

Fiber& self() { return *block->fibers[block->current]; }
size_t rank() { return block->current / block->threads; }

// Among `count` fibers from `first` on.
size_t next_fiber(size_t first, size_t count) {
  size_t next = block->current;
  do next = first + (next + 1 - first) % count;
  while (block->fibers[next]->ended && next != block->current);
  return next;
}

void change_to(size_t next) {
  const size_t before = block->current;
  if (next == before) fail("waits for threads that have ended");
  block->current = next;
  block->fibers[before]->context.change_to(block->fibers[next]->context);
}
void give_way() {
  if (++block->turns_without_progress > kMostTurns) fail("waits for ever");
  change_to(next_fiber(0, block->fibers.size()));
}
// To the others of the warp, who are to come to the same place.
void give_way_in_warp() {
  if (++block->turns_without_progress > kMostTurns) fail("waits for ever");
  const size_t first = block->current / kWarp * kWarp;
  change_to(next_fiber(first, std::min<size_t>(kWarp, block->fibers.size() - first)));
}

void enter() {
  (*block->body)();
  self().ended = true;
  block->turns_without_progress = 0;
  Context& own = self().context;
  if (--block->running == 0) {
    own.change_to(block->outside);
  } else {
    block->current = next_fiber(0, block->fibers.size());
    own.change_to(self().context);
  }
  std::abort();
}

void gather(Gathering& g, int count, bool in_warp, FunctionRef<void()> once) {
  const uint64_t times = g.times;
  if (++g.arrived == count) {
    once();
    g.arrived = 0;
    ++g.times;
    block->turns_without_progress = 0;
    return;
  }
  while (g.times == times) in_warp ? give_way_in_warp() : give_way();
}

float half_of(uint32_t pair, int i) { return to_float(bf16{static_cast<uint16_t>(pair >> 16 * i)}); }

// The layouts of the PTX manual ("Matrix Descriptor Format", 128-byte swizzle).
float operand(uint64_t descriptor, bool across, int k, int n) {
  const auto field = [&](int shift) { return static_cast<uint32_t>(descriptor >> shift & 0x3fff) << 4; };
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) fail("a descriptor without 128-byte swizzle, or with an offset");
  const auto uk = static_cast<uint32_t>(k);
  const auto un = static_cast<uint32_t>(n);
  const uint32_t offset =
      across ? un % 64 * 2 + un / 64 * field(16) + uk % 8 * 128 + uk / 8 * field(32) : un % 8 * 128 + un / 8 * field(32) + uk * 2;
  const uint32_t at = field(0) + offset;
  bf16 v;
  std::memcpy(&v, shared_at(at ^ (at >> 7 & 7) << 4, 2), 2);
  return to_float(v);
}

}  // namespace

const ThreadPlace& place() { return self().place; }
int lane() { return static_cast<int>(place().thread.x) % kWarp; }

void run(const Place& grid, unsigned threads, uint64_t shared_bytes, unsigned cluster, FunctionRef<void()> body) {
  constexpr size_t kStackBytes = 128 << 10;
  // Kept from launch to launch; one launch runs at a time.
  static auto& stacks = *new std::vector<std::unique_ptr<uint8_t[]>>;
  const unsigned all_threads = threads * cluster;
  while (stacks.size() < all_threads) stacks.push_back(std::make_unique_for_overwrite<uint8_t[]>(kStackBytes));
  Block own;
  for (unsigned t = 0; t < all_threads; ++t) own.fibers.push_back(std::make_unique<Fiber>());
  own.body = &body;
  own.threads = threads;
  own.shared_bytes = shared_bytes;
  own.shared_step = (shared_bytes + kSharedBase - 1) / kSharedBase * kSharedBase;
  if (cluster > 1 && (threads % kWarp != 0 || grid.x % cluster != 0)) fail("a cluster of broken warps, or a part of one");
  for (unsigned i = 0; i < grid.x * grid.y * grid.z; i += cluster) {
    block = &own;
    own.memory.assign(own.shared_step * cluster + kSharedBase, 0xff);
    own.shared = own.memory.data() + (kSharedBase - reinterpret_cast<uintptr_t>(own.memory.data()) % kSharedBase) % kSharedBase;
    own.warps.assign((all_threads + kWarp - 1) / kWarp, {});
    own.barriers.assign(kBarriers * cluster, {});
    own.running = all_threads;
    own.current = 0;
    for (unsigned t = 0; t < all_threads; ++t) {
      Fiber& fiber = *own.fibers[t];
      fiber.ended = false;
      const unsigned number = i + t / threads;
      fiber.place = {
          {t % threads, 0, 0}, {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y}, {threads, 1, 1}, grid};
      fiber.context.prepare(stacks[t].get(), kStackBytes);
    }
    own.outside.change_to(own.fibers[0]->context);
    block = nullptr;
  }
}

uint8_t* shared_memory() { return block->shared + rank() * block->shared_step; }
uint32_t shared_address(const void* p) {
  const auto offset = static_cast<uint64_t>(static_cast<const uint8_t*>(p) - shared_memory());
  if (offset > block->shared_bytes) fail("an address that is not in shared memory");
  return kSharedBase + static_cast<uint32_t>(offset);
}
const uint8_t* shared_at(uint32_t address, uint32_t bytes) {
  if (address < kSharedBase || address - kSharedBase + bytes > block->shared_bytes) fail("a step over the end of shared memory");
  return shared_memory() + (address - kSharedBase);
}
uint32_t shared_of(uint32_t address, uint32_t rank) {
  if (rank >= block->fibers.size() / block->threads) fail("a block that is not in the cluster");
  return address | (rank + 1) << 24;
}
uint8_t* shared_of_cluster(uint32_t address, uint32_t bytes) {
  const uint32_t at = address & 0xffffff;
  if (address >> 24 == 0 || at < kSharedBase || at - kSharedBase + bytes > block->shared_bytes)
    fail("a step over the end of a cluster's shared memory");
  const size_t first = ((address >> 24) - 1) * block->threads;
  bool there = false;
  for (size_t t = first; t < first + block->threads; ++t) there = there || !block->fibers[t]->ended;
  if (!there) fail("shared memory of a block that has ended");
  return block->shared + ((address >> 24) - 1) * block->shared_step + (at - kSharedBase);
}

void wait_until(FunctionRef<bool()> done) {
  while (!done()) give_way();
  block->turns_without_progress = 0;
}
void block_barrier(int number, int threads) {
  gather(block->barriers[rank() * kBarriers + static_cast<size_t>(number)], threads, false, [] {});
}
void cluster_arrive() {
  self().cluster_turn = block->cluster_turns;
  if (++block->cluster_arrived == block->fibers.size()) block->cluster_arrived = 0, ++block->cluster_turns;
}
void cluster_wait() {
  wait_until([] { return block->cluster_turns != self().cluster_turn; });
}
void with_warp(void* argument, FunctionRef<void(void* const*)> once) {
  Gathering& warp = block->warps[block->current / kWarp];
  warp.arguments[lane()] = argument;
  gather(warp, kWarp, true, [&] { once(warp.arguments); });
}

void multiply(float* const (&sums)[32], const uint32_t (&a)[32][4], int n, FunctionRef<float(int, int)> b, bool add) {
  double rows[16][16];  // [column][row]: rows are summed side by side, each of them in the order of the columns
  for (int l = 0; l < kWarp; ++l) {
    for (int i = 0; i < 8; ++i) rows[l % 4 * 2 + i % 2 + i / 4 * 8][l / 4 + i / 2 % 2 * 8] = half_of(a[l][i / 2], i % 2);
  }
  for (int j = 0; j < n; ++j) {
    double sum[16] = {};
    for (int k = 0; k < 16; ++k) {
      const double column = b(k, j);
      for (int row = 0; row < 16; ++row) sum[row] += rows[k][row] * column;
    }
    for (int row = 0; row < 16; ++row) {
      float& at = sums[row % 8 * 4 + j % 8 / 2][j / 8 * 4 + row / 8 * 2 + j % 2];
      at = static_cast<float>((add ? static_cast<double>(at) : 0.0) + sum[row]);
    }
  }
}

namespace {
void do_copies(const std::vector<SharedCopy>& copies) {
  for (const SharedCopy& copy : copies) {
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
}
}  // namespace

namespace {
std::map<const uint8_t*, size_t> forbidden;
}  // namespace
void forbid_copies(const void* from, size_t bytes) { forbidden[static_cast<const uint8_t*>(from)] = bytes; }
void allow_copies(const void* from) { forbidden.erase(static_cast<const uint8_t*>(from)); }

namespace {
void begin_copy(const SharedCopy& copy) {
  const auto* from = static_cast<const uint8_t*>(copy.from);
  if (const auto next = forbidden.lower_bound(from);
      from != nullptr && next != forbidden.end() && next->first < from + copy.bytes) {
    std::fprintf(stderr, "a copy reads behind an array\n");
    std::abort();
  }
  std::memset(copy.to, 0xff, copy.bytes);
}
}  // namespace
void issue_copy(const SharedCopy& copy) {
  begin_copy(copy);
  self().open_copies.push_back(copy);
}
void issue_bulk_copy(const void* barrier, const SharedCopy& copy) {
  begin_copy(copy);
  block->bulk[barrier].push_back(copy);
}
void finish_bulk_copies(const void* barrier, FunctionRef<void(uint32_t)> arrived) {
  const auto own = block->bulk.find(barrier);
  if (own == block->bulk.end()) return;
  const std::vector<SharedCopy> copies = std::move(own->second);
  own->second.clear();
  do_copies(copies);
  for (const SharedCopy& copy : copies) arrived(copy.bytes);
}
void commit_copies() {
  self().copy_groups.push_back(std::move(self().open_copies));
  self().open_copies.clear();
}
void finish_copies(uint64_t pending) {
  for (auto& groups = self().copy_groups; groups.size() > pending; groups.pop_front()) do_copies(groups.front());
}
void attach_copies(const void* barrier) {
  block->attached[barrier].push_back(std::move(self().open_copies));
  self().open_copies.clear();
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

namespace {
// What a lane holds of operand a.
void load_rows(uint64_t descriptor, int first, int l, uint32_t (&a)[4]) {
  for (int i = 0; i < 8; ++i) {
    const float v = operand(descriptor, false, l % 4 * 2 + i % 2 + i / 4 * 8, first + l / 4 + i / 2 % 2 * 8);
    a[i / 2] = (i % 2 == 0 ? 0 : a[i / 2]) | static_cast<uint32_t>(to_bf16(v).bits) << 16 * (i % 2);
  }
}
}  // namespace
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
          if (own.descriptor != product.descriptor || own.rows != product.rows || own.add != product.add)
            fail("a product of which a warp's lanes think differently");
          sums[l] = own.sums;
          std::memcpy(a[l], own.a, sizeof own.a);
          if (product.rows != 0) load_rows(product.rows, static_cast<int>(first / kWarp % 4 * 16), static_cast<int>(l), a[l]);
        }
        multiply(
            sums, a, product.n, [&](int k, int j) { return operand(product.descriptor, product.across, k, j); }, product.add);
      }
      for (size_t l = 0; l < kWarp; ++l) fiber(l).groups.pop_front();
    }
  });
}

}  // namespace emulated
}  // namespace deepinfer
