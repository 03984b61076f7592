// Asks for weights ahead of the products that read them. A step of few rows is a chain of small kernels that wait for each other
// more than for memory, with products of tens of megabytes between them; this kernel runs beside the small ones on a stream of
// its own, needs no shared memory and next to no registers, and asks for a piece at a time, at a pace that leaves the loads of
// those others their turn.

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "ops/cuda/fetch.h"
#include "ops/cuda/fragments.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/pace.cuh"

namespace deepinfer::cuda {
namespace {

// Grid: blocks, of which each has every blocks-th piece, its first so much later than that of the block before that together
// they ask at even distances.
__global__ void __launch_bounds__(kWarp) fetch_kernel(const __grid_constant__ FetchList list) {
  take_turn();
  if (threadIdx.x != 0) return;
  const int64_t start = cycles_now();
  int64_t due = list.begin_cycles + list.piece_cycles * blockIdx.x / gridDim.x;
  int at = 0;
  for (int64_t piece = blockIdx.x; piece < list.pieces; piece += gridDim.x, due += list.piece_cycles) {
    while (at + 1 < list.stretch_count && piece >= list.stretches[at + 1].first_piece) ++at;
    const FetchList::Stretch& stretch = list.stretches[at];
    const int64_t offset = (piece - stretch.first_piece) * FetchList::kPiece;
    while (cycles_now() - start < due) pause_briefly();
    fetch_ahead(stretch.begin + offset, min(FetchList::kPiece, stretch.bytes - offset));
  }
}

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kCyclesPerMicrosecond = 1750;

// Up to four numbers with colons between them, those that are there.
void read_pace(std::string_view text, FetchPace& pace) {
  int64_t numbers[4] = {pace.bytes / kMiB, pace.bytes_per_us / 1000, pace.blocks, pace.begin_ns};
  for (int64_t& number : numbers) {
    if (text.empty()) break;
    number = std::atoll(std::string(text.substr(0, text.find(':'))).c_str());
    text.remove_prefix(std::min(text.find(':'), text.size() - 1) + 1);
  }
  pace = {numbers[0] * kMiB, numbers[1] * 1000, static_cast<int>(std::clamp<int64_t>(numbers[2], 1, 1024)), numbers[3]};
}

}  // namespace

FetchPaces fetch_paces() {
  FetchPaces paces;
  // From the end of the experts to the queries: two norms, a small product, 15 us; the product itself brings the first part of
  // every row while it waits. Then attention, 17 us. Then a norm, router and plan, 14 us; the shared expert's gates and ups are
  // 23 MiB of the release.
  paces[ComingOperators::kQueries] = {28 * kMiB, 2'800'000, 66, 0};
  paces[ComingOperators::kAttentionOutput] = {34 * kMiB, 2'800'000, 66, 0};
  paces[ComingOperators::kExperts] = {25 * kMiB, 2'400'000, 66, 0};
  const char* text = std::getenv("DEEPINFER_CUDA_FETCH");
  for (std::string_view rest = text != nullptr ? text : ""; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    for (const auto& [name, what] : {std::pair(std::string_view("queries="), ComingOperators::kQueries),
                                     std::pair(std::string_view("output="), ComingOperators::kAttentionOutput),
                                     std::pair(std::string_view("experts="), ComingOperators::kExperts)}) {
      if (item.starts_with(name)) read_pace(item.substr(name.size()), paces[what]);
    }
  }
  return paces;
}

FetchList fetch_list(std::span<const WeightBytes> weights, const FetchPace& pace) {
  FetchList list;
  int64_t left = pace.bytes;
  for (const WeightBytes& w : weights) {
    // Whole pieces of 16 bytes that lie in it.
    const auto* end = static_cast<const uint8_t*>(w.begin) + w.count;
    const uint8_t* begin = static_cast<const uint8_t*>(w.begin) + (-reinterpret_cast<uintptr_t>(w.begin) & 15);
    const int64_t bytes = std::min<int64_t>(end - begin, left) / 16 * 16;
    if (w.begin == nullptr || bytes <= 0 || list.stretch_count == FetchList::kMostStretches) continue;
    list.stretches[list.stretch_count++] = {begin, bytes, list.pieces};
    list.pieces += (bytes + FetchList::kPiece - 1) / FetchList::kPiece;
    left -= bytes;
  }
  list.blocks = static_cast<int>(std::min<int64_t>(pace.blocks, list.pieces));
  list.begin_cycles = pace.begin_ns * kCyclesPerMicrosecond / 1000;
  if (pace.bytes_per_us > 0) list.piece_cycles = FetchList::kPiece * list.blocks * kCyclesPerMicrosecond / pace.bytes_per_us;
  return list;
}

void fetch_weights(const FetchList& list, LaunchStream& stream) {
  if (list.pieces == 0) return;
  stream.launch(fetch_kernel, static_cast<unsigned>(list.blocks), kWarp, 0, list);
}

}  // namespace deepinfer::cuda
