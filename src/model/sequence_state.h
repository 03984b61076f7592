#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/status.h"
#include "checkpoint/model_config.h"
#include "ops/ops.h"

namespace deepinfer {

/// Positions that one page of global cache holds, for all KV sources together (docs/ARCHITECTURE.md).
inline constexpr int64_t kPagePositions = 128;

/// Where the rows of each KV source lie inside a page: main rows, then index keys, source after source.
struct PageLayout {
  struct Source {
    int64_t layer = 0;
    int64_t ratio = 0;
    int64_t rows_per_page = 0;
    int64_t main_offset = 0;
    int64_t index_offset = 0;
  };
  std::vector<Source> sources;  ///< in the order of kv_source_layer_ids
  int64_t main_row_bytes = 0;
  int64_t index_row_bytes = 0;
  int64_t page_bytes = 0;

  explicit PageLayout(const ModelConfig& config);
};

/// Gives out pages of one size. Thread-safety is the implementation's matter.
class PageAllocator {
 public:
  virtual ~PageAllocator() = default;
  /// 64-byte aligned page, or nullptr when the budget is used up.
  virtual uint8_t* allocate() = 0;
  virtual void free(uint8_t* page) = 0;
};

/// Pages from the heap, without a budget.
std::unique_ptr<PageAllocator> make_heap_pages(int64_t page_bytes);

/// Everything that a sequence carries from step to step, addressed by absolute position (spec/backbone §3.13): window rings,
/// global pages, compressor tails, token history. Nothing in it depends on how the tokens were cut into steps.
///
/// Invariants: pages cover [0, length); ring slot p % window_capacity holds position p for every p in
/// [max(0, high - window_capacity), length), where high is the largest length reached; the tail ring likewise.
class SequenceState {
 public:
  /// `slack`: positions that `truncate` may take back, beyond those it always can.
  SequenceState(const ModelConfig& config, const PageLayout& layout, PageAllocator* pages, int64_t slack);
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  int64_t length() const { return length_; }
  int64_t slack() const { return slack_; }
  int64_t window_capacity() const { return window_capacity_; }

  /// Pages for positions below `length`; on error nothing has changed.
  Status reserve(int64_t length);
  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }
  /// Takes `reserve` back: frees the pages from number `count` on, none of which holds a position.
  void release_reserved(int64_t count);
  /// Forgets positions from `length` on. Possible down to high - slack, and to 0.
  Status truncate(int64_t length);
  /// Makes `count` more positions part of the sequence; their rows have been written.
  void advance(int64_t count);

  uint8_t* window_ring(int64_t layer) { return windows_.data() + layer * window_capacity_ * window_row_bytes_; }
  /// fp32 value and gate row of `position` in the tail of KV source `source`, each [head_dim] (ratio 2 only).
  float* tail_kv(int64_t source, int64_t position) { return tails_.data() + tail_at(source, position); }
  float* tail_gate(int64_t source, int64_t position) { return tail_kv(source, position) + head_dim_; }
  int64_t tail_capacity() const { return tail_capacity_; }
  PagedRows main_rows(int64_t source) const;
  PagedRows index_rows(int64_t source) const;
  /// Compressed token ids of the whole sequence, EngramHash::kDead inside images. The model appends to it before a step.
  std::vector<int32_t>& history() { return history_; }

  int64_t resident_bytes() const;

 private:
  int64_t tail_at(int64_t source, int64_t position) const {
    return (source * tail_capacity_ + position % tail_capacity_) * 2 * head_dim_;
  }

  const PageLayout* layout_;
  PageAllocator* allocator_;
  int64_t slack_;
  int64_t window_capacity_;
  int64_t window_row_bytes_;
  int64_t tail_capacity_;
  int64_t head_dim_;
  int64_t length_ = 0;
  int64_t high_ = 0;
  AlignedBuffer<uint8_t> windows_;  ///< [layers, window_capacity, window_row_bytes]
  AlignedBuffer<float> tails_;      ///< [sources, tail_capacity, 2, head_dim]
  std::vector<uint8_t*> pages_;
  std::vector<int32_t> history_;
};

}  // namespace deepinfer
