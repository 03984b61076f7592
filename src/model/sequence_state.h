#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "model/window_snapshot.h"
#include "ops/device_buffer.h"
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

/// Pages without a budget, each an allocation of its own.
std::unique_ptr<PageAllocator> make_heap_pages(int64_t page_bytes, DeviceMemory* memory = &host_memory());

/// Everything that a sequence carries from step to step, addressed by absolute position (spec/backbone §3.13): window rings,
/// global pages, compressor tails, token history. Nothing in it depends on how the tokens were cut into steps.
///
/// A sequence may begin with a cached prefix and may skip the decoder for positions that nobody asks (spec §8). What it holds is
/// told by four numbers:
///  - `write_floor`: global rows of groups that end below it came with the prefix. They are read and never written, and the
///    sequence cannot be taken back into them: their pages may be shared.
///  - `encoder_window_start`: the first position that ran. No window of an encoder layer reaches below it.
///  - `decoder_start`: positions below it run the encoder layers only, up to the global rows of the last KV source.
///  - `decoder_window_start`: the same as encoder_window_start for the layers from ModelConfig::first_decoder_layer on.
///
/// The rings of the draft stages (dspark.md §3.2) are filled beside the others, by Model::extend_draft, and only for positions
/// that stay; so they may lag behind, or begin late. Drafts alone depend on them.
///
/// Invariants, with high the largest length reached:
///  - pages cover [0, length), and hold the global rows of every group that ends below length;
///  - of an encoder layer, ring slot p % window_capacity holds position p for every p in
///    [max(encoder_window_start, high - window_capacity), length); of a decoder layer for every p >= decoder_window_start too.
///    Nothing else in a ring is ever read, whatever is left there from other sequences;
///  - the tail ring holds every p in [max(encoder_window_start, high - tail_capacity), length), and length - 1 if it is odd;
///  - of a draft stage, ring slot p % window_capacity holds position p for every p in
///    [max(draft_start, draft_end - sliding_window), draft_end), and draft_end <= length;
///  - the history holds the true ids of [0, length), also of positions that never ran.
class SequenceState {
 public:
  /// `slack`: positions that `truncate` may take back, beyond those it always can. `pages` nullptr: the pages are borrowed, their
  /// owner appends and drops them. Rings, tails and pages lie in `memory`; it outlives the state.
  SequenceState(const ModelConfig& config, const PageLayout& layout, PageAllocator* pages, int64_t slack,
                DeviceMemory* memory = &host_memory());
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  int64_t length() const { return length_; }
  int64_t slack() const { return slack_; }
  int64_t window_capacity() const { return window_capacity_; }
  int64_t write_floor() const { return write_floor_; }
  int64_t encoder_window_start() const { return encoder_window_start_; }
  int64_t decoder_start() const { return decoder_start_; }
  int64_t decoder_window_start() const { return decoder_start_ > length_ ? decoder_start_ : decoder_rows_from_; }
  /// Draft rings hold the last rows of [draft_start, draft_end).
  int64_t draft_start() const { return draft_start_; }
  int64_t draft_end() const { return draft_end_; }

