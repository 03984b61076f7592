#pragma once

// What one forward pass hands from function to function; private to the model.

#include <algorithm>
#include <array>
#include <vector>

#include "base/aligned_buffer.h"
#include "model/model.h"
#include "ops/device_buffer.h"

namespace deepinfer {

/// New rows of one sequence in a step. When a step narrows, its spans do (spec §8.3).
struct StepSpan {
  SequenceState* state = nullptr;
  int64_t start = 0;  ///< position of the first row
  int64_t count = 0;
  int64_t first_row = 0;           ///< in the step's buffers
  int64_t input_row = 0;           ///< in the batch
  WindowSnapshot* save = nullptr;  ///< takes the window as it is before position save_at
  int64_t save_at = 0;

  int64_t end() const { return start + count; }
  /// Groups of the compressor that end in the span and are the sequence's own to write: by their last token (spec §8.2).
  int64_t first_group(int64_t ratio) const { return std::max(start, state->write_floor()) / ratio; }
  int64_t group_count(int64_t ratio) const { return std::max<int64_t>(0, end() / ratio - first_group(ratio)); }
};

/// What the layers are told of the rows that they run. A step that narrows has two of them: of all its rows, and of those that
/// go on behind the last KV source (spec §8.3).
struct StepInputs {
  explicit StepInputs(DeviceMemory* memory)
      : plain_cos(memory),
        plain_sin(memory),
        compressed_cos(memory),
        compressed_sin(memory),
        engram_rows(memory),
        image(memory),
        counted(memory) {}

  int64_t rows = 0;  ///< that operators run
  int64_t live = 0;  ///< of them the batch's own; the others repeat the last one (padding.cc)
  std::vector<StepSpan> spans;
  std::vector<int64_t> positions;                                            ///< [rows]
  SharedBuffer<float> plain_cos, plain_sin, compressed_cos, compressed_sin;  ///< [rows, pairs]
  SharedBuffer<int64_t> engram_rows;                                         ///< [slots, rows, columns]
  SharedBuffer<uint8_t> image;                                               ///< [rows] 1 inside an image span
  SharedBuffer<int32_t> counted;                                             ///< `live`, for a device that counts experts

  void upload_counted() {
    *counted.host() = static_cast<int32_t>(live);
    counted.upload(1);
  }
  std::array<SharedBuffer<float>*, 4> rotations() { return {&plain_cos, &plain_sin, &compressed_cos, &compressed_sin}; }
};

/// Fills rows `live` to `rows`, each of `width` values, with the one before them.
template <typename T>
void repeat_last_row(T* data, int64_t width, int64_t live, int64_t rows) {
  for (int64_t r = live; r < rows; ++r) std::copy_n(data + (live - 1) * width, width, data + r * width);
}

/// What a round of drafts leaves, in one piece, so that it comes to the host in one copy: tokens [length + 1, lanes], the anchors
/// first, then confidences [length, lanes].
class DraftResults {
 public:
  explicit DraftResults(DeviceMemory* memory) : bytes_(memory) {}

  void reserve(int64_t length, int64_t lanes) {
    length_ = length;
    lanes_ = lanes;
    bytes_.reserve_discard(size());
  }
  /// Of position k - 1; k = 0: the anchors.
  int32_t* host_tokens(int64_t k) { return reinterpret_cast<int32_t*>(bytes_.host()) + k * lanes_; }
  int32_t* device_tokens(int64_t k) { return reinterpret_cast<int32_t*>(bytes_.device()) + k * lanes_; }
  const float* host_confidences() const { return reinterpret_cast<const float*>(bytes_.host() + confidences_at()); }
  float* device_confidences() { return reinterpret_cast<float*>(bytes_.device() + confidences_at()); }
  /// Tokens of position k - 1, from lane `first` on.
  void upload(int64_t k, int64_t first) {
    if (bytes_.memory().is_host()) return;
    bytes_.memory().upload(device_tokens(k) + first, host_tokens(k) + first,
                           (lanes_ - first) * static_cast<int64_t>(sizeof(int32_t)));
  }
  void download() { bytes_.download(size()); }

 private:
  int64_t confidences_at() const { return (length_ + 1) * lanes_ * static_cast<int64_t>(sizeof(int32_t)); }
  int64_t size() const { return confidences_at() + length_ * lanes_ * static_cast<int64_t>(sizeof(float)); }

  SharedBuffer<uint8_t> bytes_;
  int64_t length_ = 0, lanes_ = 0;
};

/// Steps of more rows put each layer's into its ring when it has run.
inline constexpr int64_t kMostCommittedAtOnce = 64;

/// Step buffers. They grow to the largest step seen and stay, so that steps don't allocate.
struct Model::Buffers {
  explicit Buffers(DeviceMemory* m) : memory(m) {}

