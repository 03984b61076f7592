#include "base/memory_bandwidth.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <vector>

namespace deepinfer {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kChunk = int64_t{2} << 20;  // long enough for the prefetchers, short enough to share out evenly
constexpr int64_t kLeast = int64_t{256} << 20;
constexpr int64_t kMost = int64_t{1} << 30;

using Line = std::array<uint64_t, kLine / sizeof(uint64_t)>;

uint64_t read_chunk(const Line* lines) {
  // Eight sums, so that additions do not wait for each other.
  Line sum{};
  for (int64_t i = 0; i < kChunk / kLine; ++i) {
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += lines[i][j];
  }
  uint64_t total = 0;
  for (const uint64_t s : sum) total += s;
  return total;
}

}  // namespace

int64_t last_level_cache_bytes() {
  // The kernel knows what one core can reach; sysconf may give the sum over a package.
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    int64_t size = 0;
    char unit = ' ';
    if (!(file >> size >> unit)) break;
    largest = std::max(largest, size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
  }
  if (largest > 0) return largest;
  for (const int name : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    if (const long bytes = ::sysconf(name); bytes > 0) return bytes;
  }
  return 0;
}

double measure_read_bandwidth(ThreadPool& pool, double seconds) {
  const int64_t physical = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const int64_t bytes = std::clamp(4 * last_level_cache_bytes(), kLeast, kMost) / kChunk * kChunk;
  if (physical < 4 * bytes) return 0;  // a figure is not worth pushing the weights out of memory
  const int64_t chunks = bytes / kChunk;
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  ::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // fewer faults; a refusal does no harm
  auto* lines = static_cast<Line*>(memory);
  constexpr int64_t kLinesPerChunk = kChunk / kLine;

  // Written first: pages that were never written are all the same page of zeros. By the threads that read, for their nodes.
  pool.run(chunks, [&](int64_t chunk, int) {
    for (int64_t i = 0; i < kLinesPerChunk; ++i) lines[chunk * kLinesPerChunk + i].fill(static_cast<uint64_t>(chunk + i));
  });

  std::vector<uint64_t> sums(static_cast<size_t>(chunks));
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double best = 0;
  volatile uint64_t sink = 0;
  do {
    const auto start = Clock::now();
    pool.run(chunks, [&](int64_t chunk, int) { sums[static_cast<size_t>(chunk)] = read_chunk(lines + chunk * kLinesPerChunk); });
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    for (const uint64_t s : sums) sink = sink + s;
    if (took > 0) best = std::max(best, static_cast<double>(bytes) / took);
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  ::munmap(memory, static_cast<size_t>(bytes));
  return best;
}

}  // namespace deepinfer