  /// Pages for positions below `length`; on error nothing has changed. A borrowing state only checks that they are there.
  Status reserve(int64_t length);
  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }
  bool borrows_pages() const { return allocator_ == nullptr; }
  /// Borrowed pages for the positions behind those that the state has pages for; they outlive their use here.
  void append_pages(std::span<uint8_t* const> pages);
  /// Forgets the last `count` borrowed pages, none of which holds a position.
  void drop_pages(int64_t count);
  /// Takes `reserve` back: frees the pages from number `count` on, none of which holds a position.
  void release_reserved(int64_t count);
  /// Forgets positions from `length` on. Possible down to high - slack, and to 0, but not below the write floor. Own pages
  /// without positions are freed; borrowed ones stay until drop_pages.
  Status truncate(int64_t length);
  /// Makes an empty state look as if it had `length` positions, with pages that are not there: for Model::reserve. `reset` ends
  /// it, and the list of pages keeps its room.
  void pretend(int64_t length);
  /// Like new: no positions, no pages, no prefix. Rings, tails and the room of the history stay, so that states can be pooled.
  void reset();
  /// Makes `count` more positions part of the sequence; their rows have been written.
  void advance(int64_t count);

  /// Makes an empty state, whose pages hold the global rows of [0, hit_length), go on at `replay_from` <= hit_length with empty
  /// windows (spec §8.2). `history`: [replay_from] compressed ids; empty for models without Engram. Callers use
  /// Model::adopt_prefix, which makes them. replay_from == hit_length replays nothing: the windows stay empty, which is lossy,
  /// and is refused at odd lengths, whose open pair only a replay brings back.
  Status adopt(int64_t hit_length, int64_t replay_from, std::span<const int32_t> history);
  /// Positions below `position` skip the decoder from now on (spec §8.3); 0 at the start, which skips none. Must not lie below
  /// the length, unless it changes nothing. Windows of the decoder go on where they are if `position` is the length, and start
  /// there otherwise. Ignored by models without global KV.
  Status set_decoder_start(int64_t position);

  /// What a state with the same pages needs to go on from here; reuses the memory of `snapshot`. Taken while a prefix is still
  /// replayed (length below the write floor) it does not bring the floor back, so take it later.
  void save_window(WindowSnapshot& snapshot) const;
  /// The same for a later, even position that the step under way passes: the head of the snapshot, then each layer's rows in
  /// order. `fresh`: packed rows of the positions from `fresh_start` on, in the state's memory, which are not in the ring yet.
  void begin_save(int64_t position, WindowSnapshot& snapshot) const;
  void save_layer(int64_t layer, const uint8_t* fresh, int64_t fresh_start, WindowSnapshot& snapshot) const;
  /// Whether the rings, behind a step that ends at `end`, still hold all that a snapshot at `position` needs.
  bool keeps_window(int64_t position, int64_t end) const { return std::max(high_, end) - position <= slack_; }
  /// Behind such a step, in place of save_layer for each of its layers: one copy of all rings, by way of `copy`.
  void save_layers(WindowSnapshot& snapshot, HostBuffer<uint8_t>& copy) const;
  /// Bytes of such a copy.
  int64_t layer_ring_bytes() const { return layers_ * window_capacity_ * window_row_bytes_; }
  /// The way back, into an empty state whose pages hold [0, snapshot.length); see Model::adopt_prefix. On error nothing has
  /// changed.
  Status restore_window(const WindowSnapshot& snapshot, std::span<const int32_t> history);
  /// Makes this empty, borrowing state a fork of `other`: everything but the pages, which the caller appends, for
  /// max(length, write_floor) positions. Whole pages may be the same ones: this state will not write to them, nor will `other` as
  /// long as it is not taken back into them. A page that `other` has begun must be a copy.
  Status copy_from(const SequenceState& other);

  uint8_t* window_ring(int64_t layer) { return windows_.data() + layer * window_capacity_ * window_row_bytes_; }
  uint8_t* draft_ring(int64_t stage) { return window_ring(layers_ + stage); }
  /// The draft rings have got the rows of [position, position + count). Rows before a gap are forgotten.
  void advance_draft(int64_t position, int64_t count);
  /// Draft rows of a snapshot that `begin_save` began, stage after stage; `fresh` as in save_layer. Only if there are any: rows
  /// up to the snapshot's length, from `first` on.
  void begin_save_draft(int64_t first, WindowSnapshot& snapshot) const;
  void save_draft_stage(int64_t stage, const uint8_t* fresh, int64_t fresh_start, WindowSnapshot& snapshot) const;
  /// As save_layers, in place of save_draft_stage for each stage.
  void save_draft_stages(WindowSnapshot& snapshot, HostBuffer<uint8_t>& copy) const;
  /// fp32 value and gate row of `position` in the tail of KV source `source`, each [head_dim] (ratio 2 only).
  float* tail_kv(int64_t source, int64_t position) { return tails_.data() + tail_at(source, position); }
  float* tail_gate(int64_t source, int64_t position) { return tail_kv(source, position) + head_dim_; }
  int64_t tail_capacity() const { return tail_capacity_; }
  PagedRows main_rows(int64_t source) const;
  PagedRows index_rows(int64_t source) const;
  /// Compressed token ids of the whole sequence, EngramHash::kDead inside images. The model appends to it before a step.
  std::vector<int32_t>& history() { return history_; }

  /// Without borrowed pages.
  int64_t resident_bytes() const;

 private:
  int64_t tail_at(int64_t source, int64_t position) const {
    return (source * tail_capacity_ + position % tail_capacity_) * 2 * head_dim_;
  }
  int64_t pages_for(int64_t length) const { return layout_->page_bytes > 0 ? (length + kPagePositions - 1) / kPagePositions : 0; }
  /// The last pages are given back, or only forgotten if they are borrowed.
  void keep_pages(int64_t count);
  /// Puts an empty state at `length` with empty windows, behind a prefix of `hit` positions.
  Status begin(int64_t length, int64_t hit, std::span<const int32_t> history);
  int64_t tail_bytes() const { return pair_sources_ * 2 * head_dim_ * static_cast<int64_t>(sizeof(float)); }
  // window_snapshot.cc
  int64_t snapshot_rows(int64_t length, int64_t start) const;
  int64_t first_saved(int64_t ring, const WindowSnapshot& snapshot) const;
  void save_rings(int64_t first, int64_t count, WindowSnapshot& snapshot, HostBuffer<uint8_t>& copy) const;
  void save_rows(int64_t ring, int64_t first, const uint8_t* fresh, int64_t fresh_start, WindowSnapshot& snapshot) const;
  Status check_snapshot(const WindowSnapshot& snapshot) const;

  void append(const void* from, int64_t bytes, WindowSnapshot& snapshot) const;

  const PageLayout* layout_;
  PageAllocator* allocator_;
  int64_t slack_;
  int64_t window_;
  int64_t window_capacity_;
  int64_t window_row_bytes_;
  int64_t tail_capacity_;
  int64_t head_dim_;
  int64_t layers_;
  int64_t draft_stages_;
  int64_t first_decoder_layer_;
  int64_t pair_sources_;  ///< KV sources of ratio 2
  bool keeps_history_;
  int64_t length_ = 0;
  int64_t high_ = 0;
  int64_t write_floor_ = 0;
  int64_t encoder_window_start_ = 0;
  int64_t decoder_start_ = 0;
  int64_t decoder_rows_from_ = 0;  ///< <= length: positions [here, length) ran the decoder
  int64_t draft_start_ = 0;
  int64_t draft_end_ = 0;
  DeviceMemory* memory_;
  DeviceBuffer<uint8_t> windows_;  ///< [layers + draft stages, window_capacity, window_row_bytes]
  DeviceBuffer<float> tails_;      ///< [sources, tail_capacity, 2, head_dim]
  std::vector<uint8_t*> pages_;
  std::vector<int32_t> history_;
};

}  // namespace deepinfer