  DeviceMemory* memory;
  DeviceBuffer<bf16> x{memory};     ///< [rows, n, hidden] residual streams
  DeviceBuffer<float> pre{memory};  ///< [rows, n] collapses the stream for the next sublayer
  DeviceBuffer<float> next_pre{memory}, post{memory}, comb{memory};
  DeviceBuffer<float> identity_pre{memory};           ///< (1, 0, ...) for as many rows as a step has had
  DeviceBuffer<bf16> kept_x{memory}, kept_u{memory};  ///< of a step that narrows
  DeviceBuffer<float> kept_pre{memory};
  DeviceBuffer<bf16> u{memory};                            ///< [rows, hidden] normalised input of a sublayer
  DeviceBuffer<bf16> out{memory};                          ///< [rows, hidden] output of a sublayer
  DeviceBuffer<bf16> q_low{memory};                        ///< [rows, q_lora]
  DeviceBuffer<bf16> q{memory}, o{memory};                 ///< [rows, heads, head_dim]
  DeviceBuffer<bf16> o_low{memory};                        ///< [rows, groups * lora]
  DeviceBuffer<bf16> kv{memory};                           ///< [rows, head_dim]
  DeviceBuffer<uint8_t> window_kv{memory};                 ///< [rows, window_row_bytes] packed, or as much for each layer
  DeviceBuffer<float> comp_kv{memory}, comp_gate{memory};  ///< [rows, head_dim]
  DeviceBuffer<bf16> latent{memory};                       ///< [groups, head_dim]
  DeviceBuffer<bf16> index_k{memory};                      ///< [groups, index_head_dim]
  DeviceBuffer<bf16> index_q{memory};                      ///< [rows, index_heads, index_head_dim]
  DeviceBuffer<bf16> index_weights{memory};                ///< [rows, index_heads]
  DeviceBuffer<int32_t> chosen{memory};                    ///< [rows, index_topk]
  AlignedBuffer<int64_t> chosen_count;
  DeviceBuffer<uint64_t> candidates{memory};
  DeviceBuffer<int32_t> experts{memory};
  DeviceBuffer<float> expert_weights{memory};
  SharedBuffer<int64_t> expert_counts{memory};  ///< [layers, experts] since the beginning; a device's only
  DeviceBuffer<bf16> engram_e{
      memory};  ///< [rows, columns * dim], or one such after the other for each slot that is gathered ahead
  DeviceBuffer<bf16> engram_kv{memory};
  DeviceBuffer<bf16> tap{memory}, main_hidden{memory};
  DeviceBuffer<bf16> head_x{memory}, head_u{memory};
  DeviceBuffer<float> head_pre{memory};
  SharedBuffer<float> logits{memory};
  int64_t logit_rows = 0;  ///< of the last forward pass
  SharedBuffer<int32_t> drawn{memory};
  HostBuffer<uint8_t> rings{memory};         ///< of a sequence, on their way into a snapshot
  DeviceBuffer<bf16> draft_taps{memory};     ///< [rows, targets * hidden]
  DeviceBuffer<float> draft_base{memory};    ///< [length, lanes, vocab] of the block pass
  SharedBuffer<float> draft_logits{memory};  ///< [lanes, vocab] of one position
  DraftResults drafted{memory};
  std::vector<DrawRow> draft_draws;                        ///< [length, rows of DraftRound::draw_rows]
  std::vector<int32_t> draft_ids;                          ///< [lanes * block] inputs of the block pass
  std::vector<int32_t> draft_picked;                       ///< [sequences]
  std::vector<int32_t> draft_tokens;                       ///< [sequences, length], as the caller gets them,
  std::vector<float> draft_confidences;                    ///< and their confidences
  StepInputs all{memory}, kept{memory};                    ///< `kept` is of a step that narrows
  SharedBuffer<float> pair_cos{memory}, pair_sin{memory};  ///< rotations of the groups that complete in the step
  std::vector<AttentionQuery> queries;
  std::vector<IndexQuery> index_queries;
  std::vector<const float*> pool_kv, pool_gate;
  std::vector<uint8_t*> index_key_rows, compressed_rows;  ///< [groups] where they go in the pages
  std::vector<DeviceMemory::RowCopy> copies;
  std::vector<DeviceMemory::RowCopy> ring_copies;  ///< of a step that commits at once
  int64_t main_hidden_rows = 0;                    ///< of the last forward pass
  std::vector<int32_t> tokens;                     ///< [rows]
  std::vector<int64_t> page_counts;                ///< [sequences] before the step
  std::vector<int32_t> kept_row;  ///< [rows of the batch] where the row goes on, -1 if it does not; only if the step narrows
  std::vector<int32_t> prefix_history;
};

/// A round of drafts. Position by position its rows are lanes, one a sequence; those behind the sequences repeat the last one.
struct Model::DraftRound {
  std::span<const DraftSequence> sequences;
  int64_t length = 0;  ///< drafts of each
  int64_t lanes = 0;
  int64_t drawn = 0;  ///< the first sequences, whose drafts the backend draws

