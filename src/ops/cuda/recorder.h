#pragma once

// Steps as graphs. The calls of a step are first only described: each operator says what its launches depend on, pointers, sizes
// and numbers, and leaves its argument arrays in one block of pinned memory. A description that was there before means a graph
// that is there: one copy of the block and one launch are the whole step. Nothing can be replayed that the calls did not ask for,
// because the description is compared, not trusted.

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <list>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/function_ref.h"
#include "ops/cuda/cuda_graph.h"
#include "ops/cuda/device_rows.h"
#include "ops/cuda/staging.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// Everything that a series of launches depends on, but the content of device memory.
using Description = std::vector<uint64_t>;

template <typename T>
requires std::is_arithmetic_v<T> || std::is_pointer_v<T> || std::is_enum_v<T>
void describe(Description& out, const T& value) {
  if constexpr (std::is_same_v<T, float>) {
    out.push_back(std::bit_cast<uint32_t>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    out.push_back(reinterpret_cast<uintptr_t>(value));
  } else {
    out.push_back(static_cast<uint64_t>(value));
  }
}
inline void describe(Description& out, const Fp8Weight& w) {
  for (const uint64_t v : {reinterpret_cast<uint64_t>(w.values), reinterpret_cast<uint64_t>(w.scales),
                           static_cast<uint64_t>(w.out), static_cast<uint64_t>(w.in)}) {
    out.push_back(v);
  }
}
inline void describe(Description& out, const Bf16Weight& w) {
  for (const uint64_t v : {reinterpret_cast<uint64_t>(w.values), static_cast<uint64_t>(w.out), static_cast<uint64_t>(w.in)})
    out.push_back(v);
}

/// What becomes of launches, for one stream. One caller at a time.
class Recorder {
 public:
  Recorder(LaunchStream* stream, Staging* staging);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// As Backend::replay. A shape runs as it is the first time, is recorded the second, and replayed from then on.
  void replay(FunctionRef<void()> calls);

  /// As Backend::rehearse.
  void rehearse(FunctionRef<void()> calls);

  /// Before launches: whether they are wanted. `what`: a literal; `values`: all that they depend on.
  template <typename... T>
  bool launches(const char* what, const T&... values) {
    if (mode_ == Mode::kRun) return true;
    launch_uploads();
    describe(description_, what);
    (describe(description_, values), ...);
    return mode_ == Mode::kRecord;
  }
  /// Inside `replay` what the host uploads becomes an argument, copied into place by the graph.
  bool takes_uploads() const { return mode_ != Mode::kRun; }
  void upload(void* to, const void* host, int64_t bytes);

  CudaReplays replays() const { return {static_cast<int64_t>(graphs_.size()), replayed_, recorded_, plain_}; }

 private:
  enum class Mode : uint8_t { kRun, kDescribe, kRecord };
  struct Graph {
    Description description;
    cudaGraphExec_t executable = nullptr;
  };
  /// Arguments of a step on their way to the device.
  struct Block {
    uint8_t* pinned = nullptr;
    cudaEvent_t copied = nullptr;
  };
  using Graphs = std::list<Graph>;

  static constexpr int kBlocks = 3;
  static constexpr int64_t kBlockBytes = 16 << 20;
  static constexpr size_t kMostGraphs = 96;
  static constexpr size_t kMostSeen = 4096;

  int64_t pass(Mode mode, uint8_t* host, FunctionRef<void()> calls, bool rehearsal = false);
  void launch_uploads();
  cudaGraphExec_t record(uint8_t* host, FunctionRef<void()> calls);
  void forget_oldest();

  LaunchStream* stream_;
  Staging* staging_;
  Mode mode_ = Mode::kRun;
  Description description_;
  std::vector<Segment> uploads_;  ///< not yet launched
  Block blocks_[kBlocks];
  int next_block_ = 0;
  uint8_t* arguments_ = nullptr;  ///< [kBlockBytes] on the device: of the graph that runs
  Graphs graphs_;                 ///< the one used last comes first
  std::unordered_multimap<uint64_t, Graphs::iterator> by_hash_;
  std::unordered_set<uint64_t> seen_;
  int64_t replayed_ = 0, recorded_ = 0, plain_ = 0;
};

}  // namespace deepinfer::cuda