  auto count() const { return static_cast<int64_t>(sequences.size()); }
  bool all_drawn() const { return drawn == count(); }
  /// Lanes whose drafts the backend draws.
  int64_t draw_rows() const { return all_drawn() ? lanes : drawn; }
};

struct Model::Step {
  StepObserver* observer = nullptr;
  Buffers* b = nullptr;
  StepInputs* in = nullptr;
  int64_t rows = 0, live = 0;      ///< of `in`
  bool replayed = false;           ///< by the backend: lists have one length for each number of rows
  bool narrows = false;            ///< some rows of the batch are left behind on the way
  bool has_image = false;          ///< some row may lie inside an image span
  const uint8_t* image = nullptr;  ///< of `in`, in the backend's memory; nullptr without
  int64_t pairs = 0;               ///< groups of ratio 2 that this step writes, all sequences
  bool gathers_ahead = false;      ///< Engram rows of all layers, from the beginning of the step on
  bool collapsed = false;          ///< the next sublayer's input is there already
  bool commits_at_once = false;    ///< window rows of all layers go to the rings when all have run
  int64_t logit_rows = 0;          ///< rows of the head
  int64_t candidate_words = 0;

  void use(StepInputs& inputs) {
    in = &inputs;
    rows = inputs.rows;
    live = inputs.live;
    image = has_image ? inputs.image.device() : nullptr;
  }
  RopeRows plain_rope() const;
  RopeRows compressed_rope() const;
  RopeRows pair_rope() const;
  int64_t rope_pairs = 0;

  /// A host array.
  template <typename T>
  void observe(std::string_view name, int64_t layer, const T* data, int64_t count) const {
    if (observer != nullptr) observer->value(name, layer, std::span<const T>(data, static_cast<size_t>(count)));
  }
  template <typename T>
  void observe(std::string_view name, int64_t layer, const DeviceBuffer<T>& data, int64_t count) const {
    if (observer == nullptr) return;
    if (b->memory->is_host()) return observe(name, layer, data.data(), count);
    observe(name, layer, downloaded(data, count).data(), count);
  }
  bool replace(std::string_view name, int64_t layer, DeviceBuffer<bf16>& data, int64_t count) const {
    if (observer == nullptr) return false;
    if (b->memory->is_host()) return observer->replace(name, layer, {data.data(), static_cast<size_t>(count)});
    std::vector<bf16> copy = downloaded(data, count);
    if (!observer->replace(name, layer, copy)) return false;
    b->memory->upload(data.data(), copy.data(), count * static_cast<int64_t>(sizeof(bf16)));
    return true;
  }
  void observe_block(int64_t layer, int64_t streams, int64_t hidden) const {
    if (observer == nullptr) return;
    const auto values = static_cast<size_t>(rows * streams * hidden);
    const auto mixes = static_cast<size_t>(rows * streams);
    if (b->memory->is_host()) return observer->before_block(layer, {b->x.data(), values}, {b->pre.data(), mixes});
    std::vector<bf16> x = downloaded(b->x, static_cast<int64_t>(values));
    std::vector<float> pre = downloaded(b->pre, static_cast<int64_t>(mixes));
    observer->before_block(layer, x, pre);
    b->memory->upload(b->x.data(), x.data(), static_cast<int64_t>(values * sizeof(bf16)));
    b->memory->upload(b->pre.data(), pre.data(), static_cast<int64_t>(mixes * sizeof(float)));
  }

 private:
  template <typename T>
  std::vector<T> downloaded(const DeviceBuffer<T>& data, int64_t count) const {
    std::vector<T> copy(static_cast<size_t>(count));
    b->memory->download(copy.data(), data.data(), count * static_cast<int64_t>(sizeof(T)));
    return copy;
  }
};

inline RopeRows Model::Step::plain_rope() const { return {in->plain_cos.device(), in->plain_sin.device(), rope_pairs}; }
inline RopeRows Model::Step::compressed_rope() const {
  return {in->compressed_cos.device(), in->compressed_sin.device(), rope_pairs};
}
inline RopeRows Model::Step::pair_rope() const { return {b->pair_cos.device(), b->pair_sin.device(), rope_pairs}; }

}  // namespace deepinfer
